"""Ask the provider to stop the batches of runs."""

import time

import anyio
import msgspec

from batchbench import dispatch
from batchbench.app.contact import Contact, connected, find_contact, vouched
from batchbench.app.requests import Options, Selection, Voice
from batchbench.core.clock import Clock
from batchbench.core.store import Store
from batchbench.providers.target import canonical_name
from batchbench.runs.folder import Run, open_run, run_folders
from batchbench.runs.view import view_run


class CancelledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with batches that are being cancelled."""

    probe: str
    model: str
    cancelling: int  # batches
    unanswered: int  # creates without a reply, which the provider does not list yet


def cancel(selection: Selection, options: Options, store: Store, voice: Voice) -> list[CancelledRun]:
    """Cancel every open batch of the selected runs that exist."""
    done = []
    for folder in run_folders(store):
        view = view_run(store, folder)
        manifest, target = view.manifest, view.target
        named = target.canonical().name in map(canonical_name, selection.models)
        if manifest is None or manifest.probe not in selection.probes or not named:
            continue
        contact = find_contact(options, store, vouched(options.base_url, target, folder))
        with open_run(store, view.manifest_folder, manifest, target, time.time()) as run:
            found = anyio.run(_cancel, run, contact, store, voice)
        done.append(
            CancelledRun(
                probe=manifest.probe,
                model=target.name,
                cancelling=found.cancelling,
                unanswered=found.unanswered,
            )
        )
    return done


async def _cancel(run: Run, contact: Contact, store: Store, voice: Voice) -> dispatch.Cancelled:
    async with connected(contact, store, run.folder, voice) as calls:
        return await dispatch.cancel(run, contact.provider, calls, contact.limits, Clock())
