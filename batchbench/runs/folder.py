"""IO: the folder of one run: its lock, its journal, and where everything else of it is.

Write order: the provider's bytes, then the answers, then the journal's `stored`. Whatever the journal does not tell of
has not happened; what it tells of is on disk.
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
from batchbench.core import crash_points as crash
from batchbench.core.store import Store, check_links, content, explained, reading, sync
from batchbench.errors import BatchbenchError, DataError, UsageError
from batchbench.providers.target import Target
from batchbench.runs import events, journal
from batchbench.runs.events import AnyEvent, Opened
from batchbench.runs.journal import JournalContent, RunState


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: what this folder is a run of."""

    format: int = events.FORMAT
    manifest: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\Z")]  # the name of a folder
    target: Target


class Run:
    """An open run: what its journal says, and the one way of adding to it."""

    def __init__(self, folder: Path, store: Store, manifest_folder: Path, manifest: Manifest, target: Target) -> None:
        self.folder = folder
        self.store = store
        self.manifest_folder = manifest_folder
        self.manifest = manifest
        self.target = target
        self.state = RunState()
        self._journal = -1
        self._seq = self._crc = 0
        self._failed: BatchbenchError | None = None  # why nothing can be added any more
        self._shard: tuple[str, pl.Series] | None = None

    def append(self, event: AnyEvent) -> None:
        """Put an event on disk, then into the state; a failure leaves the journal as it was, and ends it for now.

        After a write or sync that failed, only reading the file anew tells what is on disk, which the next start does.
        """
        if self._failed is not None:
            raise self._failed
        name = type(event).__name__.lower()
        crash.point(f"before-{name}")
        line, crc = journal.line(event, self._seq, self._crc)
        start = os.lseek(self._journal, 0, os.SEEK_END)
        try:
            with explained(self.folder / "journal"):
                _write_all(self._journal, line)
                os.fdatasync(self._journal)
        except BatchbenchError as error:
            self._failed = error
            with suppress(OSError):  # then the next start cuts off what is too much
                os.ftruncate(self._journal, start)
            raise
        self._seq, self._crc = self._seq + 1, crc
        self.state.apply(event)
        crash.point(f"after-{name}")

    def _open(self) -> None:
        path = self.folder / "journal"
        with explained(path):
            self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            sync(self.folder)
        found = read_journal(path)
        # What a killed process wrote and never synced counts from here on, and what it left torn is gone for good.
        with explained(path):
            os.ftruncate(self._journal, found.good)
            os.fsync(self._journal)
        self.state = journal.replay(found.events)
        self._seq, self._crc = len(found.events), found.crc

    @property
    def inode(self) -> str:
        """The journal's inode number. A copy has another one; so has a journal that was moved to another disk."""
        return str(os.fstat(self._journal).st_ino)

    def _close(self) -> None:
        os.close(self._journal)

    def raw(self, nonce: str, part: str) -> Path:
        """Where a result file is kept as the provider sent it."""
        return self.folder / "raw" / f"{nonce}-{part}.jsonl.zst"

    def answers(self, nonce: str) -> Path:
        """Where the answers of a batch are kept."""
        return self.folder / "answers" / f"{nonce}.parquet"

    def prompts(self, start: int, stop: int) -> list[str]:
        """The prompts of the rows from `start` to before `stop`, which lie in one shard; their bytes are verified."""
        shard = next(shard for shard in self.manifest.shards if shard.first <= start < shard.first + shard.rows)
        if self._shard is None or self._shard[0] != shard.file:
            path = self.manifest_folder / shard.file
            compiled = content(path)
            if hashlib.sha256(compiled).hexdigest() != shard.file_sha256:
                raise DataError(f"{path} is not what manifest.json says: move the folder away and compile again")
            self._shard = (shard.file, pl.read_parquet(compiled, columns=["prompt"])["prompt"])
        return self._shard[1][start - shard.first : stop - shard.first].to_list()

    def shard_end(self, row: int) -> int:
        """The first row that is no longer in the same shard."""
        return next(shard.first + shard.rows for shard in self.manifest.shards if row < shard.first + shard.rows)


@contextmanager
def open_run(store: Store, manifest_folder: Path, manifest: Manifest, target: Target, now: float) -> Iterator[Run]:
    """The run of a target on a manifest, made if it is new, and nobody else's while it is open."""
    folder = store.cache / manifest_folder.name / target.slug
    with store.locked(folder):
        path = folder / "run.json"
        mine = RunFile(manifest=manifest_folder.name, target=_kept(target))
        begun = path.exists()
        if begun and (theirs := read_run(path)) != mine:
            raise DataError(f"{path} is of another run ({theirs.target.name}): move the folder away")
        for name in ("raw", "answers", "quarantine"):
            with explained(folder / name):
                (folder / name).mkdir(exist_ok=True)
                store.sweep(folder / name)
                sync(folder / name)  # a file that a killed process has just renamed may be built upon
        run = Run(folder, store, manifest_folder, manifest, target)
        run._open()
        try:
            if begun and not run.state.run:
                raise DataError(
                    f"{folder / 'journal'} is gone, and nothing else tells what was bought: restore it from a backup, "
                    "or move the folder away to ask everything anew"
                )
            if not run.state.run:
                run.append(Opened(at=now, run=secrets.token_hex(8), manifest=manifest_folder.name, target=target.slug))
            if (run.state.manifest, run.state.target) != (manifest_folder.name, target.slug):
                raise DataError(f"{folder / 'journal'} belongs to another run: restore the right one from a backup")
            if not begun:  # after the journal, so that a run that has begun has one
                store.write(path, msgspec.json.format(msgspec.json.encode(mine), indent=1))
            yield run
        finally:
            run._close()


def _kept(target: Target) -> Target:
    """What is kept of a target: an emulator's address changes with every start, and is no part of it."""
    return msgspec.structs.replace(target, base_url=None) if target.emulated else target


def read_run(path: Path) -> RunFile:
    """What a run.json says."""
    try:
        found = msgspec.json.decode(content(path), type=RunFile)
        begun = _first_event(path.with_name("journal"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): restore it from a backup") from None
    if found.format != events.FORMAT:
        raise DataError(f"{path} is of another format than {events.FORMAT}: use the version that wrote it")
    for event in begun:
        if isinstance(event, Opened) and (event.manifest, event.target) != (found.manifest, found.target.slug):
            raise DataError(f"{path} is not what the journal beside it was begun for: restore it from a backup")
    return found


def _first_event(path: Path) -> list[AnyEvent]:
    if not os.path.lexists(path):
        return []  # a run that was killed before it began
    with reading(path) as file:
        return journal.read(file.readline(), str(path)).events


def read_state(folder: Path) -> RunState:
    """The state of a run according to its journal."""
    return journal.replay(read_journal(folder / "journal").events)


def read_journal(path: Path) -> JournalContent:
    """The events of a journal on disk."""
    try:
        return journal.read(content(path), str(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} holds an event this version does not know ({error})") from None


def run_folders(store: Store) -> list[Path]:
    """Every run under the home."""
    found = sorted(path.parent for path in store.cache.glob("*/*/run.json"))
    for folder in found:
        check_links(folder)
    return found


def find_run(store: Store, manifest_name: str, target_name: str) -> Path:
    """The run of a model on a manifest, by the model's name on the command line or by the run's own folder."""
    if (Path(target_name) / "run.json").is_file():
        check_links(Path(target_name))
        return Path(target_name)
    there = [folder for folder in run_folders(store) if folder.parent.name == manifest_name]
    mine = [folder for folder in there if read_run(folder / "run.json").target.name == target_name]
    if len(mine) > 1:
        choice = ", ".join(map(str, mine))
        raise UsageError(f"{target_name} has several runs with different settings: name one by its folder ({choice})")
    if not mine:
        known = ", ".join(read_run(folder / "run.json").target.name for folder in there) or "none yet"
        raise UsageError(
            f"no run of {target_name} on {manifest_name} (there are: {known}): start it with `batchbench run`"
        )
    return mine[0]


def _write_all(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
