"""Finding out: what became of batches at the provider's, and of creates that were sent and never answered."""

import msgspec

from batchbench.dispatch.budget import AT_ONCE
from batchbench.dispatch.state import SKEW, Work, refuse
from batchbench.errors import BatchbenchError, UnresolvedError
from batchbench.providers.interface import Remote
from batchbench.runs.events import Created, Duplicate, Ended, Foreign, Unresolved, Void
from batchbench.runs.ingest import CUSTOM_ID
from batchbench.runs.journal import Batch
from batchbench.runs.progress import TODO
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused
from batchbench.transport.retry import GIVE_UP_AFTER

STRIKES = 3  # how often a batch may be unknown to its provider before a person is asked
OVERDUE = 3600.0  # seconds after its own end at which a batch that goes on is worth a word


async def poll(work: Work) -> list[tuple[Batch, Remote]]:
    """What has become of the batches at the provider's; those that have ended."""
    ended: list[tuple[Batch, Remote]] = []
    waiting = [batch for batch in work.run.state.open() if batch.state in ("created", "ended") and batch.remote]
    waiting = [batch for batch in waiting if work.due.get(batch.nonce, 0.0) <= work.uptime]
    if not waiting:
        return ended
    seen: dict[str, Remote] = {}
    if len(waiting) > AT_ONCE:
        since = min(batch.intended for batch in waiting) - SKEW
        seen = {remote.id: remote for remote in await listing(work, since) or []}
    for batch in waiting:
        remote = seen.get(batch.remote or "") or await look(work, batch)
        if remote is None:
            continue
        work.progress[batch.nonce] = min(remote.done, batch.rows)
        if remote.expires is not None and (work.api.provider_time() or work.now) > remote.expires + OVERDUE:
            work.overdue.add(batch.nonce)
        if remote.state == "rejected" and not _blames_some(batch, remote):
            await refuse(work, batch, remote.problem)
            problem = BatchbenchError(f"the provider rejected batch {remote.id}: {remote.problem}")
            if remote.slot:
                await queue_full(work, batch, problem)
            else:
                work.halt = problem
        elif remote.state != "running":
            if batch.state != "ended":
                await work.append(Ended(at=work.now, nonce=batch.nonce, state=remote.provider_status))
            ended.append((work.run.state.batches[batch.nonce], remote))
    return ended


def _blames_some(batch: Batch, remote: Remote) -> bool:
    """Whether a rejected batch would have been accepted without some of its requests, as far as one can tell."""
    lines = remote.refused
    return 0 < len(lines) < batch.rows and all(1 <= number <= batch.rows for number in lines)


async def look(work: Work, batch: Batch) -> Remote | None:
    """One batch by its id; a provider that does not know it, again and again, is a case for a person."""
    try:
        remote = await work.provider.get(work.api, batch.remote or "")
    except ProviderError as error:
        if error.status != 404:
            raise
        strikes = work.strikes.setdefault(batch.nonce, [])
        strikes.append(work.uptime)
        if len(strikes) >= STRIKES and work.uptime >= strikes[0] + work.limits.settle:
            await unresolved(work, batch, "the provider does not know the batch any more", [batch.remote or ""])
        return None
    except msgspec.DecodeError as error:
        _nonsense(work, batch.nonce, f"what the provider says of batch {batch.remote}", error)
        return None
    work.strikes.pop(batch.nonce, None)
    work.nonsense_since.pop(batch.nonce, None)
    return remote


async def listing(work: Work, since: float) -> list[Remote] | None:
    """Every batch since then; null if the answer made no sense, so that nothing may be concluded from it."""
    try:
        found = await work.provider.listing(work.api, since)
    except (msgspec.DecodeError, ProviderError) as error:
        if isinstance(error, ProviderError) and error.status not in (400, 404):  # which is what a lost cursor gets
            raise
        _nonsense(work, "", "the provider's list of batches", error)
        return None
    work.nonsense_since.pop("", None)
    return found


def _nonsense(work: Work, about: str, what: str, error: Exception) -> None:
    """Bear with replies that cannot be understood, but not for ever."""
    if work.uptime - work.nonsense_since.setdefault(about, work.uptime) > GIVE_UP_AFTER:
        raise BatchbenchError(f"{what} makes no sense ({error}): run the same command again later") from None


async def queue_full(work: Work, batch: Batch, problem: BatchbenchError) -> None:
    """Wait for one of our batches to end; if there is none, ask for less, and in the end give up."""
    others = len(work.account.open())
    work.account.ceiling = max(1, others)
    if others:
        return
    work.full_since = work.full_since or work.uptime
    if batch.rows == 1 and work.uptime - work.full_since > GIVE_UP_AFTER:
        work.halt = problem
    work.modest = max(1, batch.rows // 2)
    await work.pause(work.limits.poll[1], "room in the provider's queue")


async def reconcile(work: Work) -> None:
    """Find out what became of creates that were sent and not answered, before anything new is bought."""
    unknown = [batch for batch in work.run.state.open() if batch.state == "creating"]
    if not unknown:
        return
    asked_at, knows_the_time = work.uptime, work.api.provider_time() is not None
    settled = {batch.nonce for batch in unknown if work.unanswered_for(batch) >= work.limits.settle}
    remotes = await listing(work, min(map(work.sent_there, unknown)))
    if remotes is None:
        return
    taken = {batch.remote for batch in work.run.state.batches.values() if batch.remote}
    strangers = [remote for remote in remotes if remote.id not in taken | work.run.state.foreign]
    for batch in unknown:
        mine, perhaps = await _ours(work, batch, strangers)
        if mine:
            await _adopt(work, batch, mine)
        elif not perhaps and batch.nonce in settled and knows_the_time:
            # Twice, and both asked for after anything accepted must have shown: then it was never accepted.
            silences = work.silences.setdefault(batch.nonce, [])
            if silences and batch.sent and batch.sent.key not in ("", work.signature):
                about = f"a batch of {batch.rows} requests"
                await unresolved(work, batch, "not listed, but it was sent with another key than this one", [about])
            elif silences and asked_at >= silences[0] + min(60.0, work.limits.settle):
                await work.append(Void(at=work.now, nonce=batch.nonce, reason="in no listing after the settle time"))
                work.mark(batch, batch.ranges, TODO)
            elif not silences:
                silences.append(asked_at)


async def _ours(work: Work, batch: Batch, strangers: list[Remote]) -> tuple[list[Remote], bool]:
    """The batches that this intent made, and whether some may yet turn out to be its own."""
    if work.provider.names_batches:
        return [r for r in strangers if r.nonce == batch.nonce or (r.file is not None and r.file == batch.file)], False
    mine, perhaps = [], False
    unreadable: list[str] = []
    for remote in strangers:
        # A provider that counts nothing says nothing about the size.
        if remote.total not in (batch.rows, 0, None) or remote.created < work.sent_there(batch):
            continue
        if remote.state != "ended":
            perhaps = True  # only the ids in its results can prove whose it is
            continue
        nonces = await _nonces(work, remote)
        if batch.nonce in nonces:
            mine.append(remote)
        elif not nonces:
            perhaps = True
            unreadable.append(remote.id)
        elif not nonces & work.run.state.batches.keys():
            await work.append(Foreign(at=work.now, remote=remote.id))
    if unreadable and not mine and work.unanswered_for(batch) > work.limits.settle + GIVE_UP_AFTER:
        await unresolved(work, batch, "a batch that may be it cannot be read", unreadable)
    return mine, perhaps


async def _nonces(work: Work, remote: Remote) -> set[str]:
    """Whose answers an ended batch holds: not one line decides, for any one may be damaged."""
    try:
        beginning = await work.api.read_start(remote.parts[0][1])
    except (Refused, Incomplete, *FAILURES):
        return set()
    return {found.decode().partition("-")[0] for found in CUSTOM_ID.findall(beginning)}


async def _adopt(work: Work, batch: Batch, mine: list[Remote]) -> None:
    """Take over what was bought; more than one copy is somebody else's doing, and is stopped."""
    first, *others = sorted(mine, key=lambda remote: (remote.created, remote.id))
    for other in others:
        await _disown(work, batch, other.id)
    # Last, because from here on nobody looks for this batch any more.
    await work.append(Created(at=work.now, nonce=batch.nonce, remote=first.id, found=True))


async def _disown(work: Work, batch: Batch, remote: str) -> None:
    """Note a second copy of a batch, once, and have it stopped."""
    if remote not in {duplicate.remote for duplicate in work.run.state.duplicates}:
        await work.append(Duplicate(at=work.now, nonce=batch.nonce, remote=remote, reserve=batch.reserve))
    await stop_batch(work, remote)


async def stop_copies(work: Work) -> None:
    """Stop the copies that are known and may still run: who noted them may have been killed before it could."""
    for copy in work.run.state.duplicates:
        if work.now - copy.at < work.limits.window:
            await stop_batch(work, copy.remote)


async def find_copies(work: Work) -> None:
    """Look for batches of ours that we do not know: made by somebody between us and the provider.

    Where only results tell whose a batch is, one of a size of ours is given a little time to end.
    """
    until = work.uptime + work.limits.poll[1]
    while work.collected and await _some_still_run(work) and work.uptime < until:
        await work.pause(work.limits.poll[0], "a batch that may be a copy of ours to end")


async def _some_still_run(work: Work) -> bool:
    """Disown the copies there are; whether some batch may yet turn out to be one."""
    state, perhaps = work.run.state, False
    known = {batch.remote for batch in state.batches.values()} | {copy.remote for copy in state.duplicates}
    sizes = {batch.rows for batch in state.batches.values()}
    for remote in await listing(work, min(work.collected)) or []:
        nonces = {remote.nonce or ""}
        if remote.id in known | state.foreign:
            continue
        if not work.provider.names_batches:
            if remote.total not in sizes:
                continue
            if remote.state != "ended":
                perhaps = True
                continue
            nonces = await _nonces(work, remote)
        ours = [state.batches[nonce] for nonce in nonces if nonce in state.batches]
        if ours and ours[0].state != "creating":
            await _disown(work, ours[0], remote.id)
        elif nonces and not ours and not work.provider.names_batches:
            await work.append(Foreign(at=work.now, remote=remote.id))
    return perhaps


async def stop_batch(work: Work, remote: str) -> None:
    """Ask for a batch to be cancelled; one that has ended needs no stopping."""
    try:
        await work.provider.cancel(work.api, remote)
    except ProviderError as error:
        if error.status not in (400, 404, 409):
            raise


async def unresolved(work: Work, batch: Batch, reason: str, candidates: list[str]) -> None:
    """Leave a batch to a person."""
    await work.append(Unresolved(at=work.now, nonce=batch.nonce, reason=reason, candidates=candidates))
    work.halt = undecided(work)


def undecided(work: Work) -> UnresolvedError | None:
    """What a person has to decide; null if nothing."""
    waiting = [batch for batch in work.run.state.open() if batch.state == "unresolved"]
    if not waiting:
        return None
    first = waiting[0]
    told = f"batch {first.nonce}: {first.word} ({', '.join(first.candidates)})"
    others = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return UnresolvedError(f"{told}{others}: see `batchbench status`, then settle it with --resolve")


async def resolve(work: Work, nonce: str, answer: str) -> None:
    """Take a person's word for what became of a batch: `void`, or its id at the provider's."""
    batch = work.run.state.batches.get(nonce)
    if batch is None or batch.state not in ("unresolved", "creating", "exported"):
        return  # another run's, or settled long ago
    if answer == "void":
        await work.append(Void(at=work.now, nonce=nonce, reason="said by the user"))
        work.mark(batch, batch.ranges, TODO)
    else:
        await work.append(Created(at=work.now, nonce=nonce, remote=answer, found=True))
