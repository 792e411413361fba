"""Check every run against its own bytes and, on request, against the provider's list of batches."""

import time
from pathlib import Path

import anyio
import msgspec

from batchbench import providers
from batchbench.app.contact import Contact, connected, find_contact, vouched
from batchbench.app.requests import Options, Voice
from batchbench.core.store import Store
from batchbench.errors import UsageError
from batchbench.runs.audit import Audit, Finding, audit
from batchbench.runs.folder import run_folders
from batchbench.runs.view import RunView, view_run

EARLIER = 600.0  # seconds before the first batch from which on batches are listed: clocks differ


def audit_runs(store: Store, voice: Voice, *, remote: bool = False, base_url: str | None = None) -> list[Audit]:
    """The problems of each run. `base_url` is an address that the user's key may be sent to."""
    audits = []
    folders = run_folders(store)
    with voice.progress("checking", "runs") as report:
        for number, folder in enumerate(folders):
            report(number, len(folders))
            view = view_run(store, folder)
            asked = view.state.asked
            found = audit(folder, view.manifest_folder, view.manifest, asked.rates if asked else None)
            if remote:
                more = _unknown_batches(view, store, voice, base_url)
                found = msgspec.structs.replace(found, findings=[*found.findings, *more])
            audits.append(found)
    return audits


def _unknown_batches(view: RunView, store: Store, voice: Voice, base_url: str | None) -> list[Finding]:
    """Batches at the provider that have a nonce of this run, but are not in its journal."""
    state = view.state
    try:
        contact = find_contact(Options(), store, vouched(base_url, view.target, view.folder))
    except UsageError as error:
        return [Finding(str(view.folder), f"not compared: {error}")]
    since = min((batch.intended for batch in state.batches.values()), default=time.time()) - EARLIER
    known = {batch.remote for batch in state.batches.values()} | {copy.remote for copy in state.duplicates}
    return [
        Finding(f"batch {remote.id}", f"carries our name {remote.nonce} but is not in the journal")
        for remote in anyio.run(_listing, contact, store, voice, view.folder, since)
        if remote.nonce in state.batches and remote.id not in known
    ]


async def _listing(contact: Contact, store: Store, voice: Voice, folder: Path, since: float) -> list[providers.Remote]:
    async with connected(contact, store, folder, voice) as calls:
        return await contact.provider.listing(calls, since)
