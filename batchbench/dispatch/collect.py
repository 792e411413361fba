"""Collecting: every ended batch, whatever the way it ended, is brought to disk, read, and settled."""

from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.money import dollars
from batchbench.dispatch.reconcile import unresolved
from batchbench.dispatch.state import Dispatch
from batchbench.errors import BatchbenchError, BudgetReached
from batchbench.providers.chat import LOST
from batchbench.providers.interface import Remote
from batchbench.runs import results
from batchbench.runs.answers import file_part
from batchbench.runs.events import Part, Ranges, Stored
from batchbench.runs.folder import Run
from batchbench.runs.ingest import Ingested, ingest
from batchbench.runs.journal import BatchRecord
from batchbench.runs.progress import ANSWERED, ATTEMPTS, GIVEN_UP, MISSING, TODO
from batchbench.runs.results import Segment
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused, failure

FETCHES = 5  # how often results that lack something are fetched, each pause three times the one before


async def collect(dispatch: Dispatch, batch: BatchRecord, remote: Remote) -> None:
    """Bring the answers of an ended batch to disk, whatever the way it ended."""
    tries = dispatch.fetches.get(batch.nonce, 0)
    try:
        sealed = await _fetched(dispatch, batch, remote, again=tries > 0)
    except ProviderError as error:
        if not _later(dispatch, batch):
            await unresolved(dispatch, batch, f"its answers cannot be fetched: {error}", [remote.id])
        return
    paths = [dispatch.run.folder / part.file for part in sealed]
    try:
        found = await to_thread.run_sync(ingest, paths, batch, dispatch.provider, dispatch.plan.price)
    except msgspec.DecodeError as error:
        if not _later(dispatch, batch):
            await unresolved(dispatch, batch, f"what the provider says of it makes no sense: {error}", [remote.id])
        return
    if (found.lacking or found.cut) and _later(dispatch, batch):
        return  # a download that was cut looks like this, too: what is missing is not asked again before it is certain
    await keep(dispatch, batch, remote, sealed, found)


def _later(dispatch: Dispatch, batch: BatchRecord) -> bool:
    """Put off a batch whose results lack something, meanwhile others go on; false if that was done often enough."""
    tries = dispatch.fetches[batch.nonce] = dispatch.fetches.get(batch.nonce, 0) + 1
    dispatch.due[batch.nonce] = dispatch.uptime + dispatch.limits.poll[0] * 3 ** (tries - 1)
    return tries < FETCHES


async def keep(dispatch: Dispatch, batch: BatchRecord, remote: Remote, sealed: list[Part], found: Ingested) -> None:
    """Put what was found in sealed result files on record, and settle the batch."""
    await dispatch.append(await to_thread.run_sync(write_results, dispatch.run, batch, sealed, found, dispatch.now))
    dispatch.collected.append(dispatch.sent_there(batch))
    dispatch.full_since = None
    dispatch.modest = min(dispatch.limits.requests, dispatch.modest * 2)
    dispatch.queue.ceiling = min(dispatch.limits.open_batches, dispatch.queue.ceiling + 1)
    dispatch.mark(batch, batch.ranges, ANSWERED)
    dispatch.mark(batch, found.missing, MISSING)  # bought again at the next start, if at all: never in circles
    ask_again(dispatch, batch, found.again)
    _judge(dispatch, batch, remote, found)


def write_results(run: Run, batch: BatchRecord, sealed: list[Part], found: Ingested, now: float) -> Stored:
    """Write the answers of a batch to disk; returns the event that the caller has to append."""
    if found.strays:
        run.store.write(run.folder / "quarantine" / f"{batch.nonce}.jsonl", b"\n".join(found.strays) + b"\n")
    answers = results.write_answers(run, batch.nonce, found.answers)
    return Stored(
        at=now,
        nonce=batch.nonce,
        parts=[*sealed, answers],
        answered=found.answers.height,
        again=found.again,
        missing=found.missing,
        quarantined=len(found.strays),
        cost=found.cost,
        outcomes=found.outcomes,
    )


def ask_again(dispatch: Dispatch, batch: BatchRecord, ranges: Ranges) -> None:
    """Free rows that the provider did not get to; those it has not got to often enough are given up."""
    dispatch.mark(batch, ranges, TODO)
    for start, stop in ranges:
        for row in range(start, stop):
            tries = dispatch.account.attempts[batch.rep, row] = dispatch.account.attempts.get((batch.rep, row), 0) + 1
            if tries >= ATTEMPTS:
                dispatch.mark(batch, [(row, row + 1)], GIVEN_UP)


def _judge(dispatch: Dispatch, batch: BatchRecord, remote: Remote, found: Ingested) -> None:
    """Stop before good money follows bad."""
    if found.cost > batch.reserve:
        dispatch.halt = BudgetReached(
            f"batch {remote.id} cost {dollars(found.cost)}, more than the {dollars(batch.reserve)} it could have: "
            "check the price, then run the same command"
        )
    if (remote.word == "cancelled" or "canceled" in found.trouble) and not batch.cancelling:
        dispatch.halt = BatchbenchError(
            f"batch {remote.id} was cancelled by somebody else; its answers are kept: "
            "run the same command to ask the rest again"
        )
    reason, count = found.trouble.most_common(1)[0] if found.trouble else ("", 0)
    stopped = reason.startswith(("batch_expired", "batch_cancelled", "expired", "canceled", LOST))
    if count > max(20, batch.rows // 20) and not stopped:
        dispatch.halt = BatchbenchError(
            f"{count:,} of {batch.rows:,} requests in batch {remote.id} failed alike ({reason[:200]}): "
            "mend this, then run the same command"
        )


async def _fetched(dispatch: Dispatch, batch: BatchRecord, remote: Remote, *, again: bool) -> list[Part]:
    """The result files of a batch, sealed on disk; what is there already is not fetched once more."""
    sealed = []
    for part, path in remote.parts:
        file = dispatch.run.raw(batch.nonce, part)
        if file.exists() and not again:
            sealed.append(await to_thread.run_sync(file_part, file, dispatch.run.folder))
        else:
            sealed.append(await _download(dispatch, batch, part, path))
    return sealed


async def _download(dispatch: Dispatch, batch: BatchRecord, part: str, path: str) -> Part:
    for attempt in range(10):
        segment = Segment(dispatch.run, batch.nonce, part)
        try:
            await dispatch.calls.download(path, segment.take, most_bytes(dispatch, batch))
        except anyio.get_cancelled_exc_class():
            segment.drop()  # another download has failed, maybe for want of space
            raise
        except (Refused, Incomplete, *FAILURES) as error:
            segment.drop()
            if isinstance(error, Refused) and error.verdict not in ("retry", "slot"):
                raise failure(error) from None
            if attempt == 9:
                raise BatchbenchError(f"cannot fetch the answers of batch {batch.remote}: {error}") from None
            seconds = min(60.0, dispatch.limits.poll[0] * 2**attempt)
            await dispatch.pause(seconds, f"answers that cannot be fetched ({error})")
        else:
            return await to_thread.run_sync(_fuller, dispatch, batch, segment, dispatch.run.raw(batch.nonce, part))
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _fuller(dispatch: Dispatch, batch: BatchRecord, segment: Segment, before: Path) -> Part:
    """Seal what was fetched, unless an earlier copy holds as much: one that was cut must not replace it."""
    if before.exists() and segment.worth <= results.worth(before, batch.nonce):
        segment.drop()
        return file_part(before, dispatch.run.folder)
    return segment.seal()


def most_bytes(dispatch: Dispatch, batch: BatchRecord) -> int:
    """More than the results of a batch can ever be."""
    return max(64 << 20, 4 * batch.rows * (dispatch.run.target.max_tokens * 8 + 4096))
