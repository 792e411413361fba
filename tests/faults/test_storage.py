"""Disks that are full, broken or read-only: the program stops with one line, and continues when they are repaired."""

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from batchbench import cli
from batchbench.runs import journal
from batchbench.runs.folder import read_journal
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Ran, Scene, ended, wait_until
from tests.faults.disks import failing, filled, needs_mount, needs_strace, read_only, tmpfs
from tests.faults.rows import row

ROWS, SIZE = 12, 5


def stopped(ran: Ran, code: int, *words: str) -> None:
    """The program stopped with one line that says what is wrong."""
    complaints = [line for line in ran.stderr.splitlines() if line.startswith("batchbench: ")]
    assert ran.code == code, ran
    assert "Traceback" not in ran.stderr, ran
    assert len(complaints) == 1, ran
    assert all(word in complaints[0] for word in words), ran


def recover(scene: Scene, rows: int = ROWS, size: int = SIZE, timeout: float = 60) -> None:
    scene.around = []
    done = scene.run(k=rows, size=size, timeout=timeout)
    assert (done.code, done.report["answered"], scene.billed()) == (0, rows, rows), done
    assert not list(scene.run_folder.rglob(".scratch-*"))
    scene.audit(status=True)


@pytest.mark.full
@row(27)
def test_a_journal_that_cannot_grow_is_truncated_to_its_last_complete_line(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=1).code == 0
    begun = (scene.run_folder / "journal").stat().st_size
    for more in (100, 300, 500, 900, 1300):
        # The write that reaches the limit is first a short write, as on a full disk.
        scene.around = ["prlimit", f"--fsize={begun + more}"]
        stopped(scene.run(k=ROWS, size=SIZE), 1, "cannot write", "File too large")
        assert (scene.run_folder / "journal").read_bytes().endswith(b"\n")
    recover(scene)


@row(27, 28)
@needs_mount
def test_a_disk_that_fills_up_while_batches_run_loses_nothing(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    with tmpfs(scene.home / "cache", "size=80m"):
        client = scene.start(k=400, size=200)
        wait_until(lambda: scene.accepted() and len(scene.journal("created")) == 2)
        with filled(scene.home / "cache"):
            stopped(ended(client), 1, "cannot write", "No space left on device", "free some space")
            assert not list(scene.run_folder.rglob(".scratch-*"))
            stopped(scene.run(k=400, size=200), 1, "No space left on device", "free some space")
        recover(scene, 400, 200)
        assert len(scene.accepted()) == 2


@row(29)
@needs_mount
def test_nothing_is_bought_when_the_disk_is_nearly_full(stage: Stage) -> None:
    scene = stage("openai")
    with tmpfs(scene.home / "cache", "size=40m"):
        stopped(scene.run(k=ROWS, size=SIZE), 1, "MiB free are too few", "free some space")
        assert not scene.journal("intent")
        assert not scene.emulator.events("uploaded")
        scene.audit(status=True)


@row(30)
@needs_strace
def test_a_failed_sync_is_not_repeated(stage: Stage) -> None:
    scene = stage("openai")
    for when in ("3", "7", "2+"):
        scene.around = failing("fdatasync,fsync" if "+" in when else "fdatasync", "EIO", when)
        stopped(scene.run(k=ROWS, size=SIZE), 1, "cannot write", "Input/output error")
        assert (scene.run_folder / "journal").read_bytes().endswith(b"\n")
    recover(scene)


@row(30)
@needs_strace
@pytest.mark.full
def test_a_failed_sync_of_results_is_not_repeated(stage: Stage) -> None:
    scene = stage("openai")
    for when in range(2, 12):
        scene.around = failing("fsync", "EIO", str(when))
        ran = scene.run(k=ROWS, size=SIZE)
        if ran.code:
            stopped(ran, 1, "cannot write", "Input/output error")
    recover(scene)


@row(31)
@needs_strace
@pytest.mark.full
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_computed(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=ROWS, size=SIZE).code == 0
    folder = scene.run_folder
    analyze = ("analyze", "hiring_an", "--set", "data=sample", "--model", str(folder), "--quiet")
    (shard,) = (scene.home / "manifests").glob("*-*/00000.parquet")
    answers = next(folder.glob("answers/*.parquet"))
    for path, command in [
        (folder / "journal", analyze),
        (folder / "run.json", analyze),
        (answers, analyze),
        (shard, analyze),
        (shard.with_name("manifest.json"), analyze),
        (next(folder.glob("raw/*")), ("audit", "--quiet")),
        (shard, ()),
        (folder / "journal", ()),
    ]:
        scene.around = failing("read,pread64", "EIO", "1+", path)
        ran = scene.program(*command) if command else scene.run(k=ROWS + 5, size=SIZE)
        if command[:1] == ("audit",):
            assert (ran.code, "BROKEN" in ran.stdout, path.name in ran.stdout) == (65, True, True), ran
        else:
            stopped(ran, 65 if command else ran.code, path.name if command else "", "Input/output error")
        assert not (folder / "metrics.json").exists()
    recover(scene)


@pytest.mark.full
@row(118)
@pytest.mark.parametrize("damage", ["cut off", "empty", "overwritten"])
def test_a_damaged_result_file_of_an_unsettled_batch_is_fetched_again(stage: Stage, damage: str) -> None:
    scene = stage("openai")
    for _ in range(2):  # the second copy in quarantine/ does not replace the first
        assert scene.run(k=ROWS, size=ROWS, crash="before-stored:1").code == -signal.SIGKILL
        (path,) = scene.run_folder.glob("raw/*")
        damaged = {"cut off": path.read_bytes()[:100], "empty": b"", "overwritten": b"x" * 500}[damage]
        path.write_bytes(damaged)
    recover(scene, ROWS, ROWS)
    aside = sorted((scene.run_folder / "quarantine").iterdir())
    assert [file.name for file in aside] == [path.name, f"{path.name}.2"]
    assert {file.read_bytes() for file in aside} == {damaged}
    audited = scene.program("audit")
    assert audited.code == 0, audited


@row(118)
def test_a_damaged_result_file_of_a_stored_batch_is_reported(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=ROWS, size=ROWS).code == 0
    (path,) = scene.run_folder.glob("raw/*")
    os.truncate(path, 100)
    nonce = scene.journal("intent")[0]["nonce"]
    stopped(scene.program("explain", f"{nonce}-0-0"), 65, path.name, "missing or damaged")
    assert scene.program("audit").code == 65
    assert not list((scene.run_folder / "quarantine").iterdir())


@row(32)
@needs_mount
def test_a_folder_that_is_or_becomes_read_only_stops_the_run(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    (scene.home / "cache").mkdir()
    with read_only(scene.home / "cache"):
        stopped(scene.run(k=ROWS, size=SIZE), 1, "Read-only file system", "choose a writable folder")
        assert not scene.emulator.events("uploaded")
    client = scene.start(k=ROWS, size=SIZE)
    wait_until(lambda: scene.accepted() and len(scene.journal("created")) == 3)
    with read_only(scene.run_folder / "raw"):
        stopped(ended(client), 1, "Read-only file system")
    recover(scene)
    assert len(scene.accepted()) == 3


# Runs before the program's imports: makes every write to a file a short write.
SHORT_WRITES = """
import os, stat
true_write = os.write

def short_write(handle, content):
    short = max(1, len(content) // 3) if stat.S_ISREG(os.fstat(handle).st_mode) else len(content)
    return true_write(handle, content[:short])

os.write = short_write
"""


@row(33)
@pytest.mark.full
def test_short_writes_are_continued(stage: Stage) -> None:
    scene = stage("openai")
    (scene.folder / "sitecustomize.py").write_text(SHORT_WRITES)
    scene.environment = {"PYTHONPATH": os.pathsep.join([str(scene.folder), *sys.path])}
    recover(scene)


@row(33)
@needs_strace
@pytest.mark.full
def test_interrupted_system_calls_are_repeated(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=1).code == 0
    for rows, around in [
        (6, failing("write,fdatasync", "EINTR", "1+2", scene.run_folder / "journal")),
        (ROWS, failing("sendto,recvfrom", "EAGAIN", "2+3")),
    ]:
        scene.around = around
        done = scene.run(k=rows, size=SIZE)
        assert (done.code, done.report["answered"], scene.billed()) == (0, rows, rows), done
    recover(scene)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def add(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"garbage")


def swap(path: Path) -> None:
    other = next(one for one in sorted(path.parent.glob("[!.]*")) if one != path)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def without_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))


def with_a_line_twice(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], *lines[4:]]))


def of_another_run(path: Path) -> None:
    """A valid journal of another model."""
    events = read_journal(path).events
    events[0] = msgspec.structs.replace(events[0], target="another-model")
    crc, text = 0, b""
    for seq, event in enumerate(events):
        line, crc = journal.line(event, seq, crc)
        text += line
    path.write_bytes(text)


DAMAGE = [
    *(("raw/*", how) for how in (cut, add, swap)),
    *(("answers/*", how) for how in (cut, add, swap)),
    *(("journal", how) for how in (without_a_line, with_a_line_twice, add)),
]


@row(35)
def test_cut_changed_or_exchanged_files_are_named(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    scene = stage("openai")
    recover(scene)
    folder = scene.run_folder
    words = ["hiring_an", "--set", "data=sample", "--model", str(folder)]

    def said(*line: str) -> tuple[int, str]:
        code = cli.main([*line, "--home", str(scene.home)])
        out, err = capsys.readouterr()
        return code, out + err

    for pattern, damage in DAMAGE:
        path = min(folder.glob(pattern))
        before = {one: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
        damage(path)
        code, text = said("audit")
        assert (code, path.name in text) == (65, True), (pattern, damage, text)
        # Only `audit` reads raw files; bytes after a journal's last line count as a torn line.
        if (pattern, damage) not in [("raw/*", damage), ("journal", add)]:
            assert said("analyze", *words)[0] == 65
        for one, content in before.items():
            one.write_bytes(content)
    assert not (folder / "metrics.json").exists()
    before = {folder / "journal": (folder / "journal").read_bytes()}
    of_another_run(folder / "journal")
    stopped(scene.run(k=ROWS, size=SIZE), 65, "does not fit the journal beside it")
    (folder / "journal").write_bytes(before[folder / "journal"])
    recover(scene)
