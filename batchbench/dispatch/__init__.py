"""Stage two: buy the answers that are missing, never twice, never over budget.

The loop has no memory of its own: what is open, answered or owed is what the journal says. Each round finds out what
has become of open batches, collects those that have ended, and submits more if the queue and the budget allow.
Every step that could cost money or lose an answer is on disk before it is taken.
"""

from collections.abc import Callable
from functools import partial

import anyio

from batchbench.core.clock import Clock
from batchbench.dispatch.budget import Common
from batchbench.dispatch.by_file import bring, export, nonces
from batchbench.dispatch.collect import collect
from batchbench.dispatch.late_answers import look_again
from batchbench.dispatch.reconcile import find_copies, poll, reconcile, resolve, stop_batch, stop_copies, undecided
from batchbench.dispatch.state import Standing, Wish, Work, begin, together
from batchbench.dispatch.submit import submit_some
from batchbench.dispatch.waiting import what_for
from batchbench.runs.events import Cancelling

__all__ = [
    "Clock",
    "Common",
    "Standing",
    "Wish",
    "Work",
    "bring",
    "cancel",
    "dispatch",
    "export",
    "nonces",
    "resolve",
]


async def dispatch(work: Work, stop: anyio.Event, report: Callable[[Standing], None]) -> Standing:
    """Ask what is missing until nothing is, or until it must not go on; raises what a person has to know.

    Once `stop` is set, nothing new is bought; batches at the provider's are left running.
    """
    work.report = report
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when, stop, group.cancel_scope)
            await _rounds(work)
            group.cancel_scope.cancel()
    finally:
        work.ended = True
    standing = work.standing()
    report(standing)
    if trouble := work.halt or undecided(work):
        raise trouble
    return standing


async def _cancel_when(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _rounds(work: Work) -> None:
    wish, state = work.wish, work.run.state
    await begin(work)
    await stop_copies(work)
    await look_again(work)
    pause = work.limits.poll[0]
    while True:
        work.report(work.standing())
        await reconcile(work)
        ended = await poll(work)
        busy = await together([partial(collect, work, batch, remote) for batch, remote in ended], work.account.reading)
        if work.halt is None and not work.strikes:  # who does not know what was bought is not sold more
            busy |= await submit_some(work)
        nothing_left = work.halt is not None or not work.unasked
        if nothing_left and not state.pending():
            await find_copies(work)
            return
        if wish.detach and not busy:
            return
        pause = work.limits.poll[0] if busy else min(pause * 1.5, work.limits.poll[1])
        if not busy:
            await work.pause(pause, what_for(work))


async def cancel(work: Work) -> int:
    """Ask the provider to stop every batch of the run; how many were asked for."""
    running = [batch for batch in work.run.state.open() if batch.state == "created" and batch.remote]
    for batch in running:
        await work.append(Cancelling(at=work.now, nonce=batch.nonce))
        await stop_batch(work, batch.remote or "")
    return len(running)
