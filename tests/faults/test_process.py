"""Other commands die, signals arrive, memory runs out, the machine sleeps: files are complete or absent."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from batchbench import cli
from batchbench.core.store import Store
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Ran, Scene, ended, kill, wait_until
from tests.emulator.driver import TOKEN
from tests.faults.rows import row

# An audit hook kills the process before it opens or renames its n-th file, or creates its n-th folder.
KILLER = """
import os, signal, sys
import batchbench.compile.compiler
from batchbench.cli import main
left, batchbench.compile.compiler.SHARD_ROWS = int(sys.argv[1]), int(sys.argv[2])
def hook(event, args):
    global left
    writes = event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
    if writes or event in ("os.rename", "os.mkdir"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
sys.exit(main(sys.argv[3:]))
"""
# An audit hook takes all memory of the process when it opens its first result file.
HOARDER = """
import resource, sys
from batchbench.cli import main
hoard = []
def hook(event, args):
    if event == "open" and not hoard and "/raw/" in str(args[0]):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        for size in (1 << 20, 1 << 16, 1 << 13):
            try:
                while True:
                    hoard.append(bytearray(size))
            except MemoryError:
                pass
sys.addaudithook(hook)
sys.exit(main(sys.argv[1:]))
"""
SHARD = 200


def killed(step: int, *words: str | Path, shard: int = 50_000) -> bool:
    """Run the program and kill it at its n-th step; returns whether it got that far."""
    line = [sys.executable, "-c", KILLER, str(step), str(shard), *map(str, words), "--quiet"]
    code = subprocess.run(line, check=False, capture_output=True).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@row(1)
def test_a_half_compiled_manifest_is_compiled_again_before_anything_is_asked(stage: Stage) -> None:
    scene = stage("openai")
    (folder,) = (scene.home / "manifests").glob("*-*")
    whole = contents(folder)
    (folder / "manifest.json").unlink()
    (folder / "00000.parquet").write_bytes(whole["00000.parquet"][:1000])
    (folder / ".scratch-0123abcd-00001.parquet").write_bytes(b"half a shard")
    done = scene.run(k=12, size=5)
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert contents(folder) == whole
    scene.audit(status=True)


@pytest.mark.full
@row(1, 2)
def test_a_compile_that_dies_at_any_step_looks_incomplete_and_the_next_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchbench.compile.compiler.SHARD_ROWS", SHARD)  # several shards of a small probe
    words = ["compile", "gest", "--set", "data=sample", "--quiet", "--home"]
    assert cli.main([*words, str(tmp_path / "whole")]) == 0
    whole = contents(tmp_path / "whole")
    assert sum(name.endswith(".parquet") for name in whole) > 2
    step = 1
    while killed(step, *words, home := tmp_path / str(step), shard=SHARD):
        left = contents(home)
        # A file under its final name is complete.
        assert all(left[name] == whole[name] for name in left if ".scratch-" not in name)
        assert cli.main([*words, str(home)]) == 0
        assert contents(home) == whole
        step += 1
    assert step > 10


@row(20)
@pytest.mark.full
def test_an_analysis_that_dies_at_any_step_changes_no_other_file(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=40, size=40).code == 0
    words = ["analyze", "hiring_an", "--set", "data=sample", "--model", str(scene.run_folder)]
    words += ["--home", str(scene.home), "--replicates", "50"]
    before = contents(scene.home)
    assert cli.main([*words, "--quiet"]) == 0
    whole = contents(scene.run_folder)
    made = set(whole) - {name for name in whole if scene.run_folder / name in map(scene.home.joinpath, before)}
    step = 1
    while True:
        for name in made:
            (scene.run_folder / name).unlink(missing_ok=True)
        if not killed(step, *words):
            break
        left = contents(scene.home)
        assert {name: left[name] for name in before} == before
        assert all(whole[name] == content for name, content in contents(scene.run_folder).items() if name in made)
        step += 1
    assert step > 6
    assert scene.run(k=40, size=40).code == 0
    assert contents(scene.run_folder) == whole  # half-written files are removed
    scene.audit(status=True)


PLACES = ("before-intent", "after-uploaded", "after-creating", "before-created", "before-ended", "download-piece")


@row(21)
@pytest.mark.full
@pytest.mark.parametrize("how", ["TERM", "INT"])
def test_a_signal_at_any_step_stops_buying_and_loses_nothing(stage: Stage, how: str) -> None:
    def play(places: tuple[str, ...]) -> None:
        scene = scenes[places]
        for number, place in enumerate(places, 1):
            stopped = scene.run(k=12 * number, size=5, crash=f"{place}:1:{how}")
            assert stopped.code == 130, (place, stopped)
            assert "run the same command to continue" in stopped.stderr
            sent = {event["nonce"] for event in scene.journal("creating")}
            known = {event["nonce"] for event in scene.journal("created", "rejected")}
            assert sent <= known, place  # the process waited for the reply to each create
            assert {event["nonce"] for event in scene.accepted()} <= sent
        done = scene.run(k=12 * len(places), size=5)
        assert (done.code, done.report["answered"], scene.billed()) == (0, 12 * len(places), 12 * len(places)), done
        scene.audit(status=True)

    scenes: dict[tuple[str, ...], Scene] = {PLACES[:3]: stage("openai"), PLACES[3:]: stage("openai")}
    with ThreadPoolExecutor() as pool:
        list(pool.map(play, scenes))


@row(21)
def test_a_second_signal_ends_at_once(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "hang-after", "on": "create", "seconds": 60}])
    client = scene.start(k=20, size=10)
    wait_until(scene.accepted)
    client.send_signal(signal.SIGINT)
    time.sleep(0.5)  # the client waits for the replies to its creates
    assert client.poll() is None
    client.send_signal(signal.SIGINT)
    assert ended(client, timeout=5).code == 130
    scene.end_faults()
    done = scene.run(k=20, size=10)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 20, 20), done
    scene.audit(status=True)


@row(22)
@pytest.mark.full
def test_a_process_without_memory_ends_and_marks_no_answer_as_damaged(stage: Stage) -> None:
    scene = stage("openai")
    interpreter, _, _, *words = scene.line(k=2000, size=1000)
    line = [interpreter, "-c", HOARDER, *words]
    found = subprocess.run(
        line, capture_output=True, text=True, check=False, env={**os.environ, "OPENAI_API_KEY": TOKEN}
    )
    out = Ran(found.returncode, found.stdout, found.stderr)
    assert (out.code == 1 and "no memory is left" in out.stderr) or out.code < 0, out  # a library may abort the process
    assert "Traceback" not in out.stderr, out
    done = scene.run(k=2000, size=1000)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 2000, 2000), done
    assert not any(event["quarantined"] for event in scene.journal("stored"))
    scene.audit(status=True)


@row(23)
def test_a_create_during_sleep_of_the_machine_is_searched_for(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "hang-after", "on": "create", "seconds": 60}])
    client = scene.start(k=20, size=10)
    wait_until(scene.accepted)
    client.send_signal(signal.SIGSTOP)
    scene.end_faults()  # its connections are closed, and hours have passed
    scene.emulator.advance(6 * 3600)
    client.send_signal(signal.SIGCONT)
    done = ended(client)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 20, 20), done
    assert any(event["found"] for event in scene.journal("created"))
    scene.audit(status=True)


@row(24)
def test_a_child_process_does_not_keep_the_lock(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=30")
    client = scene.start(k=20, size=10)
    wait_until(scene.accepted)
    flags: dict[str, str] = {}
    for handle in Path(f"/proc/{client.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed in the meantime
            if int(handle.name) > 2:
                flags[os.readlink(handle)] = Path(f"/proc/{client.pid}/fdinfo/{handle.name}").read_text()
    assert any(file.endswith("/lock") for file in flags)
    for file, text in flags.items():
        found = re.search(r"flags:\s+(\d+)", text)
        assert found
        assert int(found[1], 8) & os.O_CLOEXEC, file
    kill(client)
    store = Store(scene.folder / "other")
    with store.locked(store.cache):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with store.locked(store.cache):
            pass
    finally:
        child.kill()
        child.wait()
