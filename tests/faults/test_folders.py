"""Folders that are moved, copied, shared or huge, or that hold links, pipes and devices in place of files."""

import os
import resource
import shutil
import signal
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from batchbench.core.store import Store, storage_warning
from batchbench.runs import events, journal
from batchbench.runs.folder import read_journal, run_folders
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, Scene, ended, kill, wait_until
from tests.faults.disks import failing, mounted, needs_mount, needs_strace, tmpfs
from tests.faults.rows import row
from tests.faults.test_storage import ROWS, SIZE, recover, stopped


def a_link(path: Path) -> None:
    """A link to the same bytes outside the run."""
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


KINDS: list[Callable[[Path], None]] = [a_link, a_pipe, a_device, a_folder]


@pytest.mark.full
@row(36)
@pytest.mark.parametrize("shift", [0, *(pytest.param(shift, marks=pytest.mark.full) for shift in (1, 2, 3))])
def test_what_is_not_a_plain_file_is_refused(stage: Stage, shift: int) -> None:
    scene = stage("openai")
    assert scene.run(k=ROWS, size=SIZE).code == 0
    folder, aside = scene.run_folder, scene.folder / "aside"
    analyze = ("analyze", "hiring_an", "--set", "data=sample", "--model", str(folder))
    manifest = scene.home / "manifests" / folder.parent.name
    shutil.copytree(scene.home, aside)
    victims: list[tuple[Path, tuple[str, ...]]] = [
        (folder / "lock", ()),
        (folder / "journal", ()),
        (folder / "run.json", ("status",)),
        (manifest / "00000.parquet", analyze),
        (next(folder.glob("answers/*")), analyze),
        (next(folder.glob("raw/*")), ("audit",)),
    ]
    for number, (path, command) in enumerate(victims, shift):
        KINDS[number % len(KINDS)](path)
        ran = scene.program(*command, timeout=40) if command else scene.run(k=ROWS + 1, size=SIZE, timeout=40)
        assert ran.code in (1, 65), (path, ran)
        assert path.name in ran.stdout + ran.stderr, (path, ran)
        assert "Traceback" not in ran.stderr, (path, ran)
        shutil.rmtree(scene.home)
        shutil.copytree(aside, scene.home)
    recover(scene)


@pytest.mark.full
@row(37)
@pytest.mark.parametrize("dialect", BOTH)
def test_a_moved_run_continues_and_a_copy_buys_only_with_adopt(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=1")
    client = scene.start(k=ROWS, size=SIZE)
    wait_until(lambda: scene.accepted() and len(scene.journal("created")) == 3)
    kill(client)
    first, second = scene.folder / "moved", scene.folder / "copied"
    scene.home.rename(first)
    shutil.copytree(first, second)
    for scene.home in (first, second):
        recover(scene)
        assert len(scene.accepted()) == 3
    refused = scene.run(k=ROWS + 1, size=SIZE)
    assert (refused.code, refused.report["answered"], len(scene.accepted())) == (65, ROWS, 3), refused
    assert "--adopt" in refused.stderr
    adopted = scene.run("--adopt", k=ROWS + 1, size=SIZE)
    assert (adopted.code, adopted.report["answered"]) == (0, ROWS + 1), adopted
    assert scene.run(k=ROWS + 2, size=SIZE).code == 0  # --adopt is needed only once
    scene.home = first
    assert scene.run(k=ROWS + 1, size=SIZE).code == 0


@row(38)
@needs_mount
@pytest.mark.full
def test_memory_and_overlays_work_and_memory_causes_a_warning(stage: Stage, tmp_path: Path) -> None:
    layers = tmp_path / "layers"
    with tmpfs(layers, "size=300m"):
        for name in ("lower", "upper", "work"):
            (layers / name).mkdir()
        over = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
        for words in (("-t", "tmpfs", "tmpfs"), ("-t", "overlay", "-o", over, "overlay")):
            scene = stage("openai")
            with mounted(scene.home / "cache", *words):
                assert scene.run(k=ROWS, size=SIZE, crash="torn-stored:1").code == -signal.SIGKILL
                recover(scene)
                assert ("is in memory (tmpfs)" in scene.run(k=ROWS, size=SIZE).stderr) == ("tmpfs" in words)


@row(38)
@pytest.mark.parametrize(
    ("kind", "warning"), [("nfs4", "shared between machines (nfs4)"), ("tmpfs", "in memory (tmpfs)"), ("ext4", "None")]
)
def test_the_kind_of_disk_of_a_folder_is_known(tmp_path: Path, kind: str, warning: str) -> None:
    device = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 27 0:0 / /proc rw,relatime - proc proc rw\n"
        f"31 27 {os.major(device)}:{os.minor(device)} / /home rw shared:1 - {kind} host:/home rw\n"
    )
    assert warning in str(storage_warning(tmp_path, table))
    assert storage_warning(tmp_path, tmp_path / "none") is None


@row(39)
def test_a_second_process_is_refused_at_once_and_the_first_is_named(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=30")
    client = scene.start()
    wait_until(scene.accepted)
    second = scene.run()
    assert second.code == 11
    assert f"process {client.pid} on " in second.stdout + second.stderr
    assert "seconds" not in second.stdout  # it asked nothing
    assert scene.status()["live"].startswith(f"process {client.pid} ")
    kill(client)


def halted(scene: Scene, crash: str) -> "subprocess.Popen[str]":
    """A client that stops its own process at a crash point; SIGCONT continues it."""
    client = scene.start(k=ROWS, size=SIZE, crash=f"{crash}:STOP")
    wait_until(lambda: Path(f"/proc/{client.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    return client


@row(117)
@pytest.mark.parametrize("crash", ["before-intent:1", "after-creating:1"])
def test_without_the_lock_file_a_second_process_still_buys_nothing(stage: Stage, crash: str) -> None:
    scene = stage("openai")
    client = halted(scene, crash)
    before = (scene.run_folder / "journal").read_bytes()
    (scene.run_folder / "lock").unlink()
    stopped(scene.run(k=ROWS, size=SIZE), 11, "journal is in use by another process", "wait for it or stop it")
    assert (scene.run_folder / "journal").read_bytes() == before
    client.send_signal(signal.SIGCONT)
    assert ended(client).code == 0
    recover(scene)


@row(117)
@pytest.mark.parametrize("event", ["asked", "uploaded"])  # before the intent, and before the create
@pytest.mark.parametrize("change", ["changed", "replaced", "moved"])
def test_a_journal_that_another_program_changes_stops_the_run(stage: Stage, event: str, change: str) -> None:
    scene = stage("openai")
    client = halted(scene, f"after-{event}:1")
    path = scene.run_folder / "journal"
    aside = scene.folder / "journal"
    size = path.stat().st_size
    if change == "changed":
        path.write_bytes(path.read_bytes() + b"a line of another program\n")
    else:
        path.rename(aside)
        if change == "replaced":
            shutil.copy(aside, path)
    found = path.read_bytes() if path.exists() else b""
    client.send_signal(signal.SIGCONT)
    stopped(ended(client), 65, "by another program while this run used it", "nothing more is sent")
    assert not scene.accepted()
    assert (path.read_bytes() if path.exists() else b"") == found
    if aside.exists():
        aside.replace(path)
    os.truncate(path, size)
    recover(scene)


@row(40)
@pytest.mark.full
def test_the_lock_of_a_dead_process_is_free(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=ROWS, size=SIZE, crash="after-created:1").code == -signal.SIGKILL
    # After a restart of the machine, another process may have that process id.
    (scene.run_folder / "lock").write_text(f"process {os.getpid()} on {os.uname().nodename}\n")
    recover(scene)


@row(41)
@needs_mount
@pytest.mark.full
def test_a_disk_without_free_inodes_loses_nothing(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    with tmpfs(scene.home / "cache", "size=200m,nr_inodes=40"):
        client = scene.start(k=ROWS, size=SIZE)
        wait_until(lambda: scene.accepted() and len(scene.journal("created")) == 3)
        fillers: list[Path] = []
        while os.statvfs(scene.home / "cache").f_ffree:
            fillers.append(scene.home / "cache" / f"filler{len(fillers)}")
            fillers[-1].touch()
        stopped(ended(client), 1, "cannot write", "No space left on device")
        for filler in fillers:
            filler.unlink()
        recover(scene)
        assert len(scene.accepted()) == 3


@row(41)
@needs_strace
def test_a_used_up_quota_is_like_a_full_disk(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=1).code == 0
    scene.around = failing("write", "EDQUOT", "3+", scene.run_folder / "journal")
    stopped(scene.run(k=ROWS, size=SIZE), 1, "cannot write", "Disk quota exceeded", "free some space")
    recover(scene)


@row(41)
@pytest.mark.full
def test_too_many_open_files_lose_no_batch(stage: Stage) -> None:
    scene = stage("openai")
    for most in (11, 14, 20):
        scene.around = ["prlimit", f"--nofile={most}"]
        ran = scene.run(k=ROWS, size=SIZE)
        assert ran.code in (0, 1, 65), (most, ran)
    assert ran.code == 0
    recover(scene)


@row(42)
@pytest.mark.full
def test_file_names_differ_on_a_disk_that_ignores_case(stage: Stage) -> None:
    scene = stage("openai")
    recover(scene)
    models = ("Écho/Modèle", "e\u0301cho/mode\u0300le", "ECHO", "con:.. \u202e")
    for model in models:
        url = scene.emulator.openai_url
        words = ("--base-url", url, "--price", "1,1", "--sample-k", "1", "--budget", "0")
        scene.program("run", "hiring_an", "--set", "data=sample", "--model", f"openai:{model}", *words)
    names = [str(path.relative_to(scene.home)) for path in scene.home.rglob("*")]
    assert len(run_folders(Store(scene.home))) == len(models) + 1
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_./") for name in names)
    assert len({unicodedata.normalize("NFKC", name).casefold() for name in names}) == len(names)


@row(43)
@pytest.mark.full
def test_a_journal_of_a_million_lines_is_read_in_seconds(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=1).code == 0
    path = scene.run_folder / "journal"
    found = read_journal(path)
    intent = next(event for event in found.events if isinstance(event, events.Intent))
    seq, crc = len(found.events), found.crc
    with path.open("ab") as file:
        for number in range(500_000):
            nonce = f"{number:010x}"
            rejected = events.Rejected(at=intent.at, nonce=nonce, reason="interrupted before it was sent")
            for event in (msgspec.structs.replace(intent, nonce=nonce, ranges=[(1, 2)]), rejected):
                line, crc = journal.line(event, seq, crc)
                file.write(line)
                seq += 1
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert scene.status()["answered"] == 1
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
    recover(scene, timeout=300)
