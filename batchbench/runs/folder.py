"""IO: the folder of one run: its lock, its journal, and the paths of its other files.

Write order: the provider's bytes, then the answers, then `stored` in the journal. A step that is not in the journal did
not happen; every file that the journal names is on disk.
"""

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from batchbench.compile.manifest import Manifest, Shard
from batchbench.core import crash_points
from batchbench.core.store import Store, check_links, content, explained, reading, sync
from batchbench.errors import BatchbenchError, DataError, LockedError, UsageError
from batchbench.providers.target import Target, canonical_name
from batchbench.runs import events, journal
from batchbench.runs.events import AnyEvent, Opened, Ranges
from batchbench.runs.journal import JournalContent, RunState

_NONCE = re.compile(r"[0-9a-f]{10,}(?=[-.])")  # at the beginning of a file's name


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: the manifest and the target of a run."""

    format: int = events.FORMAT
    manifest: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\Z")]  # the name of its folder
    target: Target
    run: str = ""  # its random name, as in the journal, which can be lost; empty in older files


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
        self._size = 0  # bytes of the journal that this process has read or written
        self._seq = self._crc = 0
        self._failed: BatchbenchError | None = None  # why nothing can be appended any more
        self._shard: tuple[str, pl.Series] | None = None

    def append(self, event: AnyEvent) -> None:
        """Put an event on disk, then into the state. After a failure, nothing can be appended until the next start.

        If a write or sync fails, it is unknown what is on disk until the file is read again.
        """
        name = type(event).__name__.lower()
        crash_points.point(f"before-{name}")
        self._check_journal()
        line, crc = journal.line(event, self._seq, self._crc)
        size = self._size + len(line)
        try:
            with explained(self.folder / "journal"):
                while line:  # one call, unless the disk is almost full
                    line = line[os.write(self._journal, line) :]
                os.fdatasync(self._journal)
        except BatchbenchError as error:
            self._failed = error
            with suppress(OSError):  # then the next start cuts the torn line off
                os.ftruncate(self._journal, self._size)
            raise
        self._size, self._seq, self._crc = size, self._seq + 1, crc
        self.state.apply(event)
        crash_points.point(f"after-{name}")

    def write_mark(self) -> None:
        """Record the newest line of the journal, beside it and outside the folder: an older journal is recognised."""
        write_marks(self.folder, self.store, self.state.run, self._seq, self._crc)

    def _open(self) -> None:
        path = self.folder / "journal"
        with explained(path):
            self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            sync(self.folder)
            try:  # the file `lock` can be removed while a run works; the journal that is written to cannot
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(
                    f"{path} is in use by another process, whose `lock` was removed: wait for it or stop it"
                ) from None
            self._size = os.fstat(self._journal).st_size
        found = read_journal(path)
        self._check_journal()
        # Sync lines that a killed process wrote but did not sync, and cut its torn line off.
        with explained(path):
            os.ftruncate(self._journal, found.good)
            os.fsync(self._journal)
        self._size = found.good
        self.inode = str(os.fstat(self._journal).st_ino)
        self.state = journal.replay(found.events)
        check_marks(self.folder, self.store, self.state.run, found)
        self._seq, self._crc = len(found.events), found.crc

    def _check_journal(self) -> None:
        """Raise DataError if another program changed the journal, or put another file in its place."""
        if self._failed is not None:
            raise self._failed
        path, ours = self.folder / "journal", os.fstat(self._journal)
        try:
            same_file = os.path.samestat(ours, path.lstat())
        except OSError:  # it was moved or removed
            same_file = False
        if same_file and ours.st_size == self._size:
            return
        what = "was changed" if same_file else "was moved or replaced"
        self._failed = DataError(
            f"{path} {what} by another program while this run used it, so nothing more is sent: end the other "
            "program, restore the journal if `batchbench audit` says so, then run the same command"
        )
        raise self._failed

    def _close(self) -> None:
        if self._journal >= 0:
            os.close(self._journal)  # releases its lock

    def raw(self, nonce: str, part: str) -> Path:
        """The path of a result file as the provider sent it."""
        return self.folder / "raw" / f"{nonce}-{part}.jsonl.zst"

    def prompts(self, start: int, stop: int) -> list[str]:
        """The prompts of rows `start` to `stop - 1`, which are in one shard, after a check of the shard's digest."""
        shard = next(shard for shard in self.manifest.shards if shard.first <= start < shard.first + shard.rows)
        if self._shard is None or self._shard[0] != shard.file:
            self._shard = (shard.file, self._columns(shard, ["prompt"])["prompt"])
        return self._shard[1][start - shard.first : stop - shard.first].to_list()

    def design(self, rows: list[int], columns: list[str]) -> pl.DataFrame:
        """The id and these columns of rows, which are sorted."""
        found = []
        for shard in self.manifest.shards:
            own = [row for row in rows if shard.first <= row < shard.first + shard.rows]
            if own:
                found.append(self._columns(shard, ["id", *columns])[[row - shard.first for row in own]])
        return pl.concat(found)

    def _columns(self, shard: Shard, columns: list[str]) -> pl.DataFrame:
        """Columns of a shard, after a check of its digest."""
        path = self.manifest_folder / shard.file
        compiled = content(path)
        if hashlib.sha256(compiled).hexdigest() != shard.file_sha256:
            raise DataError(f"{path} differs from what manifest.json says: move the folder away and compile again")
        return pl.read_parquet(compiled, columns=columns)

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
    folder = folder_of(store, manifest_folder.name, target)
    with store.locked(folder):
        path = folder / "run.json"
        run_file = RunFile(manifest=manifest_folder.name, target=without_emulator_url(target))
        begun = path.exists()
        if begun and not same_run(found := read_run(path), run_file):
            raise DataError(f"{path} belongs to another run ({found.target.name}): move the folder away")
        run = Run(folder, store, manifest_folder, manifest, target)
        try:
            run._open()
            for name in ("raw", "answers", "quarantine"):  # after the journal is locked: a scratch file may be in use
                with explained(folder / name):
                    (folder / name).mkdir(exist_ok=True)
                    store.sweep(folder / name)
                    sync(folder / name)  # a killed process may have renamed a file without syncing its name
            if begun and not run.state.run:
                raise DataError(
                    f"{folder / 'journal'} is gone, so it is unknown what was bought: {journal.RESTORE}, or move the "
                    "folder away to ask everything again"
                )
            if not run.state.run:
                run.append(_opened(folder, manifest_folder, manifest, target, now))
            if (run.state.manifest, run.state.target) != (manifest_folder.name, folder.name):
                raise DataError(f"{folder / 'journal'} belongs to another run: restore the right one from a backup")
            check_prompts(run.state, manifest_folder, manifest)
            if not begun:  # after the journal, so that every run.json has a journal beside it
                write_run(store, path, msgspec.structs.replace(run_file, run=run.state.run))
            yield run
        finally:
            run._close()


def folder_of(store: Store, manifest_name: str, target: Target) -> Path:
    """The folder of a run, also of one that was begun with another spelling of the same address."""
    parent, wanted = store.cache / manifest_name, target.canonical()
    for slug in (target.slug, wanted.slug):
        if (parent / slug).is_dir():
            return parent / slug
    for path in sorted(parent.glob("*/run.json")):
        with suppress(DataError, ValueError, RecursionError):  # a damaged run is not the one that is looked for
            if msgspec.json.decode(content(path), type=RunFile).target.canonical() == wanted:
                return path.parent
    return parent / wanted.slug


def _opened(folder: Path, manifest_folder: Path, manifest: Manifest, target: Target, now: float) -> Opened:
    return Opened(
        at=now,
        run=secrets.token_hex(8),
        manifest=manifest_folder.name,
        target=folder.name,
        prompts_sha256=manifest.prompts_digest(),
        settings=without_emulator_url(target),
    )


def same_run(found: RunFile, other: RunFile) -> bool:
    """Whether two files are about the same manifest and target."""
    same_target = found.target.canonical() == other.target.canonical()
    return same_target and (found.format, found.manifest) == (other.format, other.manifest)


def write_run(store: Store, path: Path, about: RunFile) -> None:
    """Write a run.json."""
    store.write(path, msgspec.json.format(msgspec.json.encode(about), indent=1))


def check_prompts(state: RunState, manifest_folder: Path, manifest: Manifest) -> None:
    """Raise DataError if a run was asked other prompts than those of the manifest, or in another order."""
    digest = manifest.prompts_digest()
    if state.prompts_sha256 not in ("", digest):
        raise DataError(
            f"{manifest_folder} has other prompts, or another order, than this run was asked (sha256 {digest}, not "
            f"{state.prompts_sha256}): restore it from a backup, or move it away and compile it with the versions of "
            "batchbench and polars that the run was begun with"
        )


def unknown_files(folder: Path, state: RunState) -> list[str]:
    """Files of batches that the journal does not have: it is an older copy than they are."""
    found = [path for name in ("raw", "answers", "quarantine", "spool") for path in (folder / name).glob("*")]
    nonces = {path: _NONCE.match(path.name) for path in found}
    unknown = [path for path, nonce in nonces.items() if nonce and nonce[0] not in state.batches]
    return sorted(str(path.relative_to(folder)) for path in unknown)


def mark_files(folder: Path, store: Store, run: str) -> list[Path]:
    """The two files that hold the number and the checksum of a journal's newest line at the last purchase."""
    return [folder / "mark", store.cache / "marks" / run] if run.isascii() and run.isalnum() else []


def write_marks(folder: Path, store: Store, run: str, lines: int, checksum: int) -> None:
    """Write the two files: how many lines the journal has, and the checksum of the last one."""
    for path in mark_files(folder, store, run):
        store.write(path, b"%d %08x\n" % (lines, checksum))


def orphaned_marks(store: Store, own: str) -> list[Path]:
    """The marks of runs that have bought something under this home, and whose folders are gone."""
    runs = {own}
    for folder in unchecked_folders(store):
        with suppress(DataError):
            runs.add(read_run(folder / "run.json").run)
    marks = sorted((store.cache / "marks").glob("*"))
    return [path for path in marks if path.name.isalnum() and path.name not in runs]


def remotes_elsewhere(run: Run) -> set[str]:
    """The ids at the provider of all batches that the other runs under this home have."""
    found: set[str] = set()
    for folder in unchecked_folders(run.store):
        if folder != run.folder:
            with suppress(DataError):
                found |= read_state(folder).remotes()
    return found


def check_marks(folder: Path, store: Store, run: str, found: JournalContent) -> None:
    """Raise DataError if a journal lacks lines that it had when the run last bought something."""
    for path in mark_files(folder, store, run):
        number, _, checksum = content(path).decode("ascii", "replace").partition(" ") if path.exists() else ("", "", "")
        if not number.isdecimal() or len(number) > 12:
            continue
        lines = int(number)
        if lines > len(found.checksums) or (lines and f"{found.checksums[lines - 1]:08x}" != checksum.strip()):
            raise DataError(
                f"{folder / 'journal'} is an older copy: this run has bought more than it says. Put the newest copy "
                "back, or run `batchbench salvage`, which finds what was bought"
            )


def without_emulator_url(target: Target) -> Target:
    """The target as run.json has it: the address of an emulator changes with every start."""
    return msgspec.structs.replace(target, base_url=None) if target.emulated else target


def read_run(path: Path) -> RunFile:
    """Read a run.json, and check that it belongs to the journal beside it."""
    try:
        found = msgspec.json.decode(content(path), type=RunFile)
        first = _first_event(path.with_name("journal"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): {journal.RESTORE}") from None
    if found.format != events.FORMAT:
        raise DataError(f"{path} does not have format {events.FORMAT}: use the version of batchbench that wrote it")
    for event in first:
        if isinstance(event, Opened) and not describes(event, found):
            raise DataError(f"{path} does not fit the journal beside it: {journal.RESTORE}")
        if isinstance(event, Opened):
            found = msgspec.structs.replace(found, run=event.run)
    return found


def describes(opened: Opened, found: RunFile) -> bool:
    """Whether the first line of a journal fits a run.json."""
    slugs = (found.target.slug, found.target.canonical().slug)
    return opened.manifest == found.manifest and opened.target in slugs and found.run in ("", opened.run)


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
    """The folder of every run under the home; raises DataError if one of them has links in it."""
    found = unchecked_folders(store)
    for folder in found:
        check_links(folder)
    return found


def unchecked_folders(store: Store) -> list[Path]:
    """The folder of every run under the home, also of damaged runs; whoever reads one has to check its links."""
    return sorted(path.parent for path in store.cache.glob("*/*/run.json"))


def find_run(store: Store, manifest_name: str, target_name: str) -> Path:
    """The folder of a run, by the model's name as on the command line or by the path of the folder itself."""
    if (Path(target_name) / "run.json").is_file():
        check_links(Path(target_name))
        return Path(target_name)
    names: dict[Path, str] = {}
    damage: list[DataError] = []  # of runs whose model cannot be read
    for folder in (folder for folder in unchecked_folders(store) if folder.parent.name == manifest_name):
        try:
            check_links(folder)
            names[folder] = read_run(folder / "run.json").target.canonical().name
        except DataError as error:
            damage.append(error)
    matching = [folder for folder, name in names.items() if name in (target_name, canonical_name(target_name))]
    if len(matching) > 1:
        choice = ", ".join(map(str, matching))
        raise UsageError(f"{target_name} has several runs with different settings: name one by its folder ({choice})")
    if not matching and damage:
        raise damage[0]
    if not matching:
        known = ", ".join(names.values()) or "none yet"
        raise UsageError(
            f"no run of {target_name} on {manifest_name} (there are: {known}): start it with `batchbench run`"
        )
    return matching[0]
