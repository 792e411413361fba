"""Check every run against its own bytes and, on request, against the provider's list of batches."""

import time
from pathlib import Path

import anyio
import msgspec

from batchbench import providers
from batchbench.app.contact import Contact, connected, find_contact, vouched
from batchbench.app.requests import Options, Voice
from batchbench.core.store import Store
from batchbench.dispatch.lookup import nonces_of
from batchbench.errors import DataError, UsageError
from batchbench.runs.audit import Audit, Finding, audit
from batchbench.runs.folder import open_run, unchecked_folders
from batchbench.runs.nonce import of_run
from batchbench.runs.reread import reread
from batchbench.runs.view import RunView, view_run

EARLIER = 86_400.0  # seconds before the run was opened from which on batches are listed: clocks differ


def audit_runs(
    store: Store, voice: Voice, *, remote: bool = False, base_url: str | None = None, reread_lines: bool = False
) -> list[Audit]:
    """The problems of each run. `base_url` is an address that the user's key may be sent to.

    `reread_lines`: also store what an older version read differently or not at all, without any call.
    """
    audits = []
    folders = unchecked_folders(store)
    with voice.progress("checking", "runs") as report:
        for number, folder in enumerate(folders):
            report(number, len(folders))
            try:
                view = view_run(store, folder)
                found = _audit(view)
                if reread_lines and (found.findings or found.notes) and (recovered := _reread(view, store)):
                    view = view_run(store, folder)
                    found = msgspec.structs.replace(_audit(view), recovered=recovered)
            except DataError as error:
                audits.append(_broken(folder, str(error)))
                continue
            if remote:
                more = _unknown_batches(view, store, voice, base_url)
                found = msgspec.structs.replace(found, findings=[*found.findings, *more])
            audits.append(found)
    return audits


def _broken(folder: Path, error: str) -> Audit:
    """The audit of a run that cannot be read."""
    found = [Finding("run", error)]
    return Audit(run=str(folder), model="", batches=0, rows=0, spent=0, findings=found, error=error)


def _audit(view: RunView) -> Audit:
    return audit(view.folder, view.manifest_folder, view.manifest)


def _reread(view: RunView, store: Store) -> int:
    """Store the lines of a run that are read differently by now; returns how many rows that settles."""
    if view.manifest is None:
        return 0
    with open_run(store, view.manifest_folder, view.manifest, view.target, time.time()) as run:
        return reread(run, providers.load_provider(view.target.provider), time.time())


def _unknown_batches(view: RunView, store: Store, voice: Voice, base_url: str | None) -> list[Finding]:
    """Batches at the provider that carry the name of this run, but are not in its journal."""
    state = view.state
    try:
        contact = find_contact(Options(), store, vouched(base_url, view.target, view.folder))
    except UsageError as error:
        return [Finding(str(view.folder), f"not compared: {error}")]
    listed = anyio.run(_listing, contact, store, voice, view)
    return [
        Finding(f"batch {name}", f"carries our name {nonce} but is not in the journal: run the same command again")
        for name, nonces in listed.items()
        for nonce in nonces
        if nonce in state.batches or of_run(nonce, state)
    ]


async def _listing(contact: Contact, store: Store, voice: Voice, view: RunView) -> dict[str, set[str]]:
    """The nonces of the batches since the run was opened that its journal does not have, by their ids."""
    known = view.state.remotes() | view.state.foreign
    async with connected(contact, store, view.folder, voice) as calls:
        listed = await contact.provider.listing(calls, view.state.opened_at - EARLIER)
        unknown = [remote for remote in listed if remote.id not in known]
        return await nonces_of(contact.provider, calls, unknown, {})
