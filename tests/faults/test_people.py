"""What users, and the program itself, can do to a run."""

import json
import re
import shutil
import socket
import zlib
from pathlib import Path

import polars as pl
import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Scene, wait_until
from tests.faults.client_patches import run_first
from tests.faults.proxy import Call, Proxy
from tests.faults.rows import row

K = 24

# Blocks the event loop once, and makes the watchdog's checks 50 times as frequent.
BLOCKED = """
import threading, time
strftime, wait, blocked = time.strftime, threading.Event.wait, []


def slow(*arguments):
    if not blocked and threading.current_thread() is threading.main_thread():
        blocked.append(time.sleep(2))
    return strftime(*arguments)


time.strftime = slow
threading.Event.wait = lambda self, timeout=None: wait(self, timeout / 50 if timeout == 1.0 else timeout)
"""


@row(111)
def test_a_blocked_program_reports_where(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=3")
    run_first(scene, BLOCKED)
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert re.search(r"blocked for 30 s, in slow \(sitecustomize.py:\d+\) < time_of_day \(clock.py", done.stderr)
    scene.audit(status=True)


@row(112)
def test_a_failed_upload_does_not_prevent_noting_another_purchase(stage: Stage) -> None:
    """One upload fails permanently while the create of another batch is being sent."""
    scene = stage("openai")
    uploads: list[Call] = []

    def meddle(call: Call, connection: socket.socket) -> bool:
        if call.method == "POST" and call.path.endswith("/files"):
            uploads.append(call)
            if len(uploads) == 2:
                wait_until(scene.accepted)
                connection.sendall(b'HTTP/1.1 401 no\r\ncontent-length: 26\r\n\r\n{"error":{"message":"no"}}')
                return True
        if call.method == "POST" and call.path.endswith("/batches"):
            reply = between.answer(call)
            wait_until(lambda: len(uploads) >= 2)
            connection.sendall(reply)
            return True
        return False

    with Proxy(scene, meddle) as between:
        done = scene.run(k=K, size=8)
        assert done.code == 77, done
        assert "Traceback" not in done.stderr
        assert [len(scene.journal(kind)) for kind in ("created", "stored", "rejected")] == [1, 1, 1]
        assert done.report["answered"] == 8
        scene.audit(status=True)
        done = scene.run(k=K, size=8)
        assert (done.code, scene.billed()) == (0, K), done
        scene.audit(status=True)


@row(113)
def test_changed_prompts_are_not_asked(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    (shard,) = scene.home.glob("manifests/*/00000.parquet")
    honest = shard.read_bytes()
    shard.chmod(0o600)
    table = pl.read_parquet(shard)
    table.with_columns(prompt=pl.col("prompt") + " Please.").write_parquet(shard)
    done = scene.run(k=K, size=8)
    assert done.code == 65, done
    assert "00000.parquet differs from what manifest.json says" in done.stderr
    assert scene.billed() == 8
    shard.write_bytes(honest)
    done = scene.run(k=K, size=8)
    assert (done.code, scene.billed()) == (0, K), done
    scene.audit(status=True)


@row(113)
@pytest.mark.full
def test_other_settings_make_another_run(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    folder = scene.run_folder
    before = contents(folder)
    assert scene.run("--temperature", "0.5", k=8, size=8).code == 0
    assert contents(folder) == before
    assert len(list(scene.home.glob("cache/*/*/run.json"))) == 2


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "lock"
    }


@row(114)
def test_a_smaller_budget_counts_earlier_spending(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run("--budget", "1", k=8, size=8).code == 0
    spent = scene.cost()
    stopped = scene.run("--budget", f"{spent / 1_000_000:.6f}", k=K, size=8)
    assert stopped.code == 3, stopped
    assert f"{spent / 1_000_000:.6f} spent" in stopped.stderr
    assert scene.billed() == 8
    scene.audit()
    done = scene.run("--budget", "1", k=K, size=8)
    assert (done.code, scene.billed()) == (0, K), done
    scene.audit(status=True)


@row(115)
@pytest.mark.parametrize("left", ["batches", pytest.param("answers", marks=pytest.mark.full)])
def test_a_run_without_its_journal_buys_nothing(stage: Stage, left: str) -> None:
    """Both with stored answers and with batches in flight that only the journal knew."""
    scene = stage("openai", "--delay", "processing=2" if left == "batches" else "processing=0")
    scene.run(*(["--detach"] if left == "batches" else []), k=K, size=K)
    journal, bought = scene.run_folder / "journal", len(scene.accepted())
    kept = journal.read_bytes()
    for damage in (journal.unlink, lambda: journal.write_bytes(b"")):
        damage()
        done = scene.run(k=K, size=K)
        assert done.code == 65, done
        assert "journal is gone" in done.stderr
        assert len(scene.accepted()) == bought == 1
    journal.write_bytes(kept)
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    scene.audit(status=True)


@row(115)
@pytest.mark.full
def test_deleted_answers_are_reported_and_not_bought_again(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=K, size=K).code == 0
    shutil.rmtree(scene.run_folder / "answers")
    done = scene.run(k=K, size=K)
    assert done.code == 65, done
    assert "missing or damaged: restore it from a backup" in done.stderr
    assert scene.billed() == K


def rewritten(scene: Scene, change: "object") -> None:
    """Rewrite the journal as another version would have written it."""
    text, crc = b"", 0
    for number, event in enumerate(scene.journal()):
        body = b"%d %s" % (number, json.dumps(change(event), separators=(",", ":")).encode())  # type: ignore[operator]
        crc = zlib.crc32(body, crc)
        text += b"%08x %s\n" % (crc, body)
    (scene.run_folder / "journal").write_bytes(text)


NEWER = {"uptime", "boot", "key", "outcomes", "found"}  # fields that the oldest journals lack


@row(116)
def test_an_older_journal_is_read(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    scene.run(k=12, size=12)
    assert scene.run("--detach", k=K, size=12).code == 6
    rewritten(scene, lambda event: {name: value for name, value in event.items() if name not in NEWER})
    done = scene.run(k=K, size=12)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    assert scene.program("audit").code == 0


@row(116)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda event: event | {"format": 2} if event["event"] == "opened" else event, "does not have format 1"),
        pytest.param(
            lambda event: event | {"event": "haggled"} if event["event"] == "ended" else event,
            "does not know",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_newer_journal_is_refused(stage: Stage, change: object, says: str) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    rewritten(scene, change)
    before = contents(scene.run_folder)
    for words in (["run"], ["status"], ["audit"]):
        done = scene.run(k=K, size=8) if words == ["run"] else scene.program(*words)
        assert done.code == 65, done
        assert says in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    assert contents(scene.run_folder) == before
    assert scene.billed() == 8


@row(116)
@pytest.mark.full
@pytest.mark.parametrize(("file", "says"), [("run.json", "does not have format 1"), ("manifest.json", "has format 2")])
def test_files_of_a_newer_format_are_refused(stage: Stage, file: str, says: str) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    (path,) = [*scene.home.glob(f"cache/*/*/{file}"), *scene.home.glob(f"manifests/*/{file}")]
    path.chmod(0o600)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    done = scene.run(k=K, size=8)
    assert done.code == 65, done
    assert says in done.stderr
    assert scene.billed() == 8
