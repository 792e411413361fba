"""Coming back: answers that a provider did not hand out with the rest may turn up, for as long as it keeps results.

At a start, batches that were stored with rows missing are looked at again, but not within a day of a look that was in
vain, unless what they lack is about to be bought again. What is new is kept beside what was there; what was there is
never touched. Nothing is asked, so nothing can be paid for twice.
"""

import msgspec
import polars as pl
from anyio import to_thread

from batchbench.dispatch.collect import ask_again, most_bytes
from batchbench.dispatch.state import Dispatch
from batchbench.runs import results
from batchbench.runs.answers import file_part
from batchbench.runs.events import Late, Looked, Part, Ranges
from batchbench.runs.ingest import ingest
from batchbench.runs.journal import BatchRecord
from batchbench.runs.progress import ANSWERED, MISSING, TODO, as_ranges
from batchbench.runs.results import Segment
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused

AGAIN = 86_400.0  # seconds after a look in vain; results are large, and most that are lost stay so
SUFFIX = "late"  # of the names of files; there may be more than one such look at a batch


async def recheck_missing(dispatch: Dispatch) -> None:
    """Fetch the results of batches that lack some once more, and keep what is new."""
    for batch in list(dispatch.run.state.batches.values()):
        in_vain = 0 <= dispatch.now - batch.looked < AGAIN and not dispatch.plan.rebuy_missing
        if batch.stored and batch.remote and not in_vain and _wanted(dispatch, batch):
            await _look(dispatch, batch)


def _wanted(dispatch: Dispatch, batch: BatchRecord) -> list[int]:
    """The rows that a batch lacks and that nobody else has answered or been asked since."""
    marks = dispatch.account.rows[batch.rep] if batch.rep < len(dispatch.account.rows) else b""
    lacked = [row for start, stop in batch.stored.missing for row in range(start, stop)] if batch.stored else []
    return [row for row in lacked if row < len(marks) and marks[row] in (MISSING, TODO)]


async def _look(dispatch: Dispatch, batch: BatchRecord) -> None:
    try:
        remote = await dispatch.provider.get(dispatch.calls, batch.remote or "")
    except (ProviderError, msgspec.DecodeError):
        return  # the provider keeps results for some weeks; then nothing can be done any more
    if remote.state != "ended":
        return
    number = sum(SUFFIX in part.file for part in batch.stored.parts) if batch.stored else 0
    fresh: list[Part] = []
    for name, path in remote.parts:
        part = await _fetched(dispatch, batch, f"{name}-{SUFFIX}{number}", path)
        if part is not None:
            fresh.append(part)
    if not await _keep(dispatch, batch, fresh, number):
        for part in fresh:  # the same as before: the first copy is the record
            (dispatch.run.folder / part.file).unlink()
        if len(fresh) == len(remote.parts):
            await dispatch.append(Looked(at=dispatch.now, nonce=batch.nonce))


async def _fetched(dispatch: Dispatch, batch: BatchRecord, name: str, path: str) -> Part | None:
    """One result file, sealed under a name of its own; null if the provider does not give it. A killed look left it."""
    file = dispatch.run.raw(batch.nonce, name)
    if file.exists():
        return await to_thread.run_sync(file_part, file, dispatch.run.folder)
    segment = Segment(dispatch.run, batch.nonce, name)
    try:
        await dispatch.calls.download(path, segment.take, most_bytes(dispatch, batch))
    except (Refused, Incomplete, *FAILURES):
        segment.drop()
        return None
    return await to_thread.run_sync(segment.seal)


async def _keep(dispatch: Dispatch, batch: BatchRecord, fresh: list[Part], number: int) -> bool:
    """Put answers that were missing on disk; whether there were any."""
    stored = batch.stored
    if stored is None or not fresh:
        return False
    raw = [part for part in stored.parts if part.file.startswith("raw/")]
    paths = [dispatch.run.folder / part.file for part in [*raw, *fresh]]
    found = await to_thread.run_sync(ingest, paths, batch, dispatch.provider, dispatch.plan.price)
    wanted = _wanted(dispatch, batch)
    answers = found.answers.filter(pl.col("id").is_in(wanted))
    undone = sorted(set(_rows(found.again)) & set(wanted))
    if answers.is_empty() and not undone:
        return False
    kept = await to_thread.run_sync(results.write_answers, dispatch.run, f"{batch.nonce}-{SUFFIX}{number}", answers)
    settled = {*answers["id"], *undone}
    late = Late(
        at=dispatch.now,
        nonce=batch.nonce,
        parts=[*fresh, kept],
        again=as_ranges(undone),
        missing=as_ranges([row for row in _rows(stored.missing) if row not in settled]),
        quarantined=0,
        outcomes=dict(answers["outcome"].value_counts().sort("outcome").rows()),
        cost=found.cost,
    )
    await dispatch.append(late)
    dispatch.mark(batch, as_ranges(sorted(answers["id"])), ANSWERED)
    ask_again(dispatch, batch, late.again)
    return True


def _rows(ranges: Ranges) -> list[int]:
    return [row for start, stop in ranges for row in range(start, stop)]
