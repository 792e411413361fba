"""Fetch missing answers that the provider delivers late: it keeps results for some weeks.

A starting run fetches the results of stored batches with missing rows again. It skips batches that were rechecked
without result within a day, unless their missing rows are about to be bought again. New answers are stored in new
files; old files are never changed. A recheck sends no request to a model, so it costs nothing.
"""

import msgspec
import polars as pl
from anyio import to_thread

from batchbench.dispatch.collect import ask_again, max_bytes
from batchbench.dispatch.state import Dispatch
from batchbench.runs.events import Late, Looked, Part
from batchbench.runs.ingest import as_ranges, ingest
from batchbench.runs.journal import BatchRecord, rows_of
from batchbench.runs.results import Segment, readable_part, write_answers
from batchbench.runs.row_states import ANSWERED, MISSING, TODO
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused

RECHECK_AFTER = 86_400.0  # seconds; results are large, and most missing answers stay missing
SUFFIX = "late"  # in file names, followed by the number of earlier rechecks of the batch that found answers


async def recheck_missing(dispatch: Dispatch) -> None:
    """Fetch the results of batches with missing rows again, and store new answers."""
    for batch in list(dispatch.run.state.batches.values()):
        recent = 0 <= dispatch.now() - batch.rechecked_at < RECHECK_AFTER and not dispatch.plan.rebuy_missing
        if batch.stored and batch.remote and not recent and _still_missing(dispatch, batch):
            await _recheck(dispatch, batch)


def _still_missing(dispatch: Dispatch, batch: BatchRecord) -> list[int]:
    """The missing rows of a batch that no other batch has answered or contains now."""
    rows = dispatch.account.rows
    marks = rows[batch.rep] if batch.rep < len(rows) else b""
    lacking = rows_of(batch.stored.missing) if batch.stored else []
    return [row for row in lacking if row < len(marks) and marks[row] in (MISSING, TODO)]


async def _recheck(dispatch: Dispatch, batch: BatchRecord) -> None:
    try:
        remote = await dispatch.provider.get(dispatch.calls, batch.remote or "")
    except (ProviderError, msgspec.DecodeError):
        return  # the provider may have deleted it by now
    if remote.state != "ended":
        return
    number = sum(SUFFIX in part.file for part in batch.stored.parts) if batch.stored else 0
    fetched = [await _fetch(dispatch, batch, f"{name}-{SUFFIX}{number}", path) for name, path in remote.parts]
    parts = [part for part in fetched if part is not None]
    if not await _keep_new(dispatch, batch, parts, number):
        for part in parts:  # nothing new: keep only the first copy
            (dispatch.run.folder / part.file).unlink()
        if parts and len(parts) == len(remote.parts):
            await dispatch.append(Looked(at=dispatch.now(), nonce=batch.nonce))


async def _fetch(dispatch: Dispatch, batch: BatchRecord, name: str, path: str) -> Part | None:
    """Write one result file to disk; None if the provider has none. It may exist from an interrupted recheck."""
    kept = await to_thread.run_sync(readable_part, dispatch.run, dispatch.run.raw(batch.nonce, name))
    if kept:
        return kept
    segment = Segment(dispatch.run, batch.nonce, name)
    try:
        await dispatch.calls.download(path, segment.take, max_bytes(dispatch, batch))
    except (Refused, Incomplete, *FAILURES):
        segment.drop()
        return None
    return await to_thread.run_sync(segment.seal)


async def _keep_new(dispatch: Dispatch, batch: BatchRecord, fresh: list[Part], number: int) -> bool:
    """Store answers that were missing; returns whether there were any."""
    stored = batch.stored
    if stored is None or not fresh:
        return False
    raw = [part for part in stored.parts if part.file.startswith("raw/")]
    paths = [dispatch.run.folder / part.file for part in [*raw, *fresh]]
    found = await to_thread.run_sync(ingest, paths, batch, dispatch.provider)
    missing = _still_missing(dispatch, batch)
    answers = found.answers.filter(pl.col("id").is_in(missing))
    unprocessed = sorted(set(rows_of(found.again)) & set(missing))
    if answers.is_empty() and not unprocessed:
        return False
    written = await to_thread.run_sync(write_answers, dispatch.run, f"{batch.nonce}-{SUFFIX}{number}", answers)
    settled = {*answers["id"], *unprocessed}
    late = Late(
        at=dispatch.now(),
        nonce=batch.nonce,
        parts=[*fresh, written],
        again=as_ranges(unprocessed),
        cut_off=as_ranges(sorted(set(rows_of(found.cut_off)) & set(missing))),
        missing=as_ranges([row for row in rows_of(stored.missing) if row not in settled]),
        quarantined=0,
        outcomes=dict(answers["outcome"].value_counts().sort("outcome").rows()),
        cost=found.cost,
    )
    await dispatch.append(late)
    dispatch.mark(batch, as_ranges(sorted(answers["id"])), ANSWERED)
    ask_again(dispatch, batch, late.again, [])
    return True
