"""Collecting: every ended batch, whatever the way it ended, is brought to disk, read, and settled."""

from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.money import dollars
from batchbench.dispatch.reconcile import unresolved
from batchbench.dispatch.state import Work
from batchbench.errors import BatchbenchError, BudgetReached
from batchbench.providers.chat import LOST
from batchbench.providers.interface import Remote
from batchbench.runs import results
from batchbench.runs.answers import file_part
from batchbench.runs.events import Part, Ranges, Stored
from batchbench.runs.ingest import Ingested, ingest
from batchbench.runs.journal import Batch
from batchbench.runs.progress import ANSWERED, ATTEMPTS, GIVEN_UP, MISSING, TODO
from batchbench.runs.results import Segment
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused, failure

FETCHES = 5  # how often results that lack something are fetched, each pause three times the one before


async def collect(work: Work, batch: Batch, remote: Remote) -> None:
    """Bring the answers of an ended batch to disk, whatever the way it ended."""
    tries = work.fetches.get(batch.nonce, 0)
    try:
        sealed = await _fetched(work, batch, remote, again=tries > 0)
    except ProviderError as error:
        if not _later(work, batch):
            await unresolved(work, batch, f"its answers cannot be fetched: {error}", [remote.id])
        return
    paths = [work.run.folder / part.file for part in sealed]
    try:
        found = await to_thread.run_sync(ingest, paths, batch, work.provider, work.wish.price)
    except msgspec.DecodeError as error:
        if not _later(work, batch):
            await unresolved(work, batch, f"what the provider says of it makes no sense: {error}", [remote.id])
        return
    if (found.lacking or found.cut) and _later(work, batch):
        return  # a download that was cut looks like this, too: what is missing is not asked again before it is certain
    await keep(work, batch, remote, sealed, found)


def _later(work: Work, batch: Batch) -> bool:
    """Put off a batch whose results lack something, meanwhile others go on; false if that was done often enough."""
    tries = work.fetches[batch.nonce] = work.fetches.get(batch.nonce, 0) + 1
    work.due[batch.nonce] = work.uptime + work.limits.poll[0] * 3 ** (tries - 1)
    return tries < FETCHES


async def keep(work: Work, batch: Batch, remote: Remote, sealed: list[Part], found: Ingested) -> None:
    """Put what was found in sealed result files on record, and settle the batch."""

    def write() -> Part:
        if found.strays:
            work.run.store.write(
                work.run.folder / "quarantine" / f"{batch.nonce}.jsonl", b"\n".join(found.strays) + b"\n"
            )
        return results.write_answers(work.run, batch.nonce, found.answers)

    answers = await to_thread.run_sync(write)
    stored = Stored(
        at=work.now,
        nonce=batch.nonce,
        parts=[*sealed, answers],
        answered=found.answers.height,
        again=found.again,
        missing=found.missing,
        quarantined=len(found.strays),
        cost=found.cost,
        outcomes=found.outcomes,
    )
    await work.append(stored)
    work.collected.append(work.sent_there(batch))
    work.full_since = None
    work.modest = min(work.limits.requests, work.modest * 2)
    work.account.ceiling = min(work.limits.open_batches, work.account.ceiling + 1)
    work.mark(batch, batch.ranges, ANSWERED)
    work.mark(batch, found.missing, MISSING)  # bought again at the next start, if at all: never in circles
    ask_again(work, batch, found.again)
    _judge(work, batch, remote, found)


def ask_again(work: Work, batch: Batch, ranges: Ranges) -> None:
    """Free rows that the provider did not get to; those it has not got to often enough are given up."""
    work.mark(batch, ranges, TODO)
    for start, stop in ranges:
        for row in range(start, stop):
            tries = work.attempts[batch.rep, row] = work.attempts.get((batch.rep, row), 0) + 1
            if tries >= ATTEMPTS:
                work.mark(batch, [(row, row + 1)], GIVEN_UP)


def _judge(work: Work, batch: Batch, remote: Remote, found: Ingested) -> None:
    """Stop before good money follows bad."""
    if found.cost > batch.reserve:
        work.halt = BudgetReached(
            f"batch {remote.id} cost {dollars(found.cost)}, more than the {dollars(batch.reserve)} it could have: "
            "check the price, then run the same command"
        )
    if (remote.provider_status == "cancelled" or "canceled" in found.trouble) and not batch.cancelling:
        work.halt = BatchbenchError(
            f"batch {remote.id} was cancelled by somebody else; its answers are kept: "
            "run the same command to ask the rest again"
        )
    reason, count = found.trouble.most_common(1)[0] if found.trouble else ("", 0)
    stopped = reason.startswith(("batch_expired", "batch_cancelled", "expired", "canceled", LOST))
    if count > max(20, batch.rows // 20) and not stopped:
        work.halt = BatchbenchError(
            f"{count:,} of {batch.rows:,} requests in batch {remote.id} failed alike ({reason[:200]}): "
            "mend this, then run the same command"
        )


async def _fetched(work: Work, batch: Batch, remote: Remote, *, again: bool) -> list[Part]:
    """The result files of a batch, sealed on disk; what is there already is not fetched once more."""
    sealed = []
    for part, path in remote.parts:
        file = work.run.raw(batch.nonce, part)
        if file.exists() and not again:
            sealed.append(await to_thread.run_sync(file_part, file, work.run.folder))
        else:
            sealed.append(await _download(work, batch, part, path))
    return sealed


async def _download(work: Work, batch: Batch, part: str, path: str) -> Part:
    for attempt in range(10):
        segment = Segment(work.run, batch.nonce, part)
        try:
            await work.api.download(path, segment.take, most_bytes(work, batch))
        except anyio.get_cancelled_exc_class():
            segment.drop()  # another download has failed, maybe for want of space
            raise
        except (Refused, Incomplete, *FAILURES) as error:
            segment.drop()
            if isinstance(error, Refused) and error.verdict not in ("retry", "slot"):
                raise failure(error) from None
            if attempt == 9:
                raise BatchbenchError(f"cannot fetch the answers of batch {batch.remote}: {error}") from None
            await work.pause(min(60.0, work.limits.poll[0] * 2**attempt), f"answers that cannot be fetched ({error})")
        else:
            return await to_thread.run_sync(_fuller, work, batch, segment, work.run.raw(batch.nonce, part))
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _fuller(work: Work, batch: Batch, segment: Segment, before: Path) -> Part:
    """Seal what was fetched, unless an earlier copy holds as much: one that was cut must not replace it."""
    if before.exists() and segment.worth <= results.worth(before, batch.nonce):
        segment.drop()
        return file_part(before, work.run.folder)
    return segment.seal()


def most_bytes(work: Work, batch: Batch) -> int:
    """More than the results of a batch can ever be."""
    return max(64 << 20, 4 * batch.rows * (work.run.target.max_tokens * 8 + 4096))
