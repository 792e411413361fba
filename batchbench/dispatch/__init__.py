"""Stage two: buy the answers that are missing, never twice, never over budget.

The loop has no memory of its own: what is open, answered or owed is what the journal says. Each round finds out what
has become of open batches, collects those that have ended, and submits more if the queue and the budget allow.
Every step that could cost money or lose an answer is on disk before it is taken.
"""

from collections.abc import Callable
from functools import partial

import anyio
from anyio import to_thread

from batchbench.core.clock import Clock
from batchbench.dispatch.budget import Account, Budget
from batchbench.dispatch.by_file import export, import_results, nonces
from batchbench.dispatch.collect import collect
from batchbench.dispatch.late_answers import recheck_missing
from batchbench.dispatch.plan import Plan, Progress
from batchbench.dispatch.reconcile import find_copies, poll, reconcile, resolve, stop_batch, stop_copies, undecided
from batchbench.dispatch.state import Dispatch, run_all
from batchbench.dispatch.submit import submit_some
from batchbench.dispatch.waiting import what_for
from batchbench.providers.interface import Calls, Provider
from batchbench.runs.events import Cancelling
from batchbench.runs.folder import Run

__all__ = [
    "Account",
    "Budget",
    "Clock",
    "Plan",
    "Progress",
    "cancel",
    "dispatch",
    "export",
    "import_results",
    "nonces",
    "resolve",
]


async def dispatch(
    account: Account, provider: Provider, calls: Calls, stop: anyio.Event, report: Callable[[Progress], None]
) -> Progress:
    """Buy and collect until no answer is missing, or until the run must stop; raises the reason.

    Once `stop` is set, nothing new is bought; batches at the provider's are left running.
    """
    current = Dispatch(account, provider, calls, report)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when, stop, group.cancel_scope)
            await _rounds(current)
            group.cancel_scope.cancel()
    finally:
        account.close()
    progress = current.progress()
    report(progress)
    if trouble := current.halt or undecided(current):
        raise trouble
    return progress


async def _cancel_when(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _rounds(dispatch: Dispatch) -> None:
    state, limits = dispatch.run.state, dispatch.limits
    await dispatch.account.begin()
    await stop_copies(dispatch)
    await recheck_missing(dispatch)
    pause = limits.poll[0]
    while True:
        dispatch.report(dispatch.progress())
        await reconcile(dispatch)
        ended = await poll(dispatch)
        steps = [partial(collect, dispatch, batch, remote) for batch, remote in ended]
        busy = await run_all(steps, dispatch.queue.reading)
        if dispatch.halt is None and not dispatch.strikes:  # do not buy while a batch's state is unknown
            busy |= await submit_some(dispatch)
        nothing_left = dispatch.halt is not None or not dispatch.account.unasked
        if nothing_left and not state.pending():
            await find_copies(dispatch)
            return
        if dispatch.plan.detach and not busy:
            return
        pause = limits.poll[0] if busy else min(pause * 1.5, limits.poll[1])
        if not busy:
            await dispatch.pause(pause, what_for(dispatch))


async def cancel(run: Run, provider: Provider, calls: Calls, clock: Clock) -> int:
    """Ask the provider to stop every batch of the run; returns how many."""
    running = [batch for batch in run.state.open() if batch.state == "created" and batch.remote]
    for batch in running:
        await to_thread.run_sync(run.append, Cancelling(at=clock.now(), nonce=batch.nonce))
        await stop_batch(provider, calls, batch.remote or "")
    return len(running)
