"""Write requests as files in the provider's format."""

import contextlib
from pathlib import Path

import anyio
import msgspec

from batchbench import dispatch, providers
from batchbench.app.plan import PlannedRun, plan
from batchbench.app.requests import Options, Purchase, Selection
from batchbench.app.run import make_wish, open_planned, parse_resolutions
from batchbench.app.voice import Voice
from batchbench.compile.manifest import SHARD_ROWS
from batchbench.core.clock import Clock
from batchbench.core.keys import Secret
from batchbench.core.store import Store
from batchbench.dispatch import Common, Wish, Work
from batchbench.errors import BatchbenchError
from batchbench.runs.folder import Run
from batchbench.transport.client import Client


class RequestFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of requests."""

    probe: str
    model: str
    file: str
    requests: int


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files that were written, and why there are not more of them."""

    files: list[RequestFile]
    error: BatchbenchError | None


def export(
    selection: Selection, options: Options, purchase: Purchase, folder: Path, store: Store, voice: Voice
) -> ExportResult:
    """Write what is not asked yet to files in `folder`, within one budget for all runs."""
    runs = plan(selection, options, store, voice)
    resolutions = parse_resolutions(purchase, runs, store)
    with contextlib.ExitStack() as stack:
        opened = [(planned, stack.enter_context(open_planned(planned, store))) for planned in runs]
        with voice.progress(f"writing requests to {folder}"):
            return anyio.run(_export, opened, purchase, resolutions, folder, store)


async def _export(
    opened: list[tuple[PlannedRun, Run]],
    purchase: Purchase,
    resolutions: list[tuple[str, str]],
    folder: Path,
    store: Store,
) -> ExportResult:
    budget = Common(purchase.budget)
    works = [
        offline(run, make_wish(planned, purchase, store), planned.options.batch_size or SHARD_ROWS, budget)
        for planned, run in opened
    ]
    for work in works:
        for nonce, answer in resolutions:
            await dispatch.resolve(work, nonce, answer)
    files = [
        RequestFile(probe=work.run.manifest.probe, model=work.run.target.name, file=str(path), requests=requests)
        for work in works
        for path, requests in await dispatch.export(work, folder)
    ]
    return ExportResult(files=files, error=next((work.halt for work in works if work.halt), None))


def offline(run: Run, wish: Wish, size: int, common: Common) -> Work:
    """A dispatch that makes no calls: it has no address, no key, and none of the limits of a provider's queue."""
    provider = providers.load(run.target.provider)
    limits = msgspec.structs.replace(provider.limits, requests=size, queued_requests=None)
    named = msgspec.structs.replace(provider, names_batches=True)  # the file's name contains the nonce
    return Work(run, named, limits, Client(provider, "", Secret("")), wish, Clock(), common)
