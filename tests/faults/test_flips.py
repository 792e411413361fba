"""Bad disks: if any byte of a run's files changes, each command that would use it refuses and names the file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from batchbench.app.analyze import run_answers
from batchbench.compile.manifest import Manifest, decode, read_manifest
from batchbench.core.store import Store
from batchbench.errors import DataError
from batchbench.probes import load_probe
from batchbench.runs.audit import audit
from batchbench.runs.folder import Run, RunFile, read_journal, read_run
from tests.dispatch.scene import PRICE, Scene
from tests.faults.rows import row

MODEL = "openai:echo"
ASKED = ("inventories", "--set", "data=sample", "--model", MODEL)


class Files(NamedTuple):
    """The files of a run with one batch, by their purpose."""

    store: Store
    run: Path
    manifest: Path

    def kinds(self) -> dict[str, list[Path]]:
        return {
            "journal": [self.run / "journal"],
            "run.json": [self.run / "run.json"],
            "manifest": [self.manifest / "manifest.json"],
            "shard": [*self.manifest.glob("*.parquet")],
            "raw": [*self.run.glob("raw/*")],
            "answers": [*self.run.glob("answers/*")],
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Iterator["Scene"]:
    scene = Scene(tmp_path_factory.mktemp("flips") / "scene", manifests, "openai")
    done = scene.program("run", *ASKED, *reached(scene), "--anyway")
    assert done.code == 0, done
    yield scene
    scene.close()


def reached(scene: Scene) -> tuple[str, ...]:
    return ("--base-url", scene.emulator.openai_url, "--price", PRICE)


@pytest.fixture
def files(scene: Scene) -> Files:
    folder = scene.run_folder
    return Files(Store(scene.home), folder, scene.home / "manifests" / folder.parent.name)


def audited(files: Files) -> None:
    manifest = read_manifest(files.manifest)
    found = audit(files.run, files.manifest, manifest).findings
    if found:
        raise DataError(", ".join(f"{one.where}: {one.what}" for one in found))


def analyzed(files: Files) -> None:
    run_answers(files.run, load_probe("inventories"), files.manifest, readable_manifest(files), MODEL)


def gone_on(files: Files) -> None:
    """Read what a run reads before it asks."""
    manifest = readable_manifest(files)
    target = read_run(files.run / "run.json").target
    read_journal(files.run / "journal")
    Run(files.run, files.store, files.manifest, manifest, target).prompts(0, manifest.prompts)


def readable_manifest(files: Files) -> Manifest:
    found = read_manifest(files.manifest)
    assert found
    return found


COMMANDS: dict[str, Callable[[Files], None]] = {"audit": audited, "analyze": analyzed, "run": gone_on}
USED = {  # kind of file -> commands that read it
    "journal": ("audit", "analyze", "run"),
    "run.json": ("audit", "analyze", "run"),
    "manifest": ("audit", "analyze", "run"),
    "shard": ("audit", "analyze", "run"),
    "raw": ("audit",),
    "answers": ("audit", "analyze"),
}


def means_the_same(kind: str, path: Path, whole: bytes) -> bool:
    """JSON with other white space or without a default value is not damaged, nor is an address with capitals."""
    if kind == "manifest":
        return decode(path.read_bytes(), path) == decode(whole, path)
    return kind == "run.json" and canonical(read_run(path)) == canonical(msgspec.json.decode(whole, type=RunFile))


def canonical(found: RunFile) -> RunFile:
    """The same with one spelling of the address."""
    return msgspec.structs.replace(found, target=found.target.canonical())


@pytest.mark.full
@row(34)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 23])
@pytest.mark.parametrize("kind", USED)
def test_any_changed_byte_is_noticed_by_every_command_that_reads_it(files: Files, kind: str, every: int) -> None:
    for command in COMMANDS.values():
        command(files)
    # A digest finds every change, so one bit per byte is enough; where a file is parsed, every bit is tried.
    changes = [1 << bit for bit in range(8)] if kind in ("journal", "run.json", "manifest") else [0x15]
    for path in files.kinds()[kind]:
        for place in range(0, path.stat().st_size, every):
            for change in changes:
                with changed(path, place, change) as whole:
                    for name in USED[kind]:
                        assert refuses(files, name, path) or means_the_same(kind, path, whole), (name, place, change)


@contextmanager
def changed(path: Path, place: int, change: int) -> Iterator[bytes]:
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
    try:
        yield whole
    finally:
        path.write_bytes(whole)


def refuses(files: Files, name: str, path: Path) -> bool:
    """Whether a command refuses the file and names it."""
    try:
        COMMANDS[name](files)
    except DataError as error:
        return path.name in str(error)
    return False


@row(34)
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", USED)
def test_the_program_refuses_a_changed_byte(scene: Scene, files: Files, kind: str, seed: int) -> None:
    """The run is asked for more rows, so it has to read prompts."""
    (path, *_) = files.kinds()[kind]
    more = {"audit": (), "analyze": ASKED, "run": (*ASKED, *reached(scene), "--repetitions", "2", "--anyway")}
    with changed(path, Random(seed).randrange(path.stat().st_size), 0x15):
        for command in USED[kind]:
            done = scene.program(command, *more[command])
            assert (done.code, "Traceback" in done.stderr) == (65, False), (command, done)
            assert path.name in done.stdout + done.stderr, (command, done)
