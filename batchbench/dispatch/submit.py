"""Buy batches: choose rows, reserve the money, upload, create. A create is sent once per intent."""

import math
import secrets
import shutil
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import cache, partial

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.clock import time_of_day
from batchbench.core.money import dollars
from batchbench.dispatch.budget import AT_ONCE, Account
from batchbench.dispatch.reconcile import list_batches, queue_full
from batchbench.dispatch.state import Dispatch, Stop
from batchbench.errors import BatchbenchError, BudgetReached, DataError
from batchbench.providers.interface import Provider
from batchbench.runs.events import Created, Creating, Failed, Intent, Passed, Ranges, Tried, Uploaded
from batchbench.runs.folder import Run
from batchbench.runs.journal import IN_FLIGHT, TODO, BatchRecord, mark, todo
from batchbench.transport.replies import LostReply, ProviderError, Refused, Unsent, failure
from batchbench.transport.retry import GIVE_UP_AFTER, MAX_RATE_LIMITED

MIN_FINAL_BATCH = 20  # the last batch that a budget allows is not bought if it adds less than 1/20 to the stored rows
MAX_GARBLED, MAX_LOST = 2, 5  # creates of the same requests that may arrive damaged, or get no reply
TRIAL = "Please answer with the word OK."


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that fit into one batch and into the budget."""

    ranges: Ranges
    rows: int
    reserve: int  # micro-dollars, an upper bound for all rows
    max_row_cost: int  # micro-dollars, an upper bound for each row
    requests: list[bytes]
    short: bool = False  # the money ran out before the rows did


async def submit_some(dispatch: Dispatch) -> tuple[bool, Stop]:
    """Buy batches until the queue is full; returns whether any was submitted."""
    account, busy = dispatch.account, False
    if any(watch.not_found_count for watch in dispatch.watches.values()):
        return False, None  # do not buy while the provider does not know a batch of ours
    if dispatch.plan.trial and not dispatch.run.state.passed and account.unasked:
        await _try_out(dispatch)
    if account.unasked and dispatch.provider.upload is None and dispatch.calls.provider_time() is None:
        await list_batches(dispatch, math.inf)  # get the provider's time: the search for a lost create starts there
    while True:
        async with dispatch.queue.submitting:
            chunks, stop = [], None
            for _ in range(min(AT_ONCE, dispatch.queue.room(account))):
                reserved = await next_batch(dispatch)
                if not isinstance(reserved, tuple):
                    stop = reserved
                    break
                chunks.append(reserved)
            if not chunks:
                return busy, stop
            busy = True
            steps = [partial(_submit, dispatch, *chunk) for chunk in chunks]
            stop = await run_all(steps, anyio.CapacityLimiter(AT_ONCE)) or stop
        if stop is not None:
            return busy, stop


async def run_all(steps: Sequence[Callable[[], Awaitable[Stop]]], limiter: anyio.CapacityLimiter) -> Stop:
    """Run steps in parallel, as many as `limiter` allows; returns the last reason to stop."""
    stop: Stop = None

    async def limited(step: Callable[[], Awaitable[Stop]]) -> None:
        nonlocal stop
        async with limiter:
            stop = await step() or stop

    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(limited, step)
    return stop


async def _try_out(dispatch: Dispatch) -> None:
    """Ask one harmless question with our parameters, so that a refusal costs one request and not a whole batch."""
    target = dispatch.run.target
    price = dispatch.plan.price.doubled() if dispatch.provider.half_price else dispatch.plan.price
    reserve = price.bound(len(TRIAL) + len(target.system or "") * 4, target.max_tokens)
    async with dispatch.account.budget.reserving:
        affordable = dispatch.account.budget.affordable(dispatch.account)
        if affordable is not None and reserve > affordable:
            raise _budget_reached(dispatch.account, affordable, 0)
        await dispatch.append(Tried(at=dispatch.now(), reserve=reserve))
    try:
        answer = await dispatch.provider.ask(dispatch.calls, target, TRIAL)
    except Refused as refused:
        await dispatch.append(Failed(at=dispatch.now(), reason=str(refused)))
        raise failure(refused) from None
    except Unsent as error:
        await dispatch.append(Failed(at=dispatch.now(), reason=f"not sent: {error}"))
        raise _unreachable(error) from None
    except (LostReply, msgspec.DecodeError) as error:
        raise BatchbenchError(f"a first question got no clear answer ({error}): run the same command again") from None
    await dispatch.append(Passed(at=dispatch.now(), cost=price.cost(answer.input_tokens, answer.output_tokens)))


async def next_batch(dispatch: Dispatch) -> tuple[str, Chunk] | Stop:
    """Reserve the next batch, of a size that the provider and its queue accept."""
    max_rows = dispatch.size.limit
    if dispatch.limits.queued_requests is not None:
        max_rows = min(max_rows, dispatch.limits.queued_requests - sum(batch.rows for batch in dispatch.queue.open()))
    # If a batch cannot contain our nonce, its size must distinguish it from our other open batches.
    taken = set() if dispatch.provider.names_batches else {batch.rows for batch in dispatch.run.state.pending()}
    return await reserve_batch(dispatch.account, dispatch.provider, max_rows, taken)


async def reserve_batch(
    account: Account, provider: Provider, max_rows: int, taken: Container[int] = ()
) -> tuple[str, Chunk] | Stop:
    """Choose the next rows to ask and put the intent on disk; returns its nonce and its requests.

    `taken` are sizes that the batch must not have. None means: there is nothing to ask now.
    """
    run = account.run
    size = next((size for size in range(max_rows, 0, -1) if size not in taken), 0)
    async with account.budget.reserving:
        rep = next((rep for rep, marks in enumerate(account.rows) if TODO in marks), None)
        if rep is None or not (ranges := todo(account.rows[rep], size)):
            return None
        nonce, affordable = secrets.token_hex(5), account.budget.affordable(account)
        chunk = await to_thread.run_sync(encode, account, provider, nonce, rep, ranges, affordable)
        if chunk.rows in taken:
            return None  # the rows that are left would look like an open batch: wait until that one ends
        if chunk.short and account.budget.pending():
            return None  # open batches may cost less than is reserved for them: wait for that money
        bought = sum(batch.rows for batch in run.state.batches.values() if batch.stored)
        if chunk.rows == 0 or (chunk.short and chunk.rows * MIN_FINAL_BATCH < bought):
            return _budget_reached(account, affordable or 0, chunk.rows)
        if chunk.reserve and _is_copied(account):
            return DataError(
                f"{run.folder} was copied, moved to another disk or restored: if no other copy of it has bought "
                "anything since, or ever will, run the same command with --adopt"
            )
        _check_disk(run, chunk)
        intent = Intent(
            at=account.clock.now(),
            nonce=nonce,
            rep=rep,
            ranges=chunk.ranges,
            rows=chunk.rows,
            reserve=chunk.reserve,
            max_row_cost=chunk.max_row_cost,
            inode=run.inode,
        )
        await account.append(intent)
        mark(account.rows[rep], chunk.ranges, IN_FLIGHT)
        return nonce, chunk


def encode(account: Account, provider: Provider, nonce: str, rep: int, ranges: Ranges, affordable: int | None) -> Chunk:
    """Encode requests until the rows, the bytes or the money run out."""
    target, max_bytes = account.run.target, account.limits.bytes
    request, system_bytes = provider.encoder(target), len((target.system or "").encode())

    @cache  # prompts have only a few hundred different lengths
    def bound(prompt_bytes: int) -> int:
        return account.plan.price.bound(prompt_bytes + system_bytes, target.max_tokens)

    requests: list[bytes] = []
    size = reserve = max_row_cost = 0
    short = False
    for row, prompt in account.run.rows(ranges):
        line = request(f"{nonce}-{row}-{rep}", prompt)
        price = bound(len(prompt.encode()))
        size += len(line)
        if size > max_bytes or (affordable is not None and reserve + price > affordable):
            short = size <= max_bytes
            break
        requests.append(line)
        reserve += price
        if price > max_row_cost:
            max_row_cost = price
    return Chunk(
        ranges=_first_rows(ranges, len(requests)),
        rows=len(requests),
        reserve=reserve,
        max_row_cost=max_row_cost,
        requests=requests,
        short=short,
    )


def _first_rows(ranges: Ranges, count: int) -> Ranges:
    found: Ranges = []
    for start, stop in ranges:
        if count > 0:
            found.append((start, min(stop, start + count)))
        count -= stop - start
    return found


def _budget_reached(account: Account, affordable: int, rows: int) -> BudgetReached:
    budget = account.budget
    return BudgetReached(
        f"{dollars(max(0, affordable))} of the budget of {dollars(budget.limit or 0)} is left for this run "
        f"({dollars(budget.spent())} spent, {dollars(budget.reserved())} reserved), which covers {rows:,} of "
        f"{account.todo():,} more requests at their highest cost: raise --budget and run the same command"
    )


def _unreachable(error: Exception) -> BatchbenchError:
    return BatchbenchError(f"the provider cannot be reached ({error}): run the same command again later")


def _is_copied(account: Account) -> bool:
    """Whether another copy of the run may have bought, or may still buy, the same requests."""
    last = account.run.state.inode
    return last not in ("", account.run.inode) and not account.plan.adopt and not account.run.target.emulated


def _check_disk(run: Run, chunk: Chunk) -> None:
    """Do not buy answers that the disk has no room for."""
    expected = chunk.rows * (run.target.max_tokens * 8 + 1024)
    free = shutil.disk_usage(run.folder).free
    if free < expected // 4 + (64 << 20):
        raise BatchbenchError(
            f"{free >> 20} MiB free are too few for the answers: free some space and run the same command"
        )


async def _submit(dispatch: Dispatch, nonce: str, chunk: Chunk) -> Stop:
    """Buy one batch. The create is sent once; if its reply is lost, `reconcile` finds out the outcome."""
    account, batch, file = dispatch.account, dispatch.run.state.batches[nonce], None
    if dispatch.provider.upload is not None:
        try:
            file = await dispatch.provider.upload(dispatch.calls, nonce, chunk.requests)
        except BatchbenchError as error:
            await account.reject(batch, str(error))
            if isinstance(error, ProviderError) and error.refused.verdict == "split":
                return _split(dispatch, batch, error)
            return error
        except msgspec.DecodeError as error:
            await account.reject(batch, f"the upload's answer makes no sense: {error}")
            problem = BatchbenchError(f"the provider's answers to uploads make no sense ({error})")
            return await _wait_out(dispatch, problem, 0.0)
        await dispatch.append(Uploaded(at=dispatch.now(), nonce=nonce, file=file))
    creating = Creating(
        at=dispatch.now(),
        nonce=nonce,
        uptime=dispatch.uptime(),
        provider_time=dispatch.calls.provider_time(),
        boot=dispatch.clock.boot,
        key=dispatch.calls.signature(dispatch.run.state.run),
    )
    await dispatch.append(creating)
    # From here to the next event, a cancellation must not lose the reply.
    with anyio.CancelScope(shield=True):
        try:
            remote = await dispatch.provider.create(dispatch.calls, nonce, file, chunk.requests)
        except Refused as error:
            refused = error
            await account.reject(batch, str(error))
        except Unsent as error:
            await account.reject(batch, f"not sent: {error}")
            return _unreachable(error)
        except (LostReply, msgspec.DecodeError) as error:
            dispatch.watches[batch.nonce].reply_lost_at = dispatch.uptime()  # the journal's last word is `creating`
            return _reply_lost(dispatch, batch, error)
        else:
            await dispatch.append(Created(at=dispatch.now(), nonce=nonce, remote=remote.id))
            dispatch.refused_since = None
            return None
    return await _refused(dispatch, batch, refused)


def _reply_lost(dispatch: Dispatch, batch: BatchRecord, error: Exception) -> Stop:
    """Count creates of the same requests without a usable reply; stop after too many."""
    first_row = batch.rep, batch.ranges[0][0]
    times = dispatch.lost_creates[first_row] = dispatch.lost_creates.get(first_row, 0) + 1
    if times < (MAX_GARBLED if isinstance(error, LostReply) and error.garbled else MAX_LOST):
        return None
    return BatchbenchError(
        f"the same requests were sent {times} times and got no proper answer ({error}): check what is between here and "
        "the provider (proxy, VPN, firewall), then run the same command"
    )


async def _refused(dispatch: Dispatch, batch: BatchRecord, refused: Refused) -> Stop:
    """React to a create that the provider refused: nothing was bought."""
    match refused.verdict:
        case "slot":
            return await queue_full(dispatch, batch, failure(refused))
        case "split":
            return _split(dispatch, batch, failure(refused))
        case "retry":
            return await _wait_out(dispatch, failure(refused), refused.retry_after or 0.0)
        case _:
            return failure(refused)


def _split(dispatch: Dispatch, batch: BatchRecord, problem: BatchbenchError) -> Stop:
    """Halve the batch size, unless the batch had a single request."""
    dispatch.size.too_large(batch.rows)
    return problem if batch.rows == 1 else None


async def _wait_out(dispatch: Dispatch, problem: BatchbenchError, pause: float) -> Stop:
    """Wait while the provider accepts nothing: as long again as this has lasted, up to a limit."""
    dispatch.refused_since = dispatch.refused_since or dispatch.uptime()
    lasted = dispatch.uptime() - dispatch.refused_since
    limited = isinstance(problem, ProviderError) and problem.status == 429
    if lasted > (MAX_RATE_LIMITED if limited else GIVE_UP_AFTER):
        return problem
    shortest, longest = dispatch.limits.poll
    since = time_of_day(dispatch.now() - lasted)
    reason = f"the provider to accept batches again, which it has not since {since} ({problem})"
    await dispatch.pause(max(pause, shortest, min(lasted, longest)), reason)
    return None
