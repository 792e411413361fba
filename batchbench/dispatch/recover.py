"""At the start of a run, before anything is bought: find batches that the journal has lost or given up.

A journal may be an old copy, and a verdict may have been wrong. So the provider is asked once: a batch of this run that
it has is adopted, whatever the journal says about it.
"""

from collections.abc import Sequence

from anyio import to_thread

from batchbench.core.money import Price
from batchbench.dispatch.learning import Terms, full_terms
from batchbench.dispatch.lookup import (
    DAY,
    OVERDUE,
    Matches,
    check_key,
    claimed,
    disregard,
    forgotten,
    is_reply_to,
    list_batches,
    match,
    overdue,
    read_nonces,
    request_ids,
    unclaimed,
)
from batchbench.dispatch.reconcile import adopt, disown, found_event
from batchbench.dispatch.state import SKEW, Dispatch
from batchbench.dispatch.submit import encode, next_size
from batchbench.errors import BatchbenchError, DataError, UnresolvedError, UsageError
from batchbench.providers.interface import Remote
from batchbench.runs.events import Cleared, Intent, Void
from batchbench.runs.folder import Run, orphaned_marks, remotes_elsewhere, unknown_files
from batchbench.runs.ingest import as_ranges, max_row_cost
from batchbench.runs.journal import BatchRecord
from batchbench.runs.nonce import same_questions
from batchbench.runs.row_states import CUT_OFF, IN_FLIGHT, MISSING, TODO, row_states
from batchbench.runs.salvage.damaged_run import UNKNOWN
from batchbench.transport.replies import ProviderError
from batchbench.transport.retry import GIVE_UP_AFTER

KEPT = 30 * DAY  # seconds for which providers keep results
MAX_PEEKS = 200  # ended batches that are examined at a start, if only results show whose they are
SHOWN = 3  # files in a message


async def recover(dispatch: Dispatch) -> None:
    """Adopt batches of this run that the provider has and the journal lacks, or calls void or unresolved."""
    for nonce, answer in dispatch.plan.decisions:
        await decide(dispatch, nonce, answer)
    state = dispatch.run.state
    waiting = [batch for batch in state.batches.values() if _undecided(batch, dispatch.now())]
    buys = dispatch.account.unasked
    if buys and (files := unknown_files(dispatch.run.folder, state)):
        shown = ", ".join(files[:SHOWN]) + (f" and {len(files) - SHOWN} more" if len(files) > SHOWN else "")
        raise DataError(
            f"{dispatch.run.folder} has files of batches that its journal does not know ({shown}), so the journal is "
            "an older copy: put the newest copy back, or run `batchbench salvage`"
        )
    lost = await _by_id(dispatch, waiting)
    if not buys and not lost:
        return
    listed = await _list(dispatch, lost)
    for batch in lost:
        await _look_up(dispatch, batch, listed)
    if buys:
        await _find_forgotten(dispatch, listed)
        await _wait_for_running(dispatch, listed)


async def find_undecided(dispatch: Dispatch) -> None:
    """Adopt void and unresolved batches that the provider has, and conclude nothing about the others."""
    state = dispatch.run.state
    lost = await _by_id(dispatch, [batch for batch in state.batches.values() if _undecided(batch, dispatch.now())])
    listed = await _list(dispatch, lost) if lost else []
    for batch in lost:
        if (found := await _match(dispatch, batch, listed)).ours:
            await take_back(dispatch, batch, found.ours)


async def _by_id(dispatch: Dispatch, waiting: Sequence[BatchRecord]) -> list[BatchRecord]:
    """Adopt those of the batches whose id the provider knows; returns the others."""
    lost = []
    for batch in waiting:
        if batch.remote and (remote := await _get(dispatch, batch)):
            await take_back(dispatch, batch, [remote])
        else:
            lost.append(batch)
    return lost


def _undecided(batch: BatchRecord, now: float) -> bool:
    """Whether the provider may know better: the batch is unresolved, or void and not older than results get."""
    return batch.state == "unresolved" or (
        batch.state == "void" and not batch.cleared and now < batch.decided_at + KEPT
    )


async def _get(dispatch: Dispatch, batch: BatchRecord) -> Remote | None:
    """A batch by its id; None if the provider does not know it."""
    try:
        return await dispatch.provider.get(dispatch.calls, batch.remote or "")
    except ProviderError as error:
        if error.status != 404:
            raise
        check_key(dispatch, batch)
        return None


async def _list(dispatch: Dispatch, waiting: Sequence[BatchRecord]) -> list[Remote]:
    """Every batch since the run was opened; for a new run, every batch whose results the provider still has."""
    state = dispatch.run.state
    now = dispatch.calls.provider_time() or dispatch.now()
    since = min([state.opened_at, now, *(dispatch.sent_between(batch)[0] for batch in waiting)]) - DAY
    if not state.batches:
        since = now - KEPT
    while (listed := await list_batches(dispatch, since)) is None:
        await dispatch.pause(dispatch.limits.poll[0], f"a list of batches that can be read ({dispatch.list_problem})")
    return listed


async def _look_up(dispatch: Dispatch, batch: BatchRecord, listed: Sequence[Remote]) -> None:
    """Adopt a void or unresolved batch that is listed. One that is not, although it would have ended, is cleared."""
    found = await _match(dispatch, batch, listed)
    if found.ours:
        await take_back(dispatch, batch, found.ours)
        return
    if batch.state == "unresolved":
        check_key(dispatch, batch)
    now = dispatch.calls.provider_time()
    ended = now is not None and now > batch.decided_at + dispatch.limits.window + OVERDUE
    if not ended or found.running or found.unreadable or batch.void_by_user or batch.remote:
        return
    if batch.state == "unresolved":
        reason = "in no listing after the time in which it would have ended"
        await dispatch.append(Void(at=dispatch.now(), nonce=batch.nonce, reason=reason, provider_time=now))
        dispatch.mark(batch, batch.ranges, TODO)
    await dispatch.append(Cleared(at=dispatch.now(), nonce=batch.nonce))


async def _match(dispatch: Dispatch, batch: BatchRecord, listed: Sequence[Remote]) -> Matches:
    """Which of the listed batches a void or unresolved batch is."""
    own = [remote for remote in listed if remote.id == batch.remote]
    return Matches(ours=own) if own else await match(dispatch, batch, unclaimed(dispatch, listed))


async def take_back(dispatch: Dispatch, batch: BatchRecord, ours: list[Remote]) -> None:
    """Adopt a void or unresolved batch. Rows of a void one that are in another batch by now are left to that one."""
    if batch.state == "unresolved":
        await adopt(dispatch, batch, ours)
        return
    first, *copies = sorted(ours, key=lambda remote: (remote.created, remote.id))
    for copy in copies:
        await disown(dispatch, batch.nonce, copy.id, batch.reserve)
    rows = [row for start, stop in batch.ranges for row in range(start, stop)]
    await _claim(dispatch, first, batch.nonce, batch.rep, rows)


async def _find_forgotten(dispatch: Dispatch, listed: Sequence[Remote]) -> None:
    """Adopt the batches of this run that its journal does not have."""
    state = dispatch.run.state
    remotes = [one for one in unclaimed(dispatch, listed) if one.state != "rejected"]
    if not dispatch.provider.names_batches:
        largest = sum(shard.rows for shard in dispatch.run.manifest.shards)
        remotes = [one for one in remotes if one.state == "ended" and one.parts and (one.total or 0) <= largest]
        remotes = sorted(remotes, key=lambda one: -one.created)[:MAX_PEEKS]
    nonces = await _all_nonces(dispatch, remotes)
    lost = {one.id: nonce for one in remotes if (nonce := forgotten(state, nonces[one.id]))}
    others = {
        one.id: nonce
        for one in remotes
        for nonce in nonces[one.id]
        if not state.batches and one.id not in lost and same_questions(nonce, state)
    }
    if others and not dispatch.run.target.emulated and not dispatch.plan.adopt:
        if not dispatch.plan.anew:
            raise UnresolvedError(
                f"{len(others)} batches with the requests of this run are at the provider, from another folder "
                f"({', '.join(list(others)[:SHOWN])}): --adopt takes their answers, --anew buys everything again"
            )
        await disregard(dispatch, list(others))
    if lost and any(batch.state == "unresolved" and batch.reason == UNKNOWN for batch in state.batches.values()):
        raise UnresolvedError(
            f"{len(lost)} batches of this run are at the provider ({', '.join(list(lost)[:SHOWN])}), and its damaged "
            "journal may have lost them: run `batchbench salvage` again"
        )
    if dispatch.plan.adopt:
        lost |= others
    for remote in sorted(remotes, key=lambda one: one.created):
        if remote.id in lost:
            await _restore(dispatch, remote, lost[remote.id])


async def _wait_for_running(dispatch: Dispatch, listed: Sequence[Remote]) -> None:
    """Wait for running batches without a name that may be forgotten ones of this run, and adopt those that are.

    A restored run chooses the same requests again, so a forgotten batch has the size of the next one.
    """
    since = dispatch.uptime()
    while running := await _possibly_ours(dispatch, listed):
        if dispatch.plan.anew:
            await disregard(dispatch, running)
            return
        if dispatch.uptime() - since > GIVE_UP_AFTER:
            raise UnresolvedError(
                f"{len(running)} running batches may belong to this run ({', '.join(running[:SHOWN])}), and only their "
                "results will show it: run the same command when they have ended, or go on without them with --anew"
            )
        await dispatch.pause(dispatch.limits.poll[0], f"the end of batch {running[0]}, which may belong to this run")
        listed = await _list(dispatch, [])
        await _find_forgotten(dispatch, listed)


async def _possibly_ours(dispatch: Dispatch, listed: Sequence[Remote]) -> list[str]:
    """The ids of running batches without a name that this run may have made after the last line of its journal."""
    run, state, accounts = dispatch.run, dispatch.run.state, dispatch.queue.accounts
    if dispatch.provider.names_batches or run.target.emulated or dispatch.plan.collect:
        return []
    if not state.batches and not orphaned_marks(run.store, state.run):
        return []  # nothing indicates that this run was begun before
    earliest = max((batch.intended for batch in state.batches.values()), default=0.0) - SKEW
    running = [one for one in unclaimed(dispatch, listed) if one.state == "running" and one.created >= earliest]
    running = [one for one in running if not overdue(dispatch, one)]
    size = await next_size(dispatch) if running else 0
    creating = {batch.rows for account in accounts for batch in account.run.state.open() if batch.state == "creating"}
    found = [one.id for one in running if one.total == size and size not in creating]
    return [one for one in found if one not in remotes_elsewhere(run)] if found else []


async def _all_nonces(dispatch: Dispatch, remotes: Sequence[Remote]) -> dict[str, set[str]]:
    """The nonces of batches by id. A batch without a name whose results cannot be read may be one of this run."""
    since = dispatch.uptime()
    while True:
        nonces = await read_nonces(dispatch, remotes)
        unread = [one.id for one in remotes if not nonces[one.id]]
        if dispatch.provider.names_batches or not unread:
            return nonces
        if dispatch.plan.anew:
            await disregard(dispatch, unread)
            return nonces
        if dispatch.uptime() - since > GIVE_UP_AFTER:
            raise UnresolvedError(
                f"{len(unread)} batches may belong to this run, but their results cannot be read "
                f"({', '.join(unread[:SHOWN])}): run the same command later, or go on without them with --anew"
            )
        await dispatch.pause(dispatch.limits.poll[0], f"the results of batch {unread[0]}, which may belong to this run")


async def _restore(dispatch: Dispatch, remote: Remote, nonce: str) -> None:
    """Put a forgotten batch back into the journal. Its requests, or its results, show which rows it asks."""
    since = dispatch.uptime()
    while not (rows := await _rows_of(dispatch, remote, nonce)):
        if dispatch.uptime() - since > GIVE_UP_AFTER:
            raise BatchbenchError(
                f"batch {remote.id} belongs to this run, but its {remote.total or 'unknown number of'} requests cannot "
                "all be read: run the same command when it has ended, or run `batchbench salvage`"
            )
        await dispatch.pause(dispatch.limits.poll[0], f"the requests of batch {remote.id}")
        remote = await dispatch.provider.get(dispatch.calls, remote.id)
    rep = min(rows)[0]
    own = {row for other, row in rows if other == rep}
    asked = own | _lost_rows(own, (remote.total or 0) - len(own), dispatch.run.manifest.prompts)
    await _claim(dispatch, remote, nonce, rep, sorted(asked))


async def _rows_of(dispatch: Dispatch, remote: Remote, nonce: str) -> set[tuple[int, int]]:
    """Repetition and row of the requests of a batch; empty if not all of its lines can be read, or not yet."""
    ids = await request_ids(dispatch, remote)
    parts = [name.split("-") for name in ids.found if name.startswith(f"{nonce}-")]
    # A batch that is being validated reports no number of requests yet.
    complete = len(ids.lines) >= remote.total if remote.total else remote.state == "ended"
    return {(int(one[2]), int(one[1])) for one in parts if len(one) == 3} if complete else set()


def _lost_rows(own: set[int], count: int, prompts: int) -> set[int]:
    """The rows that `count` lines with a damaged id may belong to: gaps, or else the rows on both sides."""
    first, last = min(own), max(own)
    gaps = set(range(first, last + 1)) - own
    if count <= 0:
        return set()
    sides = {*range(max(0, first - count), first), *range(last + 1, min(prompts, last + 1 + count))}
    return gaps if len(gaps) >= count else gaps | sides


async def _claim(dispatch: Dispatch, remote: Remote, nonce: str, rep: int, rows: list[int]) -> None:
    """Adopt a batch for those of its rows that no other batch has; the cost of the others counts, too."""
    run = dispatch.run
    marks = row_states(run.state, max(rows) + 1, rep + 1)[rep]
    free = as_ranges([row for row in rows if marks[row] in (TODO, MISSING, CUT_OFF)])
    count = sum(stop - start for start, stop in free)
    terms, rates, reserve, row_cost = await _bought_at(dispatch, nonce, rep, rows)
    if free:
        intent = Intent(
            at=dispatch.now(),
            nonce=nonce,
            rep=rep,
            ranges=free,
            rows=count,
            reserve=min(reserve, row_cost * count),
            max_row_cost=row_cost,
            max_tokens=terms.max_tokens,
            tokens_per_byte=terms.tokens_per_byte,
            inode=run.inode,
            rates=rates,
            remote=remote.id,
            key=dispatch.calls.signature(run.state.run),
        )
        await dispatch.append(intent)
        dispatch.mark(run.state.batches[nonce], free, IN_FLIGHT)
    if count < len(rows):
        await disown(dispatch, nonce, remote.id, row_cost * (len(rows) - count))


async def _bought_at(dispatch: Dispatch, nonce: str, rep: int, rows: list[int]) -> tuple[Terms, Price, int, int]:
    """Terms, price, and upper bounds in micro-dollars for all rows and for each: as they were when it was bought.

    Of a batch that the journal does not have, they are unknown: the price of today, and full terms.
    """
    account, known = dispatch.account, dispatch.run.state.batches.get(nonce)
    if known and known.rates:
        terms = Terms(max_tokens=known.max_tokens, tokens_per_byte=known.tokens_per_byte)
        return terms, known.rates, known.reserve, max_row_cost(known)
    terms = full_terms(account)
    chunk = await to_thread.run_sync(encode, account, dispatch.provider, nonce, rep, as_ranges(rows), None, terms)
    return terms, account.plan.price, chunk.reserve, chunk.max_row_cost


# -- decisions of the user -----------------------------------------------------------------------------------


async def decide(dispatch: Dispatch, nonce: str, answer: str) -> None:
    """Apply the user's decision about a batch: `void`, or its id at the provider. What is settled is left as it is."""
    batch = dispatch.run.state.batches.get(nonce)
    if batch is None or batch.state not in ("unresolved", "creating", "exported"):
        return
    if answer != "void":
        remote = await _named(dispatch, batch, answer)
        await dispatch.append(found_event(dispatch, nonce, remote))
        return
    if batch.state != "exported" and (listed := await list_batches(dispatch, dispatch.sent_between(batch)[0] - DAY)):
        found = await _match(dispatch, batch, listed)
        if found.ours:
            await adopt(dispatch, batch, found.ours)
            return
    discard(dispatch.run, batch, dispatch.now())
    dispatch.mark(batch, batch.ranges, TODO)


def discard(run: Run, batch: BatchRecord, now: float) -> None:
    """Record that the user calls a batch void: its rows are asked again."""
    run.append(Void(at=now, nonce=batch.nonce, reason="decided by the user", by_user=batch.state != "exported"))


async def _named(dispatch: Dispatch, batch: BatchRecord, name: str) -> Remote:
    """The batch with an id that the user names, if its requests are those of `batch`."""
    try:
        remote = await dispatch.provider.get(dispatch.calls, name)
    except ProviderError as error:
        if error.status != 404:
            raise
        raise UsageError(f"--resolve {batch.nonce}={name}: the provider does not know this batch") from None
    known, ids = claimed(dispatch), (await request_ids(dispatch, remote)).found
    if not ids and not dispatch.provider.names_batches and remote.id != batch.remote:
        raise UsageError(
            f"--resolve {batch.nonce}={name}: the results of a batch show whose it is, and those of this one cannot be "
            "read yet: run the same command when it has ended"
        )
    ours = any(one.startswith(f"{batch.nonce}-") for one in ids) if ids else is_reply_to(batch, remote, known)
    if not ours or remote.id in known - {batch.remote}:
        raise UsageError(
            f"--resolve {batch.nonce}={name}: that batch has other requests: pass the id of a batch with requests that "
            f"begin with {batch.nonce}-, or {batch.nonce}=void if there is none"
        )
    return remote
