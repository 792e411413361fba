"""Find out the state of batches at the provider, and the outcome of creates without a reply."""

from collections.abc import Sequence

import msgspec
from anyio import to_thread

from batchbench.dispatch.budget import AT_ONCE
from batchbench.dispatch.lookup import (
    DAY,
    check_key,
    check_patience,
    list_batches,
    match,
    overdue,
    read_nonces,
    unclaimed,
)
from batchbench.dispatch.queue_limit import estimated_tokens, queue_limit
from batchbench.dispatch.state import SKEW, Dispatch, Stop
from batchbench.errors import BatchbenchError, UnresolvedError
from batchbench.providers.interface import Calls, Provider, Remote
from batchbench.runs.events import Created, Duplicate, Ended, Unresolved, Void
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord, RunState
from batchbench.runs.row_states import TODO
from batchbench.transport.replies import ProviderError
from batchbench.transport.retry import GIVE_UP_AFTER

MAX_COPIES = 8  # batches that are examined as possible copies of one batch, if only results show whose they are
NOT_FOUND_LIMIT = 3  # 404 replies to a batch's id after which a person has to decide


async def poll(dispatch: Dispatch) -> tuple[list[tuple[BatchRecord, Remote]], Stop]:
    """Ask the provider about its open batches; returns those that have ended."""
    ended: list[tuple[BatchRecord, Remote]] = []
    stop: Stop = None
    batches = [batch for batch in dispatch.run.state.open() if batch.state in ("created", "ended") and batch.remote]
    batches = [batch for batch in batches if dispatch.watches[batch.nonce].fetch_at <= dispatch.uptime()]
    listed: dict[str, Remote] = {}
    if len(batches) > AT_ONCE:  # one listing takes fewer calls
        since = min(batch.intended for batch in batches) - SKEW
        listed = {remote.id: remote for remote in await list_batches(dispatch, since) or []}
    for batch in batches:
        remote = listed.get(batch.remote or "") or await _get(dispatch, batch)
        if not isinstance(remote, Remote):
            stop = remote or stop
            continue
        watch = dispatch.watches[batch.nonce]
        watch.not_found_since = watch.unreadable_since = None
        watch.not_found_count = 0
        watch.done = min(remote.done or 0, batch.rows)
        watch.overdue = watch.overdue or overdue(dispatch, remote)
        if remote.state == "rejected" and not _blames_some_lines(batch, remote):
            await dispatch.account.reject(batch, remote.problem)
            problem = BatchbenchError(f"the provider rejected batch {remote.id}: {remote.problem}")
            stop = (await queue_full(dispatch, batch, problem) if remote.slot else problem) or stop
        elif remote.state != "running":
            done = batch.rows if remote.done is None else min(remote.done, batch.rows)
            if (batch.state, batch.provider_status, batch.done) != ("ended", remote.provider_status, done):
                status = remote.provider_status
                await dispatch.append(Ended(at=dispatch.now(), nonce=batch.nonce, status=status, done=done))
            ended.append((dispatch.run.state.batches[batch.nonce], remote))
    return ended, stop


def _blames_some_lines(batch: BatchRecord, remote: Remote) -> bool:
    """Whether a batch was rejected for some of its lines only, so that it would have been accepted without them."""
    lines = remote.refused
    return 0 < len(lines) < batch.rows and all(1 <= number <= batch.rows for number in lines)


async def _get(dispatch: Dispatch, batch: BatchRecord) -> Remote | BatchbenchError | None:
    """Ask about one batch by its id; an error is a reason to stop, None means to ask again later."""
    watch = dispatch.watches[batch.nonce]
    try:
        return await dispatch.provider.get(dispatch.calls, batch.remote or "")
    except ProviderError as error:
        if error.status != 404:
            raise
        check_key(dispatch, batch)
        lasted = watch.not_found(dispatch.uptime())
        if watch.not_found_count >= NOT_FOUND_LIMIT and lasted >= dispatch.limits.settle:
            reason = "the provider does not know the batch any more"
            return await leave_unresolved(dispatch, batch, reason, [batch.remote or ""])
    except msgspec.DecodeError as error:
        watch.unreadable_since = watch.unreadable_since or dispatch.uptime()
        check_patience(dispatch, watch.unreadable_since, f"what the provider says of batch {batch.remote}", error)
    return None


async def queue_full(dispatch: Dispatch, batch: BatchRecord, problem: BatchbenchError) -> Stop:
    """Wait until one of our batches ends. If none is open, try smaller batches, and give up in the end."""
    if (limit := queue_limit(str(problem))) is not None:
        tokens = await to_thread.run_sync(_tokens, dispatch.run, batch)
        dispatch.size.learn(limit, tokens, batch.rows, dispatch.queued())
        if batch.rows > dispatch.max_rows():
            return None  # the next batch fits into what is left of the limit
    if dispatch.queue.full():
        return None
    lasted = dispatch.size.queue_full(batch.rows, dispatch.uptime())
    await dispatch.pause(dispatch.limits.poll[1], "room in the provider's queue")
    return problem if batch.rows == 1 and lasted > GIVE_UP_AFTER else None


def _tokens(run: Run, batch: BatchRecord) -> int:
    """About how many tokens the requests of a batch have."""
    sizes = [len(prompt.encode()) for _, prompt in run.rows(batch.ranges)]
    return estimated_tokens(sum(sizes) + len(sizes) * len((run.target.system or "").encode()), len(sizes))


async def reconcile(dispatch: Dispatch) -> Stop:
    """Find out the outcome of creates without a reply, before anything new is bought."""
    unanswered = [batch for batch in dispatch.run.state.open() if batch.state == "creating"]
    if not unanswered:
        return None
    asked_at, provider_time_known = dispatch.uptime(), dispatch.calls.provider_time() is not None
    settled = {batch.nonce for batch in unanswered if dispatch.unanswered_for(batch) >= dispatch.limits.settle}
    listed = await list_batches(dispatch, min(dispatch.sent_between(batch)[0] for batch in unanswered) - DAY)
    if listed is None:
        return None
    stop: Stop = None
    for batch in unanswered:
        remotes = unclaimed(dispatch, listed)
        found = await match(dispatch, batch, remotes)
        waiting = [one for one in remotes if one.id in found.running and not overdue(dispatch, one)]
        if found.ours:
            await adopt(dispatch, batch, found.ours)
        elif found.unreadable and dispatch.unanswered_for(batch) > dispatch.limits.settle + GIVE_UP_AFTER:
            stop = await leave_unresolved(dispatch, batch, "a batch that may be it cannot be read", found.unreadable)
        elif found.running and not waiting:
            stop = await leave_unresolved(dispatch, batch, "a batch that may be it does not end", found.running)
        elif not waiting and not found.unreadable and batch.nonce in settled and provider_time_known:
            stop = await _absent(dispatch, batch, asked_at) or stop
    return stop


async def _absent(dispatch: Dispatch, batch: BatchRecord, listed_at: float) -> Stop:
    """A create is not in a listing that shows everything accepted. Two such listings prove that it was not accepted.

    If that has happened to the same rows before, the proof may be wrong: the user has to decide.
    """
    check_key(dispatch, batch)
    watch = dispatch.watches[batch.nonce]
    if watch.absent_since is None:
        watch.absent_since = listed_at
    elif listed_at >= watch.absent_since + dispatch.limits.settle:
        reason = "in no listing after the settle time"
        if _was_void(dispatch.run.state, batch):
            lost = f"; its reply was lost: {watch.reply_lost}" if watch.reply_lost else ""
            reason = f"{reason}, like an earlier batch of the same requests{lost}"
            return await leave_unresolved(dispatch, batch, reason, [f"a batch of {batch.rows} requests"])
        now = dispatch.calls.provider_time()
        await dispatch.append(Void(at=dispatch.now(), nonce=batch.nonce, reason=reason, provider_time=now))
        dispatch.mark(batch, batch.ranges, TODO)
    return None


def _was_void(state: RunState, batch: BatchRecord) -> bool:
    """Whether an earlier batch with some of the same rows is void."""
    voids = [one for one in state.batches.values() if one.state == "void" and one.rep == batch.rep]
    return any(
        start < other_stop and other_start < stop
        for void in voids
        for start, stop in batch.ranges
        for other_start, other_stop in void.ranges
    )


async def adopt(dispatch: Dispatch, batch: BatchRecord, ours: list[Remote]) -> None:
    """Record which batch a create made. Something between us and the provider made any others: cancel them."""
    first, *copies = sorted(ours, key=lambda remote: (remote.created, remote.id))
    for copy in copies:
        await disown(dispatch, batch.nonce, copy.id, batch.reserve)
    # Last, because from here on this create is not looked for any more.
    await dispatch.append(found_event(dispatch, batch.nonce, first))


def found_event(dispatch: Dispatch, nonce: str, remote: Remote) -> Created:
    """The event for a batch that a search has shown."""
    key = dispatch.calls.signature(dispatch.run.state.run)
    return Created(at=dispatch.now(), nonce=nonce, remote=remote.id, found=True, key=key)


async def disown(dispatch: Dispatch, nonce: str, remote: str, reserve: int) -> None:
    """Record a second copy of a batch, once, and cancel it unless it is another batch of ours."""
    if remote not in {duplicate.remote for duplicate in dispatch.run.state.duplicates}:
        await dispatch.append(Duplicate(at=dispatch.now(), nonce=nonce, remote=remote, reserve=reserve))
    if remote not in {batch.remote for batch in dispatch.run.state.batches.values()}:
        await stop_batch(dispatch.provider, dispatch.calls, remote)


async def stop_copies(dispatch: Dispatch) -> None:
    """Cancel known copies that may still run: the process that recorded them may have been killed before it could."""
    adopted = {batch.remote for batch in dispatch.run.state.batches.values()}
    for copy in dispatch.run.state.duplicates:
        if dispatch.now() - copy.at < dispatch.limits.window and copy.remote not in adopted:
            await stop_batch(dispatch.provider, dispatch.calls, copy.remote)


async def find_copies(dispatch: Dispatch) -> None:
    """Find and cancel copies of our batches that something between us and the provider has made.

    If only the results identify a batch, wait a short time for a running batch with one of our sizes to end.
    """
    until = dispatch.uptime() + min(dispatch.limits.poll[1], dispatch.limits.settle)
    while dispatch.collected and await _cancel_copies(dispatch) and dispatch.uptime() < until:
        await dispatch.pause(dispatch.limits.poll[0], "a batch that may be a copy of ours to end")


async def _cancel_copies(dispatch: Dispatch) -> bool:
    """Cancel the copies in the provider's list; returns whether a running batch may be one, too."""
    state = dispatch.run.state
    remotes = await list_batches(dispatch, min(one.created for one in dispatch.collected) - SKEW) or []
    remotes = unclaimed(dispatch, remotes)
    if not dispatch.provider.names_batches:
        near = {one.id: one for batch in dispatch.collected for one in _possible_copies(batch, remotes)}
        remotes = list(near.values())
    for name, nonces in (await read_nonces(dispatch, remotes)).items():
        ours = [state.batches[nonce] for nonce in nonces if nonce in state.batches]
        if ours and ours[0].remote is not None:
            await disown(dispatch, ours[0].nonce, name, ours[0].reserve)
    return any(remote.state != "ended" for remote in remotes) and not dispatch.provider.names_batches


def _possible_copies(batch: Remote, remotes: Sequence[Remote]) -> list[Remote]:
    """The batches that look like copies: of the same size, and made at nearly the same time."""
    alike = [one for one in remotes if one.total == batch.total and abs(one.created - batch.created) <= SKEW]
    return sorted(alike, key=lambda one: abs(one.created - batch.created))[:MAX_COPIES]


async def stop_batch(provider: Provider, calls: Calls, remote: str) -> bool:
    """Ask the provider to cancel a batch, unless it has ended; returns whether the provider knows it."""
    try:
        await provider.cancel(calls, remote)
    except ProviderError as error:
        if error.status not in (400, 404, 409):
            raise
        return error.status != 404
    return True


async def leave_unresolved(dispatch: Dispatch, batch: BatchRecord, reason: str, candidates: list[str]) -> Stop:
    """Record that the user has to decide the outcome of a batch."""
    event = Unresolved(
        at=dispatch.now(),
        nonce=batch.nonce,
        reason=reason,
        candidates=candidates,
        provider_time=dispatch.calls.provider_time(),
    )
    await dispatch.append(event)
    return unresolved(dispatch.run.state)


def unresolved(state: RunState) -> UnresolvedError | None:
    """The batches that the user has to decide about, as an error; None if there are no such batches."""
    waiting = [batch for batch in state.open() if batch.state == "unresolved"]
    if not waiting:
        return None
    first = waiting[0]
    text = f"batch {first.nonce}: {first.reason} ({', '.join(first.candidates)})"
    others = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return UnresolvedError(f"{text}{others}: see `batchbench status`, then settle it with --resolve")
