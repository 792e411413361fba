"""Wrong clocks, unusual environments, closed streams, narrow terminals: the same answers, each paid for once."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.auditor.invariants import audit, load
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, PROBE, Json, Scene, ended, wait_until
from tests.faults.rows import row
from tests.faults.test_storage import ROWS, SIZE, recover
from tests.terminal import shown

DAY = 86_400
# Runs before the program's imports: from then on its wall clock is off by the number in the file.
WRONG_CLOCK = """
import os, time
true_time, offset = time.time, os.environ["CLOCK_OFFSET"]

def wrong_time():
    with open(offset) as file:
        return true_time() + float(file.read() or 0)

time.time = wrong_time
"""
LOST: list[Json] = [{"do": "reset-after", "on": "create"}, {"do": "list-lag", "seconds": 2.5}]


class WrongClock:
    """A wall clock for the client of a scene that the test can set."""

    def __init__(self, scene: Scene) -> None:
        folder = scene.folder / "clock"
        folder.mkdir()
        self.file = folder / "offset"
        self.set(0)
        (folder / "sitecustomize.py").write_text(WRONG_CLOCK)
        path = os.pathsep.join(filter(None, [str(folder), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        scene.environment = {"PYTHONPATH": path, "CLOCK_OFFSET": str(self.file)}

    def set(self, seconds: float) -> None:
        scratch = self.file.with_suffix(".new")
        scratch.write_text(str(seconds))
        scratch.rename(self.file)


def judge(scene: Scene, rows: int) -> None:
    """Paid for once and found in the listing; the auditor cannot compare the times of two clocks."""
    assert scene.billed() == rows
    assert all(event["found"] for event in scene.journal("created"))
    assert not scene.journal("void", "unresolved")
    folder = scene.run_folder
    found = audit(load(scene.emulator.ledger, folder, scene.home / "manifests" / folder.parent.name))["invariants"]
    assert {name for name, one in found.items() if one["problems"]} <= {"events_are_in_order"}, found


@row(44)
@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("days", [30, -30])
def test_setting_the_clock_makes_no_batch_older(stage: Stage, dialect: str, days: int) -> None:
    scene = stage(dialect, rules=LOST)
    clock = WrongClock(scene)
    client = scene.start("--settle", "4", k=20, size=20)
    wait_until(scene.accepted)
    clock.set(days * DAY)
    done = ended(client)
    assert (done.code, done.report["answered"]) == (0, 20), done
    judge(scene, 20)


@row(45)
@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("days", [3 * 365, pytest.param(-3 * 365, marks=pytest.mark.full)])
def test_a_wrong_clock_hides_no_batch(stage: Stage, dialect: str, days: int) -> None:
    scene = stage(dialect, rules=LOST)
    WrongClock(scene).set(days * DAY)
    done = scene.run("--settle", "4", k=20, size=20)
    assert (done.code, done.report["answered"]) == (0, 20), done
    judge(scene, 20)


@row(44)
@pytest.mark.full
def test_setting_the_clock_between_two_starts_makes_no_batch_older(stage: Stage) -> None:
    scene = stage("openai", rules=LOST)
    clock = WrongClock(scene)
    assert scene.run("--settle", "4", k=20, size=20, crash="once-before-send:1").code == -9  # never sent
    assert not scene.accepted()
    clock.set(30 * DAY)
    done = scene.run("--settle", "4", k=20, size=20)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 20, 20), done
    assert len(scene.journal("void")) == 1


@row(46)
@pytest.mark.full
def test_a_change_of_time_zone_does_not_change_times_on_disk(stage: Stage) -> None:
    scene = stage("openai")
    zones = (
        "Pacific/Kiritimati",
        "America/New_York",
        "Australia/Lord_Howe",
    )  # UTC+14, UTC-5, UTC+10:30
    for number, zone in enumerate(zones, 1):
        scene.environment = {"TZ": zone}
        assert scene.run(k=4 * number, size=4).code == 0
    times = [event["at"] for event in scene.journal()]
    assert times == sorted(times)
    assert time.time() - 600 < times[0] < times[-1] < time.time() + 5
    scene.environment = {}
    recover(scene)


@row(47)
def test_proxies_and_certificates_of_the_environment_are_not_used(stage: Stage) -> None:
    scene = stage("openai")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://user:secret@127.0.0.1:{proxy.getsockname()[1]}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        netrc = scene.folder / "netrc"
        netrc.write_text("machine 127.0.0.1 login user password another-key\n")
        scene.environment = dict.fromkeys(names, address) | {"NO_PROXY": "", "NETRC": str(netrc)}
        scene.environment |= dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "/nonexistent")
        recover(scene)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@row(48)
@pytest.mark.parametrize("stream", ["stderr", pytest.param("stdout", marks=pytest.mark.full)])
def test_a_closed_pipe_ends_the_display_and_not_the_run(stage: Stage, stream: str) -> None:
    scene = stage("openai", "--delay", "processing=2")
    client = scene.start(k=ROWS, size=SIZE)
    getattr(client, stream).close()
    setattr(client, stream, None)
    client.communicate(timeout=60)
    assert client.returncode == 0
    assert (scene.billed(), scene.status()["answered"]) == (ROWS, ROWS)
    scene.audit(status=True)


@row(48)
@pytest.mark.parametrize("closed", ["0<&- 1>&- 2>&-", pytest.param("2>&-", marks=pytest.mark.full)])
def test_streams_that_are_closed_at_the_start_never_become_files(stage: Stage, closed: str) -> None:
    """Otherwise error messages of a library could end up in a journal that was opened as descriptor 2."""
    scene = stage("openai", "--delay", "processing=1.5")
    scene.around = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    client = scene.start(k=ROWS, size=SIZE)
    wait_until(lambda: scene.accepted() and scene.journal("created"))
    streams = [os.readlink(f"/proc/{client.pid}/fd/{number}") for number in range(3)]
    assert not any(str(scene.home) in stream or "socket" in stream for stream in streams), streams
    client.communicate(timeout=60)
    assert client.returncode == 0
    recover(scene)


@row(48)
@pytest.mark.full
def test_the_interpreters_options_and_the_locale_change_nothing(stage: Stage) -> None:
    scene = stage("openai")
    words = ("--system", "Réponds « oui » 🙂")
    scene.environment = {"PYTHONOPTIMIZE": "2", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    assert scene.run(*words, k=ROWS, size=SIZE, crash="torn-stored:1").code == -9
    done = scene.run(*words, k=ROWS, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    scene.audit(status=True)
    analyze = ("analyze", "hiring_an", "--set", "data=sample", "--model", str(scene.run_folder))
    assert "–" in scene.program(*analyze, timeout=60, **scene.environment).stdout
    scene.environment["PYTHONUTF8"] = "0"  # then an argument is not valid text
    refused = scene.run(*words, k=ROWS, size=SIZE)
    assert (refused.code, "is not UTF-8" in refused.stderr) == (2, True), refused


@row(48)
@pytest.mark.full
def test_a_terminal_of_twenty_columns_is_wide_enough(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    scene.start(k=1).communicate()
    line = [sys.executable, "-m", "batchbench", "run", *PROBE, *scene._model(), "--price", scene.price]
    line += ["--sample-k", str(ROWS), "--settle", "1", "--anyway", "--pilot", "none", "--home", str(scene.home)]
    client = shown(line, {**os.environ, "OPENAI_API_KEY": scene.emulator.token}, (5, 20))
    assert client.code == 0, client.seen
    assert f"{ROWS} of {ROWS} answered".encode() in client.out
    recover(scene)


def interpreters() -> list[str]:
    """Interpreters on this machine of other versions that have the dependencies of batchbench."""
    named = os.environ.get("BATCHBENCH_TEST_PYTHONS", "").split(os.pathsep)
    found: dict[str, str] = {}
    for name in [*filter(None, named), *(f"python3.{minor}" for minor in range(11, 16))]:
        script = "import aiohttp, anyio, msgspec, polars, rich, tenacity, sys; print(sys.version_info[:2])"
        ran = subprocess.run(
            ["sh", "-c", 'exec "$0" -c "$1"', name, script], capture_output=True, text=True, check=False
        )
        if ran.returncode == 0 and ran.stdout.strip() != str(sys.version_info[:2]):
            found.setdefault(ran.stdout, name)
    return list(found.values())


@row(49)
@pytest.mark.full
def test_another_python_continues_a_run_and_computes_the_same(stage: Stage) -> None:
    others = interpreters()
    if not others:
        pytest.skip("no other Python here has batchbench's dependencies; BATCHBENCH_TEST_PYTHONS may name some")
    for python in others:
        scene = stage("openai")
        assert scene.run(k=ROWS, size=SIZE, crash="torn-stored:2").code == -9
        around = ["sh", "-c", 'shift; exec "$0" "$@"', python]
        scene.around = around
        done = scene.run(k=ROWS, size=SIZE)
        assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), (python, done)
        answers = scene.folder / "answers.jsonl"
        texts = ("joy", "anger", "fear", "I cannot tell")
        lines = [json.dumps({"id": number, "text": texts[number**2 % 7 % 4]}) for number in range(60)]
        answers.write_text("\n".join(lines))
        made = []
        for scene.around in ([], around):
            assert scene.program("compile", "isear", "--set", "data=sample", "--quiet").code == 0
            ran = scene.program("analyze", "isear", "--set", "data=sample", "--answers", str(answers), "--json")
            assert ran.code == 0, (python, ran)
            made.append(json.loads(ran.stdout))
        assert made[0].pop("software") != made[1].pop("software")
        assert made[0] == made[1]
        recover(scene)
