"""Import the results of exported requests."""

import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from batchbench import dispatch
from batchbench.app.requests import Voice
from batchbench.compile.manifest import read_manifest
from batchbench.core import money
from batchbench.core.clock import Clock
from batchbench.core.store import Store
from batchbench.errors import DataError
from batchbench.runs.events import Ranges
from batchbench.runs.folder import Run, open_run, read_run, read_state, run_folders


class ImportedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch with imported results."""

    run: str
    batch: str
    file: str
    answered: int
    missing: int
    again: int  # failed for a reason other than the request itself; the next run asks them again
    quarantined: int
    cost_usd: float
    priced: bool = True  # False: the server has no price, so the cost is 0


def import_results(files: Sequence[Path], store: Store, voice: Voice, *, partial: bool) -> list[ImportedBatch]:
    """Import the results in these files into the runs that they belong to; `partial` accepts incomplete batches."""
    sources: dict[str, list[Path]] = {}  # by nonce
    for path in dict.fromkeys(files):
        for nonce in dispatch.nonces(path):
            sources.setdefault(nonce, []).append(path)
    imported: list[ImportedBatch] = []
    for folder in run_folders(store):
        batches = read_state(folder).batches
        own = {nonce: sources.pop(nonce) for nonce in [*sources] if nonce in batches}
        if own:
            imported += _import_run(folder, own, store, voice, partial=partial)
    if not imported:
        names = ", ".join(map(str, files))
        raise DataError(f"no line of {names} answers a request exported from {store.home}: see `batchbench status`")
    return imported


def _import_run(
    folder: Path, sources: dict[str, list[Path]], store: Store, voice: Voice, *, partial: bool
) -> list[ImportedBatch]:
    about = read_run(folder / "run.json")
    manifest_folder = store.manifests / about.manifest
    manifest = read_manifest(manifest_folder)
    if manifest is None:
        raise DataError(f"{manifest_folder} does not exist: compile the probe again")
    with (
        open_run(store, manifest_folder, manifest, about.target, time.time()) as run,
        voice.progress(f"importing results of {about.target.name}"),
    ):
        return anyio.run(_import_batches, run, sources, partial)


async def _import_batches(run: Run, sources: dict[str, list[Path]], partial: bool) -> list[ImportedBatch]:
    imported = []
    for nonce, files in sources.items():
        batch = run.state.batches[nonce]
        stored = await dispatch.import_results(run, batch, files, Clock(), partial=partial)
        imported.append(
            ImportedBatch(
                run=str(run.folder),
                batch=nonce,
                file=batch.file or "",
                answered=stored.answered,
                missing=_count(stored.missing),
                again=_count(stored.again),
                quarantined=stored.quarantined,
                cost_usd=stored.cost / money.MILLION,
                priced=batch.rates is None or batch.rates.priced,
            )
        )
    return imported


def _count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)
