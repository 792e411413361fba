"""Buying: choose rows, promise the money, upload, create. A create is sent once per intent."""

import math
import secrets
import shutil
from functools import cache, partial

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.clock import time_of_day
from batchbench.core.money import dollars
from batchbench.dispatch.budget import AT_ONCE
from batchbench.dispatch.reconcile import listing, queue_full
from batchbench.dispatch.state import Work, refuse, together
from batchbench.errors import BatchbenchError, BudgetReached, DataError
from batchbench.runs.events import Created, Creating, Failed, Intent, Passed, Ranges, Tried, Uploaded
from batchbench.runs.journal import Batch
from batchbench.runs.progress import IN_FLIGHT, mark, todo
from batchbench.transport.replies import LostReply, ProviderError, Refused, Unsent, failure
from batchbench.transport.retry import GIVE_UP_AFTER, MAX_RATE_LIMITED

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


async def try_out(work: Work) -> None:
    """Ask one harmless question with our parameters, so that a refusal costs one request and not a batch of them."""
    target = work.run.target
    price = work.wish.price.doubled() if work.provider.half_price else work.wish.price
    reserve = price.bound(len(TRIAL) + len(target.system or "") * 4, target.max_tokens)
    async with work.common.deciding:
        affordable = work.affordable()
        if affordable is not None and reserve > affordable:
            raise BudgetReached(_out_of_money(work))
        await work.append(Tried(at=work.now, reserve=reserve))
    try:
        answer = await work.provider.ask(work.api, target, TRIAL)
    except Refused as refused:
        await work.append(Failed(at=work.now, reason=str(refused)))
        raise failure(refused) from None
    except Unsent as error:
        await work.append(Failed(at=work.now, reason=f"not sent: {error}"))
        raise BatchbenchError(f"the provider cannot be reached ({error}): run the same command again later") from None
    except (LostReply, msgspec.DecodeError) as error:
        raise BatchbenchError(f"a first question got no clear answer ({error}): run the same command again") from None
    await work.append(Passed(at=work.now, cost=price.cost(answer.input_tokens, answer.output_tokens)))


async def submit_some(work: Work) -> bool:
    """Fill the queue as far as it goes; whether anything was submitted."""
    busy = False
    if work.wish.trial and not work.run.state.passed and work.unasked:
        await try_out(work)
    if work.unasked and work.provider.upload is None and work.api.provider_time() is None:
        await listing(work, math.inf)  # for what time it is there: a create that gets lost is looked for from then on
    while work.halt is None:
        async with work.account.submitting:
            chunks = []
            for _ in range(min(AT_ONCE, work.account.room(work))):
                planned = await plan(work)
                if planned is None:
                    break
                chunks.append(planned)
            if not chunks:
                return busy
            busy = await together([partial(_submit, work, *chunk) for chunk in chunks], anyio.CapacityLimiter(AT_ONCE))
    return busy


async def plan(work: Work) -> tuple[str, Chunk] | None:
    """Choose the next rows to ask and put the intent on disk; null if there is nothing to ask, or not now."""
    async with work.common.deciding:
        return await _plan(work)


async def _plan(work: Work) -> tuple[str, Chunk] | None:
    queued = sum(batch.rows for batch in work.account.open())
    most = min(work.largest, work.modest)
    if work.limits.queued_requests is not None:
        most = min(most, work.limits.queued_requests - queued)
    # Where a batch cannot carry our name, its size must tell it from our others that time will settle.
    taken = set() if work.provider.names_batches else {batch.rows for batch in work.run.state.pending()}
    most = next((size for size in range(most, 0, -1) if size not in taken), 0)
    for rep, marks in enumerate(work.rows):
        ranges = todo(marks, most)
        if not ranges:
            continue
        nonce = _new_nonce()
        chunk = await to_thread.run_sync(encode, work, nonce, rep, ranges, work.affordable())
        if chunk.rows in taken:
            return None  # the rows that are left would look like a batch that is open: wait for that one
        if chunk.short and work.common.pending():
            return None  # what open batches do not use of their reservations may pay for more
        bought = sum(batch.rows for batch in work.run.state.batches.values() if batch.stored)
        if chunk.rows == 0 or (chunk.short and chunk.rows * CRUMBS < bought):
            work.halt = BudgetReached(_out_of_money(work))
            return None
        if chunk.reserve and _is_copied(work):
            work.halt = DataError(
                f"{work.run.folder} was copied, moved to another disk or restored: if no other copy of it has bought "
                "anything since, or ever will, run the same command with --adopt"
            )
            return None
        _check_disk(work, chunk)
        intent = Intent(
            at=work.now,
            nonce=nonce,
            rep=rep,
            ranges=chunk.ranges,
            rows=chunk.rows,
            reserve=chunk.reserve,
            most=chunk.most,
            place=work.run.place,
        )
        await work.append(intent)
        mark(marks, chunk.ranges, IN_FLIGHT)
        return nonce, chunk
    return None


def encode(work: Work, nonce: str, rep: int, ranges: Ranges, affordable: int | None) -> Chunk:
    """Write requests until the rows, the bytes or the money run out."""
    request = work.provider.encoder(work.run.target)
    fixed, room = len((work.run.target.system or "").encode()), work.limits.bytes

    @cache  # prompts are of a few hundred lengths
    def bound(prompt_bytes: int) -> int:
        return work.wish.price.bound(prompt_bytes + fixed, work.run.target.max_tokens)

    requests: list[bytes] = []
    taken: Ranges = []
    size = reserve = most = 0
    for first, last in ranges:
        start = first
        while start < last:
            stop = min(last, work.run.shard_end(start))
            for row, prompt in enumerate(work.run.prompts(start, stop), start):
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


def _out_of_money(work: Work) -> str:
    budget, spent, held = work.common.budget or 0, work.common.spent(), work.common.reserved()
    return (
        f"the budget of {dollars(budget)} allows no further request ({dollars(spent)} spent, "
        f"{dollars(held)} reserved): raise --budget and run the same command"
    )


def _is_copied(work: Work) -> bool:
    """Whether another copy of the run may have bought, or may yet buy, what is about to be bought here."""
    here, last = work.run.place, work.run.state.place
    return last not in ("", here) and not work.wish.adopt and not work.run.target.emulated


def _check_disk(work: Work, chunk: Chunk) -> None:
    """Do not buy what could not be kept."""
    expected = chunk.rows * (work.run.target.max_tokens * 8 + 1024)
    free = shutil.disk_usage(work.run.folder).free
    if free < expected // 4 + (64 << 20):
        raise BatchbenchError(
            f"{free >> 20} MiB free are too few for the answers: free some space and run the same command"
        )


async def _submit(work: Work, nonce: str, chunk: Chunk) -> None:
    """Buy one batch. The create is sent once; what becomes of it if no answer comes is found out by looking."""
    batch = work.run.state.batches[nonce]
    file = None
    if work.provider.upload is not None:
        try:
            file = await work.provider.upload(work.api, nonce, chunk.requests)
        except BatchbenchError as error:
            await refuse(work, batch, str(error))
            if isinstance(error, ProviderError) and error.refused.verdict == "split":
                _split(work, batch, error)
            else:
                work.halt = error  # what is running is still collected
            return
        except msgspec.DecodeError as error:
            await refuse(work, batch, f"the upload's answer makes no sense: {error}")
            await _wait_out(work, BatchbenchError(f"the provider's answers to uploads make no sense ({error})"), 0.0)
            return
        await work.append(Uploaded(at=work.now, nonce=nonce, file=file))
    creating = Creating(
        at=work.now,
        nonce=nonce,
        uptime=work.uptime,
        there=work.api.provider_time(),
        boot=work.clock.boot,
        key=work.signature,
    )
    await work.append(creating)
    no: Refused | None = None
    # From here to the next event, nothing may tear us away from the answer.
    with anyio.CancelScope(shield=True):
        try:
            remote = await work.provider.create(work.api, nonce, file, chunk.requests)
        except Refused as refused:
            no = refused
            await refuse(work, batch, str(refused))
        except Unsent as error:
            await refuse(work, batch, f"not sent: {error}")
            work.halt = BatchbenchError(f"the provider cannot be reached ({error}): run the same command again later")
        except (LostReply, msgspec.DecodeError) as error:
            work.lost[nonce] = work.uptime  # `creating` stands: the next round looks for it
            _unheard(work, batch, error)
        else:
            await work.append(Created(at=work.now, nonce=nonce, remote=remote.id))
            work.refused_since = None
    if no is not None:
        await _refused(work, batch, no)


def _unheard(work: Work, batch: Batch, error: Exception) -> None:
    """A create without a proper answer: it is looked for, and made anew if it is not found, but not for ever."""
    first = batch.rep, batch.ranges[0][0]
    times = work.unheard[first] = work.unheard.get(first, 0) + 1
    if times >= (GARBLED if isinstance(error, LostReply) and error.garbled else LOST):
        work.halt = BatchbenchError(
            f"the same requests were sent {times} times and got no proper answer ({error}): see to what stands between "
            "here and the provider, then run the same command"
        )


def _split(work: Work, batch: Batch, problem: BatchbenchError) -> None:
    """Ask for half as much at a time; half of one request is none."""
    if batch.rows == 1:
        work.halt = problem
    work.largest = max(1, batch.rows // 2)


async def _refused(work: Work, batch: Batch, refused: Refused) -> None:
    """A create that the provider answered with no: nothing was bought."""
    match refused.verdict:
        case "slot":
            await queue_full(work, batch, failure(refused))
        case "split":
            _split(work, batch, failure(refused))
        case "retry":
            await _wait_out(work, failure(refused), refused.retry_after or 0.0)
        case _:
            work.halt = failure(refused)


async def _wait_out(work: Work, trouble: BatchbenchError, pause: float) -> None:
    """Nothing is being accepted: wait as long again as that has lasted, and give up when it has lasted too long."""
    work.refused_since = work.refused_since or work.uptime
    lasted = work.uptime - work.refused_since
    limited = isinstance(trouble, ProviderError) and trouble.status == 429
    if lasted > (MAX_RATE_LIMITED if limited else GIVE_UP_AFTER):
        work.halt = trouble
    else:
        soonest, latest = work.limits.poll
        pause = max(pause, soonest, min(lasted, latest))
        since = time_of_day(work.now - lasted)
        await work.pause(pause, f"the provider to accept batches again, which it has not since {since} ({trouble})")


def _new_nonce() -> str:
    """A name for one intent that no other will ever have."""
    return secrets.token_hex(5)
