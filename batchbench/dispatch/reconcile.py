"""Find out the state of batches at the provider, and the outcome of creates without a reply."""

import msgspec

from batchbench.dispatch.budget import AT_ONCE
from batchbench.dispatch.state import SKEW, Dispatch, Stop
from batchbench.errors import BatchbenchError, UnresolvedError
from batchbench.providers.interface import Calls, Provider, Remote
from batchbench.runs.events import Created, Duplicate, Ended, Foreign, Unresolved, Void
from batchbench.runs.folder import Run
from batchbench.runs.ingest import CUSTOM_ID
from batchbench.runs.journal import TODO, BatchRecord, RunState
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused
from batchbench.transport.retry import GIVE_UP_AFTER

NOT_FOUND_LIMIT = 3  # 404 replies to a batch's id after which a person has to decide
OVERDUE = 3600.0  # seconds past its announced end after which a running batch is reported


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
        watch.done = min(remote.done, batch.rows)
        if remote.expires is not None and (dispatch.calls.provider_time() or dispatch.now()) > remote.expires + OVERDUE:
            watch.overdue = True
        if remote.state == "rejected" and not _blames_some_lines(batch, remote):
            await dispatch.account.reject(batch, remote.problem)
            problem = BatchbenchError(f"the provider rejected batch {remote.id}: {remote.problem}")
            stop = (await queue_full(dispatch, batch, problem) if remote.slot else problem) or stop
        elif remote.state != "running":
            if batch.state != "ended":
                await dispatch.append(Ended(at=dispatch.now(), nonce=batch.nonce, status=remote.provider_status))
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
        lasted = watch.not_found(dispatch.uptime())
        if watch.not_found_count >= NOT_FOUND_LIMIT and lasted >= dispatch.limits.settle:
            reason = "the provider does not know the batch any more"
            return await leave_unresolved(dispatch, batch, reason, [batch.remote or ""])
    except msgspec.DecodeError as error:
        watch.unreadable_since = watch.unreadable_since or dispatch.uptime()
        _check_patience(dispatch, watch.unreadable_since, f"what the provider says of batch {batch.remote}", error)
    return None


async def list_batches(dispatch: Dispatch, since: float) -> list[Remote] | None:
    """List every batch created since then; None if the list cannot be read, so that it proves nothing."""
    try:
        remotes = await dispatch.provider.listing(dispatch.calls, since)
    except (msgspec.DecodeError, ProviderError) as error:
        if isinstance(error, ProviderError) and error.status not in (400, 404):  # the replies to a lost page cursor
            raise
        dispatch.list_unreadable_since = dispatch.list_unreadable_since or dispatch.uptime()
        _check_patience(dispatch, dispatch.list_unreadable_since, "the provider's list of batches", error)
        return None
    dispatch.list_unreadable_since = None
    return remotes


def _check_patience(dispatch: Dispatch, since: float, what: str, error: Exception) -> None:
    """Raise if replies have been unreadable for too long."""
    if dispatch.uptime() - since > GIVE_UP_AFTER:
        raise BatchbenchError(f"{what} makes no sense ({error}): run the same command again later") from None


async def queue_full(dispatch: Dispatch, batch: BatchRecord, problem: BatchbenchError) -> Stop:
    """Wait until one of our batches ends. If none is open, try smaller batches, and give up in the end."""
    if dispatch.queue.full():
        return None
    lasted = dispatch.size.queue_full(batch.rows, dispatch.uptime())
    await dispatch.pause(dispatch.limits.poll[1], "room in the provider's queue")
    return problem if batch.rows == 1 and lasted > GIVE_UP_AFTER else None


async def reconcile(dispatch: Dispatch) -> Stop:
    """Find out the outcome of creates without a reply, before anything new is bought."""
    unanswered = [batch for batch in dispatch.run.state.open() if batch.state == "creating"]
    if not unanswered:
        return None
    asked_at, provider_time_known = dispatch.uptime(), dispatch.calls.provider_time() is not None
    settled = {batch.nonce for batch in unanswered if dispatch.unanswered_for(batch) >= dispatch.limits.settle}
    remotes = await list_batches(dispatch, min(map(dispatch.sent_by_provider_clock, unanswered)))
    if remotes is None:
        return None
    claimed = {batch.remote for batch in dispatch.run.state.batches.values() if batch.remote}
    unclaimed = [remote for remote in remotes if remote.id not in claimed | dispatch.run.state.foreign]
    stop: Stop = None
    for batch in unanswered:
        ours, running, unreadable = await _match(dispatch, batch, unclaimed)
        if ours:
            await _adopt(dispatch, batch, ours)
        elif unreadable and dispatch.unanswered_for(batch) > dispatch.limits.settle + GIVE_UP_AFTER:
            stop = await leave_unresolved(dispatch, batch, "a batch that may be it cannot be read", unreadable)
        elif not running and not unreadable and batch.nonce in settled and provider_time_known:
            stop = await _absent(dispatch, batch, asked_at) or stop
    return stop


async def _absent(dispatch: Dispatch, batch: BatchRecord, listed_at: float) -> Stop:
    """A create is not in a listing that shows everything accepted. Two such listings prove that it was not accepted."""
    watch = dispatch.watches[batch.nonce]
    if watch.absent_since is None:
        watch.absent_since = listed_at
    elif batch.sent and batch.sent.key not in ("", dispatch.calls.signature(dispatch.run.state.run)):
        reason = "not listed, but it was sent with another key than this one"
        return await leave_unresolved(dispatch, batch, reason, [f"a batch of {batch.rows} requests"])
    elif listed_at >= watch.absent_since + min(60.0, dispatch.limits.settle):
        reason = "in no listing after the settle time"
        await dispatch.append(Void(at=dispatch.now(), nonce=batch.nonce, reason=reason))
        dispatch.mark(batch, batch.ranges, TODO)
    return None


async def _match(
    dispatch: Dispatch, batch: BatchRecord, unclaimed: list[Remote]
) -> tuple[list[Remote], bool, list[str]]:
    """Which batches this create made; whether one that still runs may be it; which ended ones cannot be read."""
    if dispatch.provider.names_batches:
        files = {batch.file} - {None}
        return [remote for remote in unclaimed if remote.nonce == batch.nonce or remote.file in files], False, []
    ours, running, unreadable = [], False, list[str]()
    for remote in unclaimed:
        # A provider may report no size at all.
        if remote.total not in (batch.rows, 0, None) or remote.created < dispatch.sent_by_provider_clock(batch):
            continue
        if remote.state != "ended":
            running = True  # only the ids in its results can prove that it is ours
            continue
        nonces = await _nonces(dispatch, remote)
        if batch.nonce in nonces:
            ours.append(remote)
        elif not nonces:
            unreadable.append(remote.id)
        elif not nonces & dispatch.run.state.batches.keys():
            await dispatch.append(Foreign(at=dispatch.now(), remote=remote.id))
    return ours, running, unreadable


async def _nonces(dispatch: Dispatch, remote: Remote) -> set[str]:
    """The nonces in the first results of an ended batch: of several lines, for one may be damaged."""
    try:
        beginning = await dispatch.calls.read_start(remote.parts[0][1])
    except (Refused, Incomplete, *FAILURES):
        return set()
    return {found.decode().partition("-")[0] for found in CUSTOM_ID.findall(beginning)}


async def _adopt(dispatch: Dispatch, batch: BatchRecord, ours: list[Remote]) -> None:
    """Record which batch a create made. Something between us and the provider made any others: cancel them."""
    first, *copies = sorted(ours, key=lambda remote: (remote.created, remote.id))
    for copy in copies:
        await _disown(dispatch, batch, copy.id)
    # Last, because from here on this create is not looked for any more.
    await dispatch.append(Created(at=dispatch.now(), nonce=batch.nonce, remote=first.id, found=True))


async def _disown(dispatch: Dispatch, batch: BatchRecord, remote: str) -> None:
    """Record a second copy of a batch, once, and cancel it."""
    if remote not in {duplicate.remote for duplicate in dispatch.run.state.duplicates}:
        await dispatch.append(Duplicate(at=dispatch.now(), nonce=batch.nonce, remote=remote, reserve=batch.reserve))
    await stop_batch(dispatch.provider, dispatch.calls, remote)


async def stop_copies(dispatch: Dispatch) -> None:
    """Cancel known copies that may still run: the process that recorded them may have been killed before it could."""
    for copy in dispatch.run.state.duplicates:
        if dispatch.now() - copy.at < dispatch.limits.window:
            await stop_batch(dispatch.provider, dispatch.calls, copy.remote)


async def find_copies(dispatch: Dispatch) -> None:
    """Find and cancel copies of our batches that something between us and the provider has made.

    If only the results identify a batch, wait a short time for a running batch with one of our sizes to end.
    """
    until = dispatch.uptime() + dispatch.limits.poll[1]
    while dispatch.collected and await _cancel_copies(dispatch) and dispatch.uptime() < until:
        await dispatch.pause(dispatch.limits.poll[0], "a batch that may be a copy of ours to end")


async def _cancel_copies(dispatch: Dispatch) -> bool:
    """Cancel the copies in the provider's list; returns whether a running batch may be one, too."""
    state, undecided = dispatch.run.state, False
    known = {batch.remote for batch in state.batches.values()} | {copy.remote for copy in state.duplicates}
    sizes = {batch.rows for batch in state.batches.values()}
    for remote in await list_batches(dispatch, min(dispatch.collected)) or []:
        nonces = {remote.nonce or ""}
        if remote.id in known | state.foreign:
            continue
        if not dispatch.provider.names_batches:
            if remote.total not in sizes:
                continue
            if remote.state != "ended":
                undecided = True
                continue
            nonces = await _nonces(dispatch, remote)
        ours = [state.batches[nonce] for nonce in nonces if nonce in state.batches]
        if ours and ours[0].state != "creating":
            await _disown(dispatch, ours[0], remote.id)
        elif nonces and not ours and not dispatch.provider.names_batches:
            await dispatch.append(Foreign(at=dispatch.now(), remote=remote.id))
    return undecided


async def stop_batch(provider: Provider, calls: Calls, remote: str) -> None:
    """Ask the provider to cancel a batch, unless it has ended."""
    try:
        await provider.cancel(calls, remote)
    except ProviderError as error:
        if error.status not in (400, 404, 409):
            raise


async def leave_unresolved(dispatch: Dispatch, batch: BatchRecord, reason: str, candidates: list[str]) -> Stop:
    """Record that the user has to decide the outcome of a batch."""
    await dispatch.append(Unresolved(at=dispatch.now(), nonce=batch.nonce, reason=reason, candidates=candidates))
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


def resolve(run: Run, nonce: str, answer: str, now: float) -> None:
    """Record the user's decision about a batch: `void`, or its id at the provider.

    Call it before the run joins a budget. A batch of another run, or one that is settled, is left as it is.
    """
    batch = run.state.batches.get(nonce)
    if batch is None or batch.state not in ("unresolved", "creating", "exported"):
        return
    if answer == "void":
        run.append(Void(at=now, nonce=nonce, reason="decided by the user"))
    else:
        run.append(Created(at=now, nonce=nonce, remote=answer, found=True))
