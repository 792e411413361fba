"""Collect ended batches: download their results, attribute every line to its row, and settle the batch."""

import re

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.money import dollars
from batchbench.dispatch.judge import watch
from batchbench.dispatch.reconcile import leave_unresolved
from batchbench.dispatch.state import Dispatch, Stop
from batchbench.errors import BatchbenchError, BudgetReached
from batchbench.providers.chat import LOST
from batchbench.providers.interface import Remote
from batchbench.runs.events import Part, Ranges
from batchbench.runs.ingest import UNPARSED, Ingested, ingest, write_results
from batchbench.runs.journal import BatchRecord, rows_of
from batchbench.runs.results import Segment, readable_part
from batchbench.runs.row_states import ANSWERED, ATTEMPTS, CANCELLED, GIVEN_UP, MISSING, TODO
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused, failure

PATIENCE = 2  # settle times for which results that lack something are fetched again
# The reason of a refusal by a server that has no page at the address
NO_PAGE = re.compile(
    r"40[45](?: \w+)?: (?:the server sent|(?:file |page )?not found$|method not allowed$)", re.IGNORECASE
)
SHOWN_BYTES = 300  # of a line that cannot be read
MAX_DOWNLOADS = 10  # how often a download that fails is tried


async def collect(dispatch: Dispatch, batch: BatchRecord, remote: Remote) -> Stop:
    """Store the answers of an ended batch, whether it was completed, expired or cancelled."""
    try:
        sealed = await _fetch(dispatch, batch, remote)
        paths = [dispatch.run.folder / part.file for part in sealed]
        found = await to_thread.run_sync(ingest, paths, batch, dispatch.provider)
    except ProviderError as error:
        if _fetch_later(dispatch, batch):
            return None
        return await leave_unresolved(dispatch, batch, f"its answers cannot be fetched: {error}", [remote.id])
    except msgspec.DecodeError as error:
        if _fetch_later(dispatch, batch):
            return None
        reason = f"what the provider says of it makes no sense: {error}"
        return await leave_unresolved(dispatch, batch, reason, [remote.id])
    # The download may have been cut off: fetch it again before rows count as missing.
    if (found.lacking or found.cut) and _fetch_later(dispatch, batch):
        return None
    stored = await to_thread.run_sync(write_results, dispatch.run, batch, sealed, found, dispatch.clock)
    await dispatch.append(stored)
    dispatch.collected.append(remote)
    dispatch.size.stored()
    dispatch.queue.stored()
    dispatch.mark(batch, batch.ranges, ANSWERED)
    dispatch.mark(batch, found.missing, MISSING)  # bought again only after the next start, so there is no endless loop
    ask_again(dispatch, batch, found.again, found.held)
    return _reason_to_stop(batch, remote, found) or await watch(dispatch, found.answers)


def _fetch_later(dispatch: Dispatch, batch: BatchRecord) -> bool:
    """Fetch the results again later; False if that has been tried for long enough."""
    watch, limits = dispatch.watches[batch.nonce], dispatch.limits
    return watch.fetch_later(dispatch.uptime(), limits.poll[0], PATIENCE * limits.settle)


def ask_again(dispatch: Dispatch, batch: BatchRecord, ranges: Ranges, held: Ranges) -> None:
    """Free rows that the provider did not process; give up rows for which that has happened too often.

    Rows that were held back because of the server or the settings are asked again after the next start. Answers that a
    short limit has cut off do not count.
    """
    attempts = dispatch.account.attempts
    if batch.cancelling and not dispatch.plan.again:  # by the user, who has to say whether to ask them again
        dispatch.mark(batch, ranges, CANCELLED)
        return
    dispatch.mark(batch, ranges, TODO)
    dispatch.mark(batch, held, GIVEN_UP)
    stored = dispatch.run.state.batches[batch.nonce].stored
    waiting = {*rows_of(held), *rows_of(stored.cut_off if stored else [])}
    for row in rows_of(ranges):
        if row in waiting:
            continue
        count = attempts[batch.rep, row] = attempts.get((batch.rep, row), 0) + 1
        if count >= ATTEMPTS:
            dispatch.mark(batch, [(row, row + 1)], GIVEN_UP)


def _reason_to_stop(batch: BatchRecord, remote: Remote, found: Ingested) -> Stop:
    """Whether the results of a batch show that it is better not to buy another one like it."""
    many = max(20, batch.rows // 20)
    count = len(rows_of(found.held))
    if count and (count > many or count == batch.rows):  # a few of them are asked again after the next start
        hint = "; check the URL path, for example /v1" if NO_PAGE.match(found.held_reason) else ""
        return BatchbenchError(
            f"{count:,} of {batch.rows:,} requests in batch {remote.id} were refused because of the server or the "
            f"settings ({found.held_reason}{hint}): correct this, then run the same command, which asks them again"
        )
    reason, count = found.failures.most_common(1)[0] if found.failures else ("", 0)
    stopped = reason.startswith(("batch_expired", "batch_cancelled", "expired", "canceled", LOST))
    if count > many and reason == UNPARSED:
        start = " ".join(found.quarantined[0][:SHOWN_BYTES].decode(errors="replace").split())
        return BatchbenchError(
            f"{count:,} of {batch.rows:,} result lines of batch {remote.id} cannot be read ({start} …). They are kept: "
            "`batchbench audit --reread` of a later version may read them; --retry-failed asks again and pays again"
        )
    if count > many and not stopped:
        return BatchbenchError(
            f"{count:,} of {batch.rows:,} requests in batch {remote.id} failed alike ({reason[:200]}): "
            "correct this, then run the same command"
        )
    if (remote.provider_status == "cancelled" or "canceled" in found.failures) and not batch.cancelling:
        return BatchbenchError(
            f"batch {remote.id} was cancelled by someone else; its answers are kept: "
            "run the same command to ask the rest again"
        )
    if found.cost > batch.reserve:
        return BudgetReached(
            f"batch {remote.id} cost {dollars(found.cost)}, more than the {dollars(batch.reserve)} it could have: "
            "check the price, then run the same command"
        )
    return None


async def _fetch(dispatch: Dispatch, batch: BatchRecord, remote: Remote) -> list[Part]:
    """Put the result files of a batch on disk. One on disk is fetched again only if it is damaged or incomplete."""
    limit = max_bytes(dispatch, batch)
    return [await _download(dispatch, batch, name, path, limit) for name, path in remote.parts]


async def _download(dispatch: Dispatch, batch: BatchRecord, name: str, path: str, limit: int) -> Part:
    run = dispatch.run
    file = run.raw(batch.nonce, name)
    kept = await to_thread.run_sync(readable_part, run, file)
    if kept and not dispatch.watches[batch.nonce].fetch_count:
        return kept
    for attempt in range(MAX_DOWNLOADS):
        segment = Segment(run, batch.nonce, name)
        try:
            await dispatch.calls.download(path, segment.take, limit)
            return await to_thread.run_sync(segment.seal_if_fuller)
        except anyio.get_cancelled_exc_class():
            segment.drop()  # another download has failed: the disk may be full
            raise
        except (Refused, Incomplete, *FAILURES) as error:
            segment.drop()
            if isinstance(error, Refused) and error.verdict not in ("retry", "slot"):
                raise failure(error) from None
            if attempt == MAX_DOWNLOADS - 1:
                raise BatchbenchError(f"cannot fetch the answers of batch {batch.remote}: {error}") from None
            seconds = min(60.0, dispatch.limits.poll[0] * 2**attempt)
            await dispatch.pause(seconds, f"answers that cannot be fetched ({error})")
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def max_bytes(dispatch: Dispatch, batch: BatchRecord) -> int:
    """An upper bound for the results of a batch."""
    return max(64 << 20, 4 * batch.rows * (dispatch.run.target.max_tokens * 8 + 4096))
