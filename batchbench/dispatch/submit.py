"""Buy batches: choose rows, reserve the money, upload, create. A create is sent once per intent."""

import math
import shutil
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import cache, partial
from typing import Literal

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.clock import time_of_day
from batchbench.dispatch.budget import AT_ONCE, Account
from batchbench.dispatch.judge import pilot_size, pilot_waits
from batchbench.dispatch.learning import Terms, budget_reached, first_round, full_terms, short_terms
from batchbench.dispatch.lookup import claimed, is_reply_to, list_batches
from batchbench.dispatch.pilot import check_answers
from batchbench.dispatch.queue_limit import names_rate
from batchbench.dispatch.reconcile import queue_full
from batchbench.dispatch.state import Dispatch, Stop
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Order, Provider
from batchbench.runs.events import Created, Creating, Intent, Ranges, Uploaded
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord
from batchbench.runs.nonce import new_nonce
from batchbench.runs.row_states import CUT_OFF, IN_FLIGHT, TODO, mark, todo
from batchbench.transport.replies import LostReply, ProviderError, Refused, Unsent, failure
from batchbench.transport.retry import GIVE_UP_AFTER, MAX_RATE_LIMITED

# A rest of the budget is not spent if it is below this part of it, and below the highest cost of some requests.
MIN_REST, MIN_REQUESTS = 0.03, 20
MAX_GARBLED = 2  # creates of the same requests that may arrive damaged


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that fit into one batch and into the budget."""

    rep: int
    ranges: Ranges
    rows: int
    terms: Terms
    reserve: int  # micro-dollars, an upper bound for all rows
    max_row_cost: int  # micro-dollars, an upper bound for each row
    requests: list[bytes]
    short: bool = False  # the money ran out before the rows did
    next_cost: int = 0  # micro-dollars, an upper bound for the row for which the money ran out


async def submit_some(dispatch: Dispatch) -> tuple[bool, Stop]:
    """Buy batches until the queue is full; returns whether any was submitted."""
    account, busy = dispatch.account, False
    if any(watch.not_found_count for watch in dispatch.watches.values()):
        return False, None  # do not buy while the provider does not know a batch of ours
    if stop := await check_answers(dispatch):
        return False, stop
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


async def next_batch(dispatch: Dispatch) -> tuple[str, Chunk] | Stop:
    """Reserve the next batch, of a size that the provider and its queue accept."""
    account = dispatch.account
    first = first_round(account, account.budget.affordable(account))
    if pilot_waits(dispatch) or (first and dispatch.run.state.pending()):
        return None
    return await reserve_batch(account, dispatch.provider, _max_rows(dispatch), _taken(dispatch), shorten=True)


async def next_size(dispatch: Dispatch) -> int:
    """How many requests the next batch would have; 0 if there is nothing to buy."""
    account = dispatch.account
    affordable = account.budget.affordable(account)
    size, terms = _free_size(_max_rows(dispatch), _taken(dispatch)), short_terms(account, affordable)
    chunk = await to_thread.run_sync(_next_chunk, account, dispatch.provider, "", size, affordable, terms)
    return chunk.rows if chunk else 0


def _max_rows(dispatch: Dispatch) -> int:
    """How many requests the next batch may have; less if it is a pilot, or teaches how long answers are."""
    account = dispatch.account
    sizes = [pilot_size(dispatch), first_round(account, account.budget.affordable(account))]
    return min([dispatch.max_rows(), dispatch.size.limit, *(size for size in sizes if size)])


def _taken(dispatch: Dispatch) -> set[int]:
    """If a batch cannot contain our nonce, its size must distinguish it from our other open batches."""
    return set() if dispatch.provider.names_batches else {batch.rows for batch in dispatch.run.state.pending()}


async def reserve_batch(
    account: Account, provider: Provider, max_rows: int, taken: Container[int] = (), *, shorten: bool = False
) -> tuple[str, Chunk] | Stop:
    """Choose the next rows to ask and put the intent on disk; returns its nonce and its requests.

    `taken` are sizes that the batch must not have; `shorten` allows a short limit of tokens. None means: there is
    nothing to ask now.
    """
    run, size = account.run, _free_size(max_rows, taken)
    if not size:
        return None
    async with account.budget.reserving:
        nonce, affordable = new_nonce(run.state), account.budget.affordable(account)
        terms = short_terms(account, affordable) if shorten else full_terms(account)
        while True:
            chunk = await to_thread.run_sync(_next_chunk, account, provider, nonce, size, affordable, terms)
            if chunk is None:
                return None
            if chunk.rows not in taken:
                break
            size = _free_size(chunk.rows, taken)
        decision = _decide(account, chunk, affordable or 0)
        if decision != "buy":
            return None if decision == "wait" else budget_reached(account, affordable or 0, chunk.next_cost)
        if chunk.reserve and (copied := account.copied()):
            return copied
        _check_disk(run, chunk)
        intent = Intent(
            at=account.clock.now(),
            nonce=nonce,
            rep=chunk.rep,
            ranges=chunk.ranges,
            rows=chunk.rows,
            reserve=chunk.reserve,
            max_row_cost=chunk.max_row_cost,
            max_tokens=chunk.terms.max_tokens,
            tokens_per_byte=chunk.terms.tokens_per_byte,
            inode=run.inode,
            rates=account.plan.price,
        )
        await account.append(intent)
        mark(account.rows[chunk.rep], chunk.ranges, IN_FLIGHT)
        return nonce, chunk


def _free_size(max_rows: int, taken: Container[int]) -> int:
    """The largest batch size that no open batch has; 0 if every size is taken."""
    return next((size for size in range(max_rows, 0, -1) if size not in taken), 0)


def _next_chunk(
    account: Account, provider: Provider, nonce: str, size: int, affordable: int | None, terms: Terms
) -> Chunk | None:
    """The next requests: first those that a short limit has cut off before, unless the money buys none of them."""
    chunk = None
    for state, limited in ((CUT_OFF, msgspec.structs.replace(terms, max_tokens=None)), (TODO, terms)):
        rep = next((rep for rep, marks in enumerate(account.rows) if state in marks), None)
        if rep is not None and (ranges := todo(account.rows[rep], size, state)):
            chunk = encode(account, provider, nonce, rep, ranges, affordable, limited)
            if chunk.rows:
                break
    return chunk


def _decide(account: Account, chunk: Chunk, affordable: int) -> Literal["buy", "wait", "stop"]:
    """Whether to buy a batch, to wait until open batches cost less than is reserved for them, or to stop buying."""
    budget, pending = account.budget, account.run.state.pending()
    settled = len(account.run.state.batches) - len(pending)
    if not pending:
        account.settled_before = settled
    if chunk.short and pending:
        same_round = settled == account.settled_before  # nothing has ended since the first of the open batches
        if not chunk.rows or (not same_round and sum(batch.reserve for batch in pending) > chunk.reserve):
            return "wait"
    shares = not budget.pooled()
    little = affordable < MIN_REST * budget.share(account) and affordable < MIN_REQUESTS * chunk.max_row_cost
    account.short_of_money = chunk.rows == 0 or (chunk.short and little)
    if not account.short_of_money:
        return "buy"
    return "wait" if budget.pending() or (shares and not account.plan.detach) else "stop"


def encode(
    account: Account,
    provider: Provider,
    nonce: str,
    rep: int,
    ranges: Ranges,
    affordable: int | None,
    terms: Terms,
) -> Chunk:
    """Encode requests until the rows, the bytes or the money run out."""
    target, max_bytes = account.run.target, account.limits.bytes
    target = msgspec.structs.replace(target, max_tokens=terms.max_tokens or target.max_tokens)
    request, other_bytes = provider.encoder(target), target.other_bytes

    @cache  # prompts have only a few hundred different lengths
    def bound(prompt_bytes: int) -> int:
        return account.plan.price.bound(prompt_bytes + other_bytes, target.max_tokens, terms.tokens_per_byte)

    requests: list[bytes] = []
    size = reserve = max_row_cost = next_cost = 0
    short = False
    for row, prompt in account.run.rows(ranges):
        line = request(f"{nonce}-{row}-{rep}", prompt)
        price = bound(len(prompt.encode()))
        size += len(line)
        if size > max_bytes or (affordable is not None and reserve + price > affordable):
            short, next_cost = size <= max_bytes, price
            break
        requests.append(line)
        reserve += price
        if price > max_row_cost:
            max_row_cost = price
    return Chunk(
        rep=rep,
        ranges=_first_rows(ranges, len(requests)),
        rows=len(requests),
        terms=terms,
        reserve=reserve,
        max_row_cost=max_row_cost,
        requests=requests,
        short=short,
        next_cost=next_cost,
    )


def _first_rows(ranges: Ranges, count: int) -> Ranges:
    found: Ranges = []
    for start, stop in ranges:
        if count > 0:
            found.append((start, min(stop, start + count)))
        count -= stop - start
    return found


def _unreachable(error: Exception) -> BatchbenchError:
    return BatchbenchError(f"the provider cannot be reached ({error}): run the same command again later")


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
    run, key = dispatch.run, dispatch.calls.signature(dispatch.run.state.run)
    creating = Creating(
        at=dispatch.now(),
        nonce=nonce,
        uptime=dispatch.uptime(),
        provider_time=dispatch.calls.provider_time(),
        boot=dispatch.clock.boot,
        key=key,
    )
    await dispatch.append(creating)
    order = Order(run=run.state.run, nonce=nonce, file=file, requests=chunk.requests)
    # From here to the next event, a cancellation must not lose the reply.
    with anyio.CancelScope(shield=True):
        await account.write_mark()
        try:
            remote = await dispatch.provider.create(dispatch.calls, order)
            if not is_reply_to(run.state.batches[nonce], remote, claimed(dispatch)):
                raise LostReply(f"the reply is about another batch ({remote.id})")
        except Refused as error:
            refused = error
            await account.reject(batch, str(error))
        except Unsent as error:
            await account.reject(batch, f"not sent: {error}")
            return _unreachable(error)
        except (LostReply, msgspec.DecodeError) as error:
            watch = dispatch.watches[batch.nonce]  # the journal's last word is `creating`
            watch.reply_lost_at, watch.reply_lost = dispatch.uptime(), str(error)
            return _reply_lost(dispatch, batch, error)
        else:
            await dispatch.append(Created(at=dispatch.now(), nonce=nonce, remote=remote.id, key=key))
            dispatch.refused_since = None
            return None
    return await _refused(dispatch, batch, refused)


def _reply_lost(dispatch: Dispatch, batch: BatchRecord, error: Exception) -> Stop:
    """Count creates of the same requests that arrived damaged; stop after too many."""
    first_row = batch.rep, batch.ranges[0][0]
    if not isinstance(error, LostReply) or not error.garbled:
        return None
    times = dispatch.garbled[first_row] = dispatch.garbled.get(first_row, 0) + 1
    if times < MAX_GARBLED:
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
        case "retry" if refused.problem.status == 429 and dispatch.queue.open() and not _is_rate(dispatch, refused):
            return await queue_full(dispatch, batch, failure(refused))  # some providers do not name their full queue
        case "retry":
            return await _wait_out(dispatch, failure(refused), refused.retry_after or 0.0)
        case _:
            return failure(refused)


def _is_rate(dispatch: Dispatch, refused: Refused) -> bool:
    """Whether a plain 429 is about the rate of calls: it names a rate or a time to wait, and ends soon."""
    since = dispatch.refused_since
    lasts = since is not None and dispatch.uptime() - since > GIVE_UP_AFTER
    return not lasts and (refused.retry_after is not None or names_rate(str(refused)))


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
