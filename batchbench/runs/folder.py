"""IO: the folder of one run: its lock, its journal, and the paths of its other files.

Write order: the provider's bytes, then the answers, then `stored` in the journal. A step that is not in the journal did
not happen; every file that the journal names is on disk.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from batchbench.compile.manifest import Manifest
from batchbench.core import crash_points
from batchbench.core.store import Store, check_links, content, explained, reading, sync
from batchbench.errors import BatchbenchError, DataError, UsageError
from batchbench.providers.target import Target
from batchbench.runs import events, journal
from batchbench.runs.events import AnyEvent, Opened, Ranges
from batchbench.runs.journal import JournalContent, RunState


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: the manifest and the target of a run."""

    format: int = events.FORMAT
    manifest: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\Z")]  # the name of its folder
    target: Target


class Run:
    """An open run: the state of its journal, and the only way to add to it."""

    def __init__(self, folder: Path, store: Store, manifest_folder: Path, manifest: Manifest, target: Target) -> None:
        self.folder = folder
        self.store = store
        self.manifest_folder = manifest_folder
        self.manifest = manifest
        self.target = target
        self.state = RunState()
        self.inode = ""  # of the journal; a copy has another one, and so has a journal on another disk
        self._journal = -1
        self._seq = self._crc = 0
        self._failed: BatchbenchError | None = None  # why nothing can be appended any more
        self._shard: tuple[str, pl.Series] | None = None

    def append(self, event: AnyEvent) -> None:
        """Put an event on disk, then into the state. After a failure, nothing can be appended until the next start.

        If a write or sync fails, it is unknown what is on disk until the file is read again.
        """
        if self._failed is not None:
            raise self._failed
        name = type(event).__name__.lower()
        crash_points.point(f"before-{name}")
        line, crc = journal.line(event, self._seq, self._crc)
        start = os.lseek(self._journal, 0, os.SEEK_END)
        try:
            with explained(self.folder / "journal"):
                while line:  # one call, unless the disk is almost full
                    line = line[os.write(self._journal, line) :]
                os.fdatasync(self._journal)
        except BatchbenchError as error:
            self._failed = error
            with suppress(OSError):  # then the next start cuts the torn line off
                os.ftruncate(self._journal, start)
            raise
        self._seq, self._crc = self._seq + 1, crc
        self.state.apply(event)
        crash_points.point(f"after-{name}")

    def _open(self) -> None:
        path = self.folder / "journal"
        with explained(path):
            self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            sync(self.folder)
        found = read_journal(path)
        # Sync lines that a killed process wrote but did not sync, and cut its torn line off.
        with explained(path):
            os.ftruncate(self._journal, found.good)
            os.fsync(self._journal)
        self.inode = str(os.fstat(self._journal).st_ino)
        self.state = journal.replay(found.events)
        self._seq, self._crc = len(found.events), found.crc

    def _close(self) -> None:
        os.close(self._journal)

    def raw(self, nonce: str, part: str) -> Path:
        """The path of a result file as the provider sent it."""
        return self.folder / "raw" / f"{nonce}-{part}.jsonl.zst"

    def prompts(self, start: int, stop: int) -> list[str]:
        """The prompts of rows `start` to `stop - 1`, which are in one shard, after a check of the shard's digest."""
        shard = next(shard for shard in self.manifest.shards if shard.first <= start < shard.first + shard.rows)
        if self._shard is None or self._shard[0] != shard.file:
            path = self.manifest_folder / shard.file
            compiled = content(path)
            if hashlib.sha256(compiled).hexdigest() != shard.file_sha256:
                raise DataError(f"{path} differs from what manifest.json says: move the folder away and compile again")
            self._shard = (shard.file, pl.read_parquet(compiled, columns=["prompt"])["prompt"])
        return self._shard[1][start - shard.first : stop - shard.first].to_list()

    def rows(self, ranges: Ranges) -> Iterator[tuple[int, str]]:
        """Every row of ranges, with its prompt."""
        for start, stop in ranges:
            while start < stop:
                shard_end = next(end for one in self.manifest.shards if start < (end := one.first + one.rows))
                yield from enumerate(self.prompts(start, min(stop, shard_end)), start)
                start = shard_end


@contextmanager
def open_run(store: Store, manifest_folder: Path, manifest: Manifest, target: Target, now: float) -> Iterator[Run]:
    """Open the run of a target on a manifest, or make it; no other process can open it meanwhile."""
    folder = store.cache / manifest_folder.name / target.slug
    with store.locked(folder):
        path = folder / "run.json"
        run_file = RunFile(manifest=manifest_folder.name, target=_without_emulator_url(target))
        begun = path.exists()
        if begun and (found := read_run(path)) != run_file:
            raise DataError(f"{path} belongs to another run ({found.target.name}): move the folder away")
        for name in ("raw", "answers", "quarantine"):
            with explained(folder / name):
                (folder / name).mkdir(exist_ok=True)
                store.sweep(folder / name)
                sync(folder / name)  # a killed process may have renamed a file without syncing its name
        run = Run(folder, store, manifest_folder, manifest, target)
        run._open()
        try:
            if begun and not run.state.run:
                raise DataError(
                    f"{folder / 'journal'} is gone, so it is unknown what was bought: restore it from a backup, or "
                    "move the folder away to ask everything again"
                )
            if not run.state.run:
                run.append(Opened(at=now, run=secrets.token_hex(8), manifest=manifest_folder.name, target=target.slug))
            if (run.state.manifest, run.state.target) != (manifest_folder.name, target.slug):
                raise DataError(f"{folder / 'journal'} belongs to another run: restore the right one from a backup")
            if not begun:  # after the journal, so that every run.json has a journal beside it
                store.write(path, msgspec.json.format(msgspec.json.encode(run_file), indent=1))
            yield run
        finally:
            run._close()


def _without_emulator_url(target: Target) -> Target:
    """The target as run.json has it: the address of an emulator changes with every start."""
    return msgspec.structs.replace(target, base_url=None) if target.emulated else target


def read_run(path: Path) -> RunFile:
    """Read a run.json, and check that it belongs to the journal beside it."""
    try:
        found = msgspec.json.decode(content(path), type=RunFile)
        first = _first_event(path.with_name("journal"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): restore it from a backup") from None
    if found.format != events.FORMAT:
        raise DataError(f"{path} does not have format {events.FORMAT}: use the version of batchbench that wrote it")
    for event in first:
        if isinstance(event, Opened) and (event.manifest, event.target) != (found.manifest, found.target.slug):
            raise DataError(f"{path} does not fit the journal beside it: restore it from a backup")
    return found


def _first_event(path: Path) -> list[AnyEvent]:
    if not os.path.lexists(path):
        return []  # the process was killed before it wrote the first line
    with reading(path) as file:
        return journal.read(file.readline(), str(path)).events


def read_state(folder: Path) -> RunState:
    """The state of a run according to its journal."""
    return journal.replay(read_journal(folder / "journal").events)


def read_journal(path: Path) -> JournalContent:
    """Read the journal in a file."""
    try:
        return journal.read(content(path), str(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} has an event that this version does not know ({error})") from None


def run_folders(store: Store) -> list[Path]:
    """The folder of every run under the home."""
    found = sorted(path.parent for path in store.cache.glob("*/*/run.json"))
    for folder in found:
        check_links(folder)
    return found


def find_run(store: Store, manifest_name: str, target_name: str) -> Path:
    """The folder of a run, by the model's name as on the command line or by the path of the folder itself."""
    if (Path(target_name) / "run.json").is_file():
        check_links(Path(target_name))
        return Path(target_name)
    folders = [folder for folder in run_folders(store) if folder.parent.name == manifest_name]
    matching = [folder for folder in folders if read_run(folder / "run.json").target.name == target_name]
    if len(matching) > 1:
        choice = ", ".join(map(str, matching))
        raise UsageError(f"{target_name} has several runs with different settings: name one by its folder ({choice})")
    if not matching:
        known = ", ".join(read_run(folder / "run.json").target.name for folder in folders) or "none yet"
        raise UsageError(
            f"no run of {target_name} on {manifest_name} (there are: {known}): start it with `batchbench run`"
        )
    return matching[0]
