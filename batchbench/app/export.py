"""Write requests as files in the provider's format."""

import contextlib
import time
from itertools import product
from pathlib import Path

import anyio
import msgspec

from batchbench import dispatch
from batchbench.app.plan import PlannedRun, plan
from batchbench.app.requests import Options, Purchase, Selection, Voice
from batchbench.app.run import make_plan, open_planned, parse_resolutions
from batchbench.app.spending import with_budget
from batchbench.compile.manifest import SHARD_ROWS
from batchbench.core.clock import Clock
from batchbench.core.store import Store
from batchbench.dispatch import Budget
from batchbench.errors import BatchbenchError, UsageError
from batchbench.providers import load_provider
from batchbench.runs.folder import Run


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
    """Write the requests that are in no batch to files in `folder`, within one budget for all runs."""
    runs = plan(selection, options, store, voice)
    purchase = with_budget(purchase, runs, store, voice)
    resolutions = parse_resolutions(purchase, runs, store)
    with contextlib.ExitStack() as stack:
        opened = [(planned, stack.enter_context(open_planned(planned, store))) for planned in runs]
        for (_, run), (nonce, answer) in product(opened, resolutions):
            _discard(run, nonce, answer)
        with voice.progress(f"writing requests to {folder}"):
            return anyio.run(_export, opened, purchase, folder, store)


def _discard(run: Run, nonce: str, answer: str) -> None:
    """Make an exported batch void. Other decisions need the provider."""
    batch = run.state.batches.get(nonce)
    if batch is None:
        return
    if answer != "void" or batch.state not in ("exported", "void", "stored"):
        raise UsageError(f"--resolve {nonce}={answer}: only `batchbench run` can look this batch up")
    if batch.state == "exported":
        dispatch.discard(run, batch, time.time())


async def _export(opened: list[tuple[PlannedRun, Run]], purchase: Purchase, folder: Path, store: Store) -> ExportResult:
    budget, files, errors = Budget(purchase.limit), list[RequestFile](), list[BatchbenchError]()
    accounts = []
    for planned, run in opened:
        limits = load_provider(run.target.provider).limits
        limits = msgspec.structs.replace(limits, requests=planned.options.batch_size or SHARD_ROWS)
        accounts.append(budget.join(run, make_plan(planned, purchase, store), limits, Clock()))
    for account in accounts:
        probe, model = account.run.manifest.probe, account.run.target.name
        written, error = await dispatch.export(account, folder)
        files += [RequestFile(probe=probe, model=model, file=str(path), requests=count) for path, count in written]
        errors += [error] if error else []
    return ExportResult(files=files, error=next(iter(errors), None))
