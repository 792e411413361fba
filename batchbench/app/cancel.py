"""Ask the provider to stop the batches of runs."""

import time

import anyio
import msgspec

from batchbench import dispatch
from batchbench.app.contact import Contact, connected, find_contact, vouched
from batchbench.app.requests import Options, Selection
from batchbench.app.voice import Voice
from batchbench.compile.manifest import read_manifest
from batchbench.core.clock import Clock
from batchbench.core.store import Store
from batchbench.runs.folder import Run, open_run, read_run, run_folders


class CancelledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose batches are being cancelled."""

    probe: str
    model: str
    cancelling: int  # batches


def cancel(selection: Selection, options: Options, store: Store, voice: Voice) -> list[CancelledRun]:
    """Cancel every open batch of the selected runs that exist."""
    done = []
    for folder in run_folders(store):
        about = read_run(folder / "run.json")
        manifest_folder = store.manifests / about.manifest
        manifest = read_manifest(manifest_folder)
        if manifest is None or manifest.probe not in selection.probes or about.target.name not in selection.models:
            continue
        target = vouched(options.base_url, about.target, folder)
        contact = find_contact(options, store, target)
        with open_run(store, manifest_folder, manifest, target, time.time()) as run:
            count = anyio.run(_cancel, run, contact, store, voice)
        done.append(CancelledRun(probe=manifest.probe, model=target.name, cancelling=count))
    return done


async def _cancel(run: Run, contact: Contact, store: Store, voice: Voice) -> int:
    async with connected(contact, store, run.folder, voice) as calls:
        return await dispatch.cancel(run, contact.provider, calls, Clock())
