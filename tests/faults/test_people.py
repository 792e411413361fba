"""What users, and the program itself, can do to a run."""

import hashlib
import json
import re
import shutil
import socket
import zlib
from pathlib import Path

import msgspec
import polars as pl
import pytest

from batchbench.compile.manifest import Manifest, read_manifest
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


@pytest.mark.full
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


def reordered(manifest: Path) -> None:
    """Compile again as another version of polars might: the same folder, the same ids, the prompts in another order."""
    (shard,) = manifest.glob("*.parquet")
    table = pl.read_parquet(shard)
    table.with_columns(table["prompt"].reverse().alias("prompt")).write_parquet(shard)
    prompts = b"".join(prompt.encode() + b"\0" for prompt in table["prompt"].reverse())
    digests = {"text_sha256": hashlib.sha256(prompts), "file_sha256": hashlib.sha256(shard.read_bytes())}
    path = manifest / "manifest.json"
    found = json.loads(path.read_text())
    found["shards"][0] |= {name: digest.hexdigest() for name, digest in digests.items()}
    made = msgspec.convert(found, Manifest)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(made, sha256=made.digest())))


@pytest.mark.full
@row(119)
def test_a_run_goes_on_only_with_the_prompts_that_it_was_begun_with(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    out = str(scene.folder / "out")
    assert scene.run("-o", out, k=16, size=8, command="export").code == 0
    nonce = scene.journal("exported")[0]["nonce"]
    results = scene.folder / "results.jsonl"
    results.write_text(json.dumps({"custom_id": f"{nonce}-8-0", "response": None}) + "\n")
    manifest = scene.home / "manifests" / scene.run_folder.parent.name
    honest = {path: path.read_bytes() for path in manifest.iterdir()}
    (digest,) = [event["prompts_sha256"] for event in scene.journal("opened")]
    before = contents(scene.run_folder)
    for path in honest:
        path.chmod(0o600)
    reordered(manifest)
    other = read_manifest(manifest).prompts_digest()  # type: ignore[union-attr]
    for ran in (
        scene.run(k=K, size=8),
        scene.run("-o", out, k=K, size=8, command="export"),
        scene.program("import", str(results), "--partial"),
        scene.program("analyze", "hiring_an", "--set", "data=sample", "--model", "openai:echo"),
        scene.program("explain", f"{nonce}-8-0"),
        scene.program("audit"),
    ):
        assert ran.code == 65, ran
        assert any(digest in line and other in line for line in (ran.stdout + ran.stderr).splitlines()), ran
        assert "Traceback" not in ran.stderr, ran
    assert (scene.billed(), contents(scene.run_folder)) == (8, before)
    for path, content in honest.items():
        path.write_bytes(content)
    done = scene.run(k=K, size=8)
    assert (done.report["answered"], scene.billed()) == (16, 16), done  # 8 rows are in the exported file
    assert scene.program("audit").code == 0


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
    assert f"${spent / 1_000_000:.6f} of the budget of ${spent / 1_000_000:.6f} is spent" in stopped.stderr
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
    (scene.run_folder / "mark").unlink()  # older versions wrote no marks
    shutil.rmtree(scene.home / "cache" / "marks")


NEWER = {"uptime", "boot", "key", "outcomes", "found", "prompts_sha256"}  # fields that the oldest journals lack


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


DAMAGE = {"run.json": b'{"x', "journal": b"no journal\n", "metrics.json": b'{"x'}


@pytest.mark.full
@row(120)
@pytest.mark.parametrize("file", DAMAGE)
def test_a_broken_run_is_one_line_and_the_others_are_shown(stage: Stage, file: str) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    folder = scene.run_folder
    scene.model = "random"
    assert scene.run(k=8, size=8).code == 0
    models = ("--model", "openai:echo", "--model", "openai:random")
    analyze = ("analyze", "hiring_an", "--set", "data=sample", *models, "--replicates", "100", "--quiet")
    assert scene.program(*analyze).code == 0
    (folder / file).write_bytes(DAMAGE[file])
    commands = {
        "run.json": ("status", "audit", "report", "analyze"),
        "journal": ("status", "audit", "report", "analyze"),
    }
    for command in commands.get(file, ("report",)):
        words = analyze if command == "analyze" else (command,)
        ran = scene.program(*words)
        assert ran.code == 65, ran
        assert "Traceback" not in ran.stderr, ran
        lines = [line for line in (ran.stdout + ran.stderr).splitlines() if str(folder / file) in line]
        assert len(lines) == 1, ran
        assert any(advice in lines[0] for advice in ("restore it from a backup", "analyze the run again")), ran
        document = json.loads(scene.program(*words, "--json").stdout)
        entries = document if isinstance(document, list) else document.get("analyses") or document["runs"]
        broken = [entry for entry in entries if "error" in entry]
        assert (len(entries), len(broken)) == (2, 1), document
        assert str(folder / file) in broken[0]["error"]
    if file != "metrics.json":
        scene.model = "echo"
        bought = scene.billed()
        assert scene.run(k=K, size=8).code == 65  # a broken run buys nothing
        assert scene.billed() == bought


@row(120)
def test_a_broken_run_alone_ends_with_its_error(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=8, size=8).code == 0
    journal = scene.run_folder / "journal"
    journal.write_bytes(b"no journal\n")
    for words in (("status",), ("audit",), ("analyze", "hiring_an", "--set", "data=sample", "--model", "openai:echo")):
        ran = scene.program(*words)
        assert ran.code == 65, ran
        assert sum(str(journal) in line for line in (ran.stdout + ran.stderr).splitlines()) == 1, ran
