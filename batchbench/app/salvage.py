"""Rebuild damaged runs from what is left of their files and from what the provider has; nothing is bought."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import msgspec

from batchbench.app.contact import Contact, connected, find_contact, price, vouched
from batchbench.app.requests import Options, Voice
from batchbench.app.salvage_target import find_about
from batchbench.compile.manifest import read_manifest
from batchbench.core.money import Price
from batchbench.core.store import Store, content
from batchbench.dispatch.find_batches import (
    LOCAL,
    Search,
    copy_local_results,
    fetch_again,
    find_batches,
    local_batches,
)
from batchbench.errors import BatchbenchError, DataError, LockedError, UsageError
from batchbench.providers import load_provider
from batchbench.providers.target import Target
from batchbench.runs.audit import Finding, audit
from batchbench.runs.events import Exported, Intent, Opened, Salvaged
from batchbench.runs.folder import (
    Run,
    RunFile,
    check_marks,
    describes,
    read_journal,
    read_state,
    unchecked_folders,
    write_marks,
    write_run,
)
from batchbench.runs.journal import replay
from batchbench.runs.reread import remove_analysis
from batchbench.runs.results import SALVAGED, set_aside
from batchbench.runs.salvage.damaged_run import DamagedRun, Evidence
from batchbench.runs.salvage.files import replace_journal
from batchbench.runs.salvage.journal_repair import Survivors, survivors
from batchbench.runs.salvage.rebuild import Rebuilding, Rebuilt

EARLIER = 86_400.0  # seconds before the run's first event from which on batches are listed: clocks differ


class SalvagedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was rebuilt."""

    run: str  # its folder
    model: str
    needed: bool  # False: nothing was damaged, so nothing was changed
    answered: int  # rows with an answer
    missing: int  # rows without an answer that may have been paid for
    lost_lines: int  # of the journal
    unknown: int  # requests that may have been bought, in an unresolved batch
    notes: list[str]
    findings: list[Finding]  # of an audit of the result


def salvage(
    folder: Path, target: Target | None, options: Options, store: Store, voice: Voice, *, offline: bool = False
) -> SalvagedRun:
    """Rebuild the run in a folder. `target` is needed if neither run.json nor the journal has it."""
    with store.locked(folder), _locked_journal(folder / "journal"):
        before = _content(folder / "journal")
        left = _survivors(before, folder)
        about, sound = find_about(folder, left, target, store)
        _check_owner(left, about, folder)
        manifest_folder = store.manifests / about.manifest
        manifest = read_manifest(manifest_folder)
        if manifest is None:
            raise DataError(f"{manifest_folder} does not exist: compile the probe again, then salvage the run")
        run = Run(folder, store, manifest_folder, manifest, about.target)
        for name in ("raw", "answers", "quarantine"):
            (folder / name).mkdir(exist_ok=True)
            store.sweep(folder / name)
        evidence = _evidence(run, left, about, options, voice, offline=offline)
        times = [event.at for event in left.events.values()]
        begun = min([*times, *(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())])
        damaged = DamagedRun(run, left)  # again: results may have been fetched
        rebuilding = Rebuilding(damaged, evidence, load_provider(about.target.provider), _price(options, store, about))
        rebuilt = rebuilding.rebuild(about.run, begun, time.time())
        needed = not left.whole or not sound or rebuilt.events != [*left.events.values()] or bool(rebuilt.unused)
        if needed:
            _write(run, about, before, left, rebuilt, sound=sound)
        _renew_marks(folder, store)
        found = audit(folder, manifest_folder, manifest)
    state = read_state(folder)
    stored = [batch.stored for batch in state.batches.values() if batch.stored]
    return SalvagedRun(
        run=str(folder),
        model=about.target.name,
        needed=needed,
        answered=found.rows,
        missing=sum(stop - start for one in stored for start, stop in one.missing),
        lost_lines=len(damaged.lost),
        unknown=rebuilt.unknown,
        notes=rebuilt.notes if needed else [],
        findings=found.findings,
    )


@contextmanager
def _locked_journal(path: Path) -> Iterator[None]:
    """Hold the lock of the journal itself, if it exists, as a run does."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LockedError(f"{path} is in use by another process: wait for it or stop it") from None
    finally:
        os.close(handle)


def _content(path: Path) -> bytes:
    return content(path) if os.path.lexists(path) else b""


def _survivors(journal: bytes, folder: Path) -> Survivors:
    try:
        return survivors(journal)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{folder / 'journal'} has an event that this version does not know ({error})") from None


def _check_owner(left: Survivors, about: RunFile, folder: Path) -> None:
    opened = left.events.get(0)
    if isinstance(opened, Opened) and not describes(opened, about):
        raise DataError(f"{folder / 'journal'} belongs to another run: restore the right one from a backup")


def _price(options: Options, store: Store, about: RunFile) -> Price | None:
    try:
        return price(options, store, about.target)
    except UsageError:
        return None


# -- what the provider has ---------------------------------------------------------------------------------


def _renew_marks(folder: Path, store: Store) -> None:
    """Make the marks fit the journal: whatever it was, it has everything now that could be found."""
    written = read_journal(folder / "journal")
    run_id = replay(written.events).run
    try:
        check_marks(folder, store, run_id, written)
    except DataError:
        write_marks(folder, store, run_id, len(written.events), written.crc)


def _evidence(run: Run, left: Survivors, about: RunFile, options: Options, voice: Voice, *, offline: bool) -> Evidence:
    """Ask the provider, unless the batches are on this machine; fetch results again that are damaged or gone."""
    damaged = DamagedRun(run, left)
    if run.target.provider in LOCAL:
        copy_local_results(damaged)
        return local_batches(run)
    if offline:
        return Evidence(notes=["the provider was not asked (--offline)"] if not left.whole else [])
    try:
        contact = find_contact(options, run.store, vouched(options.base_url, run.target, run.folder))
        with voice.progress(f"looking for batches of {run.target.name}"):
            return anyio.run(_ask, damaged, contact, about, voice)
    except BatchbenchError as error:
        return Evidence(notes=[f"the provider was not asked ({error})"])


async def _ask(damaged: DamagedRun, contact: Contact, about: RunFile, voice: Voice) -> Evidence:
    run = damaged.run
    async with connected(contact, run.store, run.folder, voice) as calls:
        evidence = await find_batches(run, contact.provider, calls, _search(damaged, about, contact))
        notes = await fetch_again(damaged, contact.provider, calls, evidence)
    exported = any(isinstance(event, Exported) for event in damaged.left.events.values())
    complete = evidence.complete and not exported  # an exported batch is in no list
    return msgspec.structs.replace(evidence, complete=complete, notes=[*evidence.notes, *notes])


def _search(damaged: DamagedRun, about: RunFile, contact: Contact) -> Search:
    run, left = damaged.run, damaged.left
    leftovers = [damaged.leftover(nonce) for nonce in damaged.nonces]
    opened = left.events.get(0)
    path = run.folder / "journal"
    newest = path.stat().st_mtime if path.exists() else time.time()
    elsewhere: set[str] = set()
    for folder in unchecked_folders(run.store):
        if folder != run.folder:
            with suppress(DataError):
                elsewhere |= read_state(folder).batches.keys()
    known = {*damaged.nonces, *damaged.replaced} - damaged.untraced
    return Search(
        run_id=opened.run if isinstance(opened, Opened) else about.run,
        known=known,
        without_rows={left.nonce for left in leftovers if left.batch is None} | damaged.replaced.keys(),
        claimed={left.remote: left.nonce for left in leftovers if left.remote},
        elsewhere=elsewhere - known - damaged.untraced,
        since=min((event.at for event in left.events.values()), default=0.0) - EARLIER,
        settled=time.time() - newest >= contact.limits.settle,
    )


# -- the new files -----------------------------------------------------------------------------------------


def _write(run: Run, about: RunFile, before: bytes, left: Survivors, rebuilt: Rebuilt, *, sound: bool) -> None:
    """Replace the journal, and then what belongs to it."""
    history = rebuilt.events
    opened = history[0]
    run_id = opened.run if isinstance(opened, Opened) else about.run
    salvaged = Salvaged(
        at=time.time(),
        lost=left.lost,
        end_lost=left.open_end or not left.events,
        notes=rebuilt.notes,
        inode=_noted_inode(left),
    )
    if not left.whole or history != [*left.events.values()]:
        replace_journal(run, before, history, salvaged, copied=_is_copied(run, left))
    if not sound:
        path = run.folder / "run.json"
        if path.exists():
            set_aside(run, path, f"{SALVAGED}run.json")
        write_run(run.store, path, msgspec.structs.replace(about, run=run_id))
    for path in rebuilt.unused:
        set_aside(run, path, f"{SALVAGED}{path.name}")
    batches = replay(history).batches
    for path in [*(run.folder / "quarantine").iterdir()]:
        if path.name.partition("-")[0].partition(".")[0] not in batches and not path.name.startswith(SALVAGED):
            set_aside(run, path, f"{SALVAGED}{path.name}")
    if rebuilt.changed:
        remove_analysis(run)


def _is_copied(run: Run, left: Survivors) -> bool:
    """Whether the last purchase was noted in another file than the journal at this place."""
    path = run.folder / "journal"
    return not path.exists() or _noted_inode(left) not in ("", str(path.stat().st_ino))


def _noted_inode(left: Survivors) -> str:
    """The inode of the journal when something was last bought, or when it was last rebuilt."""
    noted = [event.inode for event in left.events.values() if isinstance(event, Intent | Salvaged)]
    return next((inode for inode in reversed(noted) if inode), "" if left.events else "unknown")
