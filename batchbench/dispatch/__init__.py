"""Stage two: buy the missing answers, each only once, and stay within the budget.

Each round checks the state of open batches, collects ended batches, and buys more if the queue and the budget allow.
The journal determines which batches are open and which requests are still to buy. Every step that could cost money or
lose an answer is recorded in the journal first.
"""

from collections.abc import Callable
from functools import partial

import anyio

from batchbench.dispatch.budget import Account, Budget, Plan, Progress
from batchbench.dispatch.by_file import export, import_results, nonces
from batchbench.dispatch.cancel import Cancelled, cancel
from batchbench.dispatch.collect import collect
from batchbench.dispatch.late_answers import recheck_missing
from batchbench.dispatch.learning import measure_earlier
from batchbench.dispatch.reconcile import find_copies, poll, reconcile, stop_copies, unresolved
from batchbench.dispatch.recover import discard, recover
from batchbench.dispatch.state import Dispatch, waiting_for
from batchbench.dispatch.submit import run_all, submit_some
from batchbench.providers.interface import Calls, Provider
from batchbench.transport.spool import BatchSpool

__all__ = ["Account", "Budget", "Cancelled", "Plan", "Progress"]
__all__ += ["cancel", "discard", "dispatch", "export", "import_results", "nonces"]


async def dispatch(
    account: Account, provider: Provider, calls: Calls, stop: anyio.Event, report: Callable[[Progress], None]
) -> Progress:
    """Buy and collect until no answer is missing. If the run must stop earlier, raise the reason.

    Once `stop` is set, nothing new is bought; batches at the provider keep running.
    """
    current = Dispatch(account, provider, calls, report)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(current.cancel_when, stop, group.cancel_scope)
            await _rounds(current)
            group.cancel_scope.cancel()
    finally:
        account.close()
    progress = current.progress()
    report(progress)
    if reason := current.stop or unresolved(account.run.state):
        raise reason
    return progress


async def _rounds(dispatch: Dispatch) -> None:
    account, state, limits = dispatch.account, dispatch.run.state, dispatch.limits
    await account.begin()
    await recover(dispatch)
    if state.duplicates:
        await stop_copies(dispatch)
    if any(batch.stored and batch.stored.missing for batch in state.batches.values()):
        await recheck_missing(dispatch)
    await measure_earlier(account)
    pause = limits.poll[0]
    while True:
        dispatch.report(dispatch.progress())
        dispatch.stop = await reconcile(dispatch) or dispatch.stop
        ended, stop = await poll(dispatch)
        dispatch.stop = stop or dispatch.stop
        steps = [partial(collect, dispatch, batch, remote) for batch, remote in ended]
        dispatch.stop = await run_all(steps, dispatch.queue.reading) or dispatch.stop
        submitted = False
        if dispatch.stop is None and not dispatch.plan.collect:
            submitted, dispatch.stop = await submit_some(dispatch)
        buys_no_more = dispatch.stop is not None or dispatch.plan.collect
        if buys_no_more:
            account.phase = "collecting"
        if (buys_no_more or not account.unasked) and not state.pending():
            await find_copies(dispatch)
            return
        busy = submitted or bool(ended)
        unfinished_here = dispatch.plan.collect and isinstance(dispatch.calls, BatchSpool)  # its calls are not made
        if (dispatch.plan.detach or unfinished_here) and not busy:
            return
        pause = limits.poll[0] if busy else min(pause * 1.5, limits.poll[1])
        if not busy:
            await dispatch.pause(pause, waiting_for(dispatch))
