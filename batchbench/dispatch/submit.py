"""Buying: choose rows, promise the money, upload, create. A create is sent once per intent."""

import math
import secrets
import shutil
from collections.abc import Container
from functools import cache, partial

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.clock import clock_face
from batchbench.core.money import dollars
from batchbench.dispatch.budget import AT_ONCE, Account, Budget
from batchbench.dispatch.reconcile import listing, queue_full
from batchbench.dispatch.state import Dispatch, run_all
from batchbench.errors import BatchbenchError, BudgetReached, DataError
from batchbench.providers.interface import Provider
from batchbench.runs.events import Created, Creating, Failed, Intent, Passed, Ranges, Tried, Uploaded
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord
from batchbench.runs.progress import IN_FLIGHT, mark, todo
from batchbench.transport.client import LIMITED, PATIENCE
from batchbench.transport.replies import LostReply, ProviderError, Refused, Unsent, failure

CRUMBS = 20  # a last batch that adds less than this part of what was bought is not worth waiting a day for
GARBLED, LOST = 2, 5  # how often the same requests may arrive damaged, or leave without an answer to be had
TRIAL = "Please answer with the word OK."


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that fit into one batch and into the budget."""

    ranges: Ranges
    rows: int
    reserve: int
    most: int  # of the reserve, for any one row
    requests: list[bytes]
    short: bool = False  # the money ran out before the rows did


async def try_out(dispatch: Dispatch) -> None:
    """Ask one harmless question with our parameters, so that a refusal costs one request and not a batch of them."""
    target = dispatch.run.target
    price = dispatch.plan.price.doubled() if dispatch.provider.half_price else dispatch.plan.price
    reserve = price.bound(len(TRIAL) + len(target.system or "") * 4, target.max_tokens)
    async with dispatch.account.budget.deciding:
        affordable = dispatch.account.affordable()
        if affordable is not None and reserve > affordable:
            raise BudgetReached(_out_of_money(dispatch.account.budget))
        await dispatch.append(Tried(at=dispatch.now, reserve=reserve))
    try:
        answer = await dispatch.provider.ask(dispatch.calls, target, TRIAL)
    except Refused as refused:
        await dispatch.append(Failed(at=dispatch.now, reason=str(refused)))
        raise failure(refused) from None
    except Unsent as error:
        await dispatch.append(Failed(at=dispatch.now, reason=f"not sent: {error}"))
        raise BatchbenchError(f"the provider cannot be reached ({error}): run the same command again later") from None
    except (LostReply, msgspec.DecodeError) as error:
        raise BatchbenchError(f"a first question got no clear answer ({error}): run the same command again") from None
    await dispatch.append(Passed(at=dispatch.now, cost=price.cost(answer.input_tokens, answer.output_tokens)))


async def submit_some(dispatch: Dispatch) -> bool:
    """Fill the queue as far as it goes; whether anything was submitted."""
    busy = False
    if dispatch.plan.trial and not dispatch.run.state.passed and dispatch.account.unasked:
        await try_out(dispatch)
    if dispatch.account.unasked and dispatch.provider.upload is None and dispatch.calls.now_there() is None:
        await listing(dispatch, math.inf)  # learn the provider's time: a lost create is looked for from then on
    while dispatch.halt is None:
        async with dispatch.queue.submitting:
            chunks = []
            for _ in range(min(AT_ONCE, dispatch.queue.room(dispatch.account))):
                reserved = await next_batch(dispatch)
                if isinstance(reserved, BatchbenchError):
                    dispatch.halt = reserved
                if not isinstance(reserved, tuple):
                    break
                chunks.append(reserved)
            if not chunks:
                return busy
            steps = [partial(_submit, dispatch, *chunk) for chunk in chunks]
            busy = await run_all(steps, anyio.CapacityLimiter(AT_ONCE))
    return busy


async def next_batch(dispatch: Dispatch) -> tuple[str, Chunk] | BatchbenchError | None:
    """Reserve the next batch, of a size that the provider and its queue take."""
    max_rows = min(dispatch.largest, dispatch.modest)
    if dispatch.limits.queued_requests is not None:
        max_rows = min(max_rows, dispatch.limits.queued_requests - sum(batch.rows for batch in dispatch.queue.open()))
    # If a batch cannot carry our name, its size must tell it from our other open batches.
    taken = set() if dispatch.provider.names_batches else {batch.rows for batch in dispatch.run.state.pending()}
    return await reserve_batch(dispatch.account, dispatch.provider, max_rows, taken)


async def reserve_batch(
    account: Account, provider: Provider, max_rows: int, taken: Container[int] = ()
) -> tuple[str, Chunk] | BatchbenchError | None:
    """Choose the next rows to ask and put the intent on disk.

    `taken` are sizes that the batch must not have. An error is the reason why the run buys no more; None means that
    nothing is left to ask, or not now.
    """
    async with account.budget.deciding:
        return await _reserve(account, provider, max_rows, taken)


async def _reserve(
    account: Account, provider: Provider, max_rows: int, taken: Container[int]
) -> tuple[str, Chunk] | BatchbenchError | None:
    run = account.run
    size = next((size for size in range(max_rows, 0, -1) if size not in taken), 0)
    for rep, marks in enumerate(account.rows):
        ranges = todo(marks, size)
        if not ranges:
            continue
        nonce = _new_nonce()
        chunk = await to_thread.run_sync(encode, account, provider, nonce, rep, ranges, account.affordable())
        if chunk.rows in taken:
            return None  # the rows that are left would look like a batch that is open: wait for that one
        if chunk.short and account.budget.pending():
            return None  # what open batches do not use of their reservations may pay for more
        bought = sum(batch.rows for batch in run.state.batches.values() if batch.stored)
        if chunk.rows == 0 or (chunk.short and chunk.rows * CRUMBS < bought):
            return BudgetReached(_out_of_money(account.budget))
        if chunk.reserve and _is_copied(account):
            return DataError(
                f"{run.folder} was copied, moved to another disk or restored: if no other copy of it has bought "
                "anything since, or ever will, run the same command with --adopt"
            )
        _check_disk(run, chunk)
        intent = Intent(
            at=account.now,
            nonce=nonce,
            rep=rep,
            ranges=chunk.ranges,
            rows=chunk.rows,
            reserve=chunk.reserve,
            most=chunk.most,
            place=run.place,
        )
        await account.append(intent)
        mark(marks, chunk.ranges, IN_FLIGHT)
        return nonce, chunk
    return None


def encode(account: Account, provider: Provider, nonce: str, rep: int, ranges: Ranges, affordable: int | None) -> Chunk:
    """Write requests until the rows, the bytes or the money run out."""
    run, target = account.run, account.run.target
    request = provider.encoder(target)
    fixed, room = len((target.system or "").encode()), account.limits.bytes

    @cache  # prompts are of a few hundred lengths
    def bound(prompt_bytes: int) -> int:
        return account.plan.price.bound(prompt_bytes + fixed, target.max_tokens)

    requests: list[bytes] = []
    taken: Ranges = []
    size = reserve = most = 0
    for first, last in ranges:
        start = first
        while start < last:
            stop = min(last, run.shard_end(start))
            for row, prompt in enumerate(run.prompts(start, stop), start):
                line = request(f"{nonce}-{row}-{rep}", prompt)
                # A request is longer than its prompt, so its length bounds the prompt's tokens from above.
                price = bound(len(prompt.encode()))
                if size + len(line) > room or (affordable is not None and reserve + price > affordable):
                    if row > first:
                        taken.append((first, row))
                    short = size + len(line) <= room
                    return Chunk(
                        ranges=taken, rows=len(requests), reserve=reserve, most=most, requests=requests, short=short
                    )
                requests.append(line)
                size += len(line)
                reserve += price
                if price > most:
                    most = price
            start = stop
        taken.append((first, last))
    return Chunk(ranges=taken, rows=len(requests), reserve=reserve, most=most, requests=requests)


def _out_of_money(budget: Budget) -> str:
    return (
        f"the budget of {dollars(budget.limit or 0)} allows no further request ({dollars(budget.spent())} spent, "
        f"{dollars(budget.reserved())} reserved): raise --budget and run the same command"
    )


def _is_copied(account: Account) -> bool:
    """Whether another copy of the run may have bought, or may yet buy, what is about to be bought here."""
    here, last = account.run.place, account.run.state.place
    return last not in ("", here) and not account.plan.adopt and not account.run.target.emulated


def _check_disk(run: Run, chunk: Chunk) -> None:
    """Do not buy what could not be kept."""
    expected = chunk.rows * (run.target.max_tokens * 8 + 1024)
    free = shutil.disk_usage(run.folder).free
    if free < expected // 4 + (64 << 20):
        raise BatchbenchError(
            f"{free >> 20} MiB free are too few for the answers: free some space and run the same command"
        )


async def _submit(dispatch: Dispatch, nonce: str, chunk: Chunk) -> None:
    """Buy one batch. The create is sent once; what becomes of it if no answer comes is found out by looking."""
    batch = dispatch.run.state.batches[nonce]
    file = None
    if dispatch.provider.upload is not None:
        try:
            file = await dispatch.provider.upload(dispatch.calls, nonce, chunk.requests)
        except BatchbenchError as error:
            await dispatch.account.reject(batch, str(error))
            if isinstance(error, ProviderError) and error.refused.verdict == "split":
                _split(dispatch, batch, error)
            else:
                dispatch.halt = error  # what is running is still collected
            return
        except msgspec.DecodeError as error:
            await dispatch.account.reject(batch, f"the upload's answer makes no sense: {error}")
            problem = BatchbenchError(f"the provider's answers to uploads make no sense ({error})")
            await _wait_out(dispatch, problem, 0.0)
            return
        await dispatch.append(Uploaded(at=dispatch.now, nonce=nonce, file=file))
    creating = Creating(
        at=dispatch.now,
        nonce=nonce,
        uptime=dispatch.uptime,
        there=dispatch.calls.now_there(),
        boot=dispatch.clock.boot,
        key=dispatch.signature,
    )
    await dispatch.append(creating)
    no: Refused | None = None
    # From here to the next event, nothing may tear us away from the answer.
    with anyio.CancelScope(shield=True):
        try:
            remote = await dispatch.provider.create(dispatch.calls, nonce, file, chunk.requests)
        except Refused as refused:
            no = refused
            await dispatch.account.reject(batch, str(refused))
        except Unsent as error:
            await dispatch.account.reject(batch, f"not sent: {error}")
            reason = f"the provider cannot be reached ({error}): run the same command again later"
            dispatch.halt = BatchbenchError(reason)
        except (LostReply, msgspec.DecodeError) as error:
            dispatch.lost[nonce] = dispatch.uptime  # `creating` stands: the next round looks for it
            _unheard(dispatch, batch, error)
        else:
            await dispatch.append(Created(at=dispatch.now, nonce=nonce, remote=remote.id))
            dispatch.refused_since = None
    if no is not None:
        await _refused(dispatch, batch, no)


def _unheard(dispatch: Dispatch, batch: BatchRecord, error: Exception) -> None:
    """A create without a proper answer: it is looked for, and made anew if it is not found, but not for ever."""
    first = batch.rep, batch.ranges[0][0]
    times = dispatch.unheard[first] = dispatch.unheard.get(first, 0) + 1
    if times >= (GARBLED if isinstance(error, LostReply) and error.garbled else LOST):
        dispatch.halt = BatchbenchError(
            f"the same requests were sent {times} times and got no proper answer ({error}): see to what stands between "
            "here and the provider, then run the same command"
        )


def _split(dispatch: Dispatch, batch: BatchRecord, problem: BatchbenchError) -> None:
    """Ask for half as much at a time; half of one request is none."""
    if batch.rows == 1:
        dispatch.halt = problem
    dispatch.largest = max(1, batch.rows // 2)


async def _refused(dispatch: Dispatch, batch: BatchRecord, refused: Refused) -> None:
    """A create that the provider answered with no: nothing was bought."""
    match refused.verdict:
        case "slot":
            await queue_full(dispatch, batch, failure(refused))
        case "split":
            _split(dispatch, batch, failure(refused))
        case "retry":
            await _wait_out(dispatch, failure(refused), refused.retry_after or 0.0)
        case _:
            dispatch.halt = failure(refused)


async def _wait_out(dispatch: Dispatch, trouble: BatchbenchError, pause: float) -> None:
    """Nothing is being accepted: wait as long again as that has lasted, and give up when it has lasted too long."""
    dispatch.refused_since = dispatch.refused_since or dispatch.uptime
    lasted = dispatch.uptime - dispatch.refused_since
    limited = isinstance(trouble, ProviderError) and trouble.status == 429
    if lasted > (LIMITED if limited else PATIENCE):
        dispatch.halt = trouble
    else:
        soonest, latest = dispatch.limits.poll
        pause = max(pause, soonest, min(lasted, latest))
        since = clock_face(dispatch.now - lasted)
        await dispatch.pause(pause, f"the provider to accept batches again, which it has not since {since} ({trouble})")


def _new_nonce() -> str:
    """A name for one intent that no other will ever have."""
    return secrets.token_hex(5)
