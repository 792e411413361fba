"""Finding out: what became of batches at the provider's, and of creates that were sent and never answered."""

import msgspec

from batchbench.dispatch.budget import AT_ONCE
from batchbench.dispatch.state import SKEW, Dispatch
from batchbench.errors import BatchbenchError, UnresolvedError
from batchbench.providers.interface import Calls, Provider, Remote
from batchbench.runs.events import Created, Duplicate, Ended, Foreign, Unresolved, Void
from batchbench.runs.folder import Run
from batchbench.runs.ingest import CUSTOM_ID
from batchbench.runs.journal import BatchRecord
from batchbench.runs.progress import TODO
from batchbench.transport.client import FAILURES, PATIENCE
from batchbench.transport.replies import Incomplete, ProviderError, Refused

STRIKES = 3  # how often a batch may be unknown to its provider before a person is asked
OVERDUE = 3600.0  # seconds after its own end at which a batch that goes on is worth a word


async def poll(dispatch: Dispatch) -> list[tuple[BatchRecord, Remote]]:
    """What has become of the batches at the provider's; those that have ended."""
    ended: list[tuple[BatchRecord, Remote]] = []
    waiting = [batch for batch in dispatch.run.state.open() if batch.state in ("created", "ended") and batch.remote]
    waiting = [batch for batch in waiting if dispatch.due.get(batch.nonce, 0.0) <= dispatch.uptime]
    if not waiting:
        return ended
    seen: dict[str, Remote] = {}
    if len(waiting) > AT_ONCE:
        since = min(batch.intended for batch in waiting) - SKEW
        seen = {remote.id: remote for remote in await listing(dispatch, since) or []}
    for batch in waiting:
        remote = seen.get(batch.remote or "") or await look(dispatch, batch)
        if remote is None:
            continue
        dispatch.done[batch.nonce] = min(remote.done, batch.rows)
        if remote.expires is not None and (dispatch.calls.now_there() or dispatch.now) > remote.expires + OVERDUE:
            dispatch.overdue.add(batch.nonce)
        if remote.state == "rejected" and not _blames_some(batch, remote):
            await dispatch.account.reject(batch, remote.problem)
            problem = BatchbenchError(f"the provider rejected batch {remote.id}: {remote.problem}")
            if remote.slot:
                await queue_full(dispatch, batch, problem)
            else:
                dispatch.halt = problem
        elif remote.state != "running":
            if batch.state != "ended":
                await dispatch.append(Ended(at=dispatch.now, nonce=batch.nonce, state=remote.word))
            ended.append((dispatch.run.state.batches[batch.nonce], remote))
    return ended


def _blames_some(batch: BatchRecord, remote: Remote) -> bool:
    """Whether a rejected batch would have been accepted without some of its requests, as far as one can tell."""
    lines = remote.refused
    return 0 < len(lines) < batch.rows and all(1 <= number <= batch.rows for number in lines)


async def look(dispatch: Dispatch, batch: BatchRecord) -> Remote | None:
    """One batch by its id; a provider that does not know it, again and again, is a case for a person."""
    try:
        remote = await dispatch.provider.get(dispatch.calls, batch.remote or "")
    except ProviderError as error:
        if error.status != 404:
            raise
        strikes = dispatch.strikes.setdefault(batch.nonce, [])
        strikes.append(dispatch.uptime)
        if len(strikes) >= STRIKES and dispatch.uptime >= strikes[0] + dispatch.limits.settle:
            await unresolved(dispatch, batch, "the provider does not know the batch any more", [batch.remote or ""])
        return None
    except msgspec.DecodeError as error:
        _nonsense(dispatch, batch.nonce, f"what the provider says of batch {batch.remote}", error)
        return None
    dispatch.strikes.pop(batch.nonce, None)
    dispatch.nonsense_since.pop(batch.nonce, None)
    return remote


async def listing(dispatch: Dispatch, since: float) -> list[Remote] | None:
    """Every batch since then; null if the answer made no sense, so that nothing may be concluded from it."""
    try:
        found = await dispatch.provider.listing(dispatch.calls, since)
    except (msgspec.DecodeError, ProviderError) as error:
        if isinstance(error, ProviderError) and error.status not in (400, 404):  # which is what a lost cursor gets
            raise
        _nonsense(dispatch, "", "the provider's list of batches", error)
        return None
    dispatch.nonsense_since.pop("", None)
    return found


def _nonsense(dispatch: Dispatch, about: str, what: str, error: Exception) -> None:
    """Bear with replies that cannot be understood, but not for ever."""
    if dispatch.uptime - dispatch.nonsense_since.setdefault(about, dispatch.uptime) > PATIENCE:
        raise BatchbenchError(f"{what} makes no sense ({error}): run the same command again later") from None


async def queue_full(dispatch: Dispatch, batch: BatchRecord, problem: BatchbenchError) -> None:
    """Wait for one of our batches to end; if there is none, ask for less, and in the end give up."""
    others = len(dispatch.queue.open())
    dispatch.queue.ceiling = max(1, others)
    if others:
        return
    dispatch.full_since = dispatch.full_since or dispatch.uptime
    if batch.rows == 1 and dispatch.uptime - dispatch.full_since > PATIENCE:
        dispatch.halt = problem
    dispatch.modest = max(1, batch.rows // 2)
    await dispatch.pause(dispatch.limits.poll[1], "room in the provider's queue")


async def reconcile(dispatch: Dispatch) -> None:
    """Find out what became of creates that were sent and not answered, before anything new is bought."""
    unknown = [batch for batch in dispatch.run.state.open() if batch.state == "creating"]
    if not unknown:
        return
    asked_at, knows_the_time = dispatch.uptime, dispatch.calls.now_there() is not None
    settled = {batch.nonce for batch in unknown if dispatch.unanswered_for(batch) >= dispatch.limits.settle}
    remotes = await listing(dispatch, min(map(dispatch.sent_there, unknown)))
    if remotes is None:
        return
    taken = {batch.remote for batch in dispatch.run.state.batches.values() if batch.remote}
    strangers = [remote for remote in remotes if remote.id not in taken | dispatch.run.state.foreign]
    for batch in unknown:
        mine, perhaps = await _ours(dispatch, batch, strangers)
        if mine:
            await _adopt(dispatch, batch, mine)
        elif not perhaps and batch.nonce in settled and knows_the_time:
            # Twice, and both asked for after anything accepted must have shown: then it was never accepted.
            silences = dispatch.silences.setdefault(batch.nonce, [])
            if silences and batch.sent and batch.sent.key not in ("", dispatch.signature):
                about = f"a batch of {batch.rows} requests"
                await unresolved(dispatch, batch, "not listed, but it was sent with another key than this one", [about])
            elif silences and asked_at >= silences[0] + min(60.0, dispatch.limits.settle):
                reason = "in no listing after the settle time"
                await dispatch.append(Void(at=dispatch.now, nonce=batch.nonce, reason=reason))
                dispatch.mark(batch, batch.ranges, TODO)
            elif not silences:
                silences.append(asked_at)


async def _ours(dispatch: Dispatch, batch: BatchRecord, strangers: list[Remote]) -> tuple[list[Remote], bool]:
    """The batches that this intent made, and whether some may yet turn out to be its own."""
    if dispatch.provider.names_batches:
        return [r for r in strangers if r.nonce == batch.nonce or (r.file is not None and r.file == batch.file)], False
    mine, perhaps = [], False
    unreadable: list[str] = []
    for remote in strangers:
        # A provider that counts nothing says nothing about the size.
        if remote.total not in (batch.rows, 0, None) or remote.created < dispatch.sent_there(batch):
            continue
        if remote.state != "ended":
            perhaps = True  # only the ids in its results can prove whose it is
            continue
        nonces = await _nonces(dispatch, remote)
        if batch.nonce in nonces:
            mine.append(remote)
        elif not nonces:
            perhaps = True
            unreadable.append(remote.id)
        elif not nonces & dispatch.run.state.batches.keys():
            await dispatch.append(Foreign(at=dispatch.now, remote=remote.id))
    if unreadable and not mine and dispatch.unanswered_for(batch) > dispatch.limits.settle + PATIENCE:
        await unresolved(dispatch, batch, "a batch that may be it cannot be read", unreadable)
    return mine, perhaps


async def _nonces(dispatch: Dispatch, remote: Remote) -> set[str]:
    """Whose answers an ended batch holds: not one line decides, for any one may be damaged."""
    try:
        beginning = await dispatch.calls.peek(remote.parts[0][1])
    except (Refused, Incomplete, *FAILURES):
        return set()
    return {found.decode().partition("-")[0] for found in CUSTOM_ID.findall(beginning)}


async def _adopt(dispatch: Dispatch, batch: BatchRecord, mine: list[Remote]) -> None:
    """Take over what was bought; more than one copy is somebody else's doing, and is stopped."""
    first, *others = sorted(mine, key=lambda remote: (remote.created, remote.id))
    for other in others:
        await _disown(dispatch, batch, other.id)
    # Last, because from here on nobody looks for this batch any more.
    await dispatch.append(Created(at=dispatch.now, nonce=batch.nonce, remote=first.id, found=True))


async def _disown(dispatch: Dispatch, batch: BatchRecord, remote: str) -> None:
    """Note a second copy of a batch, once, and have it stopped."""
    if remote not in {duplicate.remote for duplicate in dispatch.run.state.duplicates}:
        await dispatch.append(Duplicate(at=dispatch.now, nonce=batch.nonce, remote=remote, reserve=batch.reserve))
    await stop_batch(dispatch.provider, dispatch.calls, remote)


async def stop_copies(dispatch: Dispatch) -> None:
    """Stop the copies that are known and may still run: who noted them may have been killed before it could."""
    for copy in dispatch.run.state.duplicates:
        if dispatch.now - copy.at < dispatch.limits.window:
            await stop_batch(dispatch.provider, dispatch.calls, copy.remote)


async def find_copies(dispatch: Dispatch) -> None:
    """Look for batches of ours that we do not know: made by somebody between us and the provider.

    Where only results tell whose a batch is, one of a size of ours is given a little time to end.
    """
    until = dispatch.uptime + dispatch.limits.poll[1]
    while dispatch.collected and await _some_still_run(dispatch) and dispatch.uptime < until:
        await dispatch.pause(dispatch.limits.poll[0], "a batch that may be a copy of ours to end")


async def _some_still_run(dispatch: Dispatch) -> bool:
    """Disown the copies there are; whether some batch may yet turn out to be one."""
    state, perhaps = dispatch.run.state, False
    known = {batch.remote for batch in state.batches.values()} | {copy.remote for copy in state.duplicates}
    sizes = {batch.rows for batch in state.batches.values()}
    for remote in await listing(dispatch, min(dispatch.collected)) or []:
        nonces = {remote.nonce or ""}
        if remote.id in known | state.foreign:
            continue
        if not dispatch.provider.names_batches:
            if remote.total not in sizes:
                continue
            if remote.state != "ended":
                perhaps = True
                continue
            nonces = await _nonces(dispatch, remote)
        ours = [state.batches[nonce] for nonce in nonces if nonce in state.batches]
        if ours and ours[0].state != "creating":
            await _disown(dispatch, ours[0], remote.id)
        elif nonces and not ours and not dispatch.provider.names_batches:
            await dispatch.append(Foreign(at=dispatch.now, remote=remote.id))
    return perhaps


async def stop_batch(provider: Provider, calls: Calls, remote: str) -> None:
    """Ask for a batch to be cancelled; one that has ended needs no stopping."""
    try:
        await provider.cancel(calls, remote)
    except ProviderError as error:
        if error.status not in (400, 404, 409):
            raise


async def unresolved(dispatch: Dispatch, batch: BatchRecord, reason: str, candidates: list[str]) -> None:
    """Leave a batch to a person."""
    await dispatch.append(Unresolved(at=dispatch.now, nonce=batch.nonce, reason=reason, candidates=candidates))
    dispatch.halt = undecided(dispatch)


def undecided(dispatch: Dispatch) -> UnresolvedError | None:
    """What a person has to decide; null if nothing."""
    waiting = [batch for batch in dispatch.run.state.open() if batch.state == "unresolved"]
    if not waiting:
        return None
    first = waiting[0]
    told = f"batch {first.nonce}: {first.word} ({', '.join(first.candidates)})"
    others = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return UnresolvedError(f"{told}{others}: see `batchbench status`, then settle it with --resolve")


def resolve(run: Run, nonce: str, answer: str, now: float) -> None:
    """Put on record what a person says about a batch: `void`, or its id at the provider's.

    Call it before the run joins a budget. A batch of another run, or one that is settled, is left as it is.
    """
    batch = run.state.batches.get(nonce)
    if batch is None or batch.state not in ("unresolved", "creating", "exported"):
        return
    if answer == "void":
        run.append(Void(at=now, nonce=nonce, reason="said by the user"))
    else:
        run.append(Created(at=now, nonce=nonce, remote=answer, found=True))
