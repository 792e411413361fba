"""Cancel the batches of a run, also those whose create got no reply."""

import math

import msgspec
from anyio import to_thread

from batchbench.core.clock import Clock
from batchbench.core.money import Price
from batchbench.dispatch.budget import Budget, Plan
from batchbench.dispatch.lookup import check_key
from batchbench.dispatch.reconcile import reconcile, stop_batch
from batchbench.dispatch.recover import find_undecided
from batchbench.dispatch.state import Dispatch
from batchbench.providers.interface import Calls, Limits, Provider
from batchbench.runs.events import Cancelling
from batchbench.runs.folder import Run

NOTHING = Plan(items=0, rows=0, repetitions=0, price=Price(input=0, output=0, source=""))


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the open batches of a run."""

    cancelling: int  # batches that the provider was asked to cancel
    unanswered: int  # creates without a reply that the provider does not list yet


async def cancel(run: Run, provider: Provider, calls: Calls, limits: Limits, clock: Clock) -> Cancelled:
    """Look once for batches that were given up or got no reply, then ask the provider to cancel every running one."""
    patient = msgspec.structs.replace(limits, settle=math.inf)  # one listing does not prove that a create was lost
    current = Dispatch(Budget(None).join(run, NOTHING, patient, clock), provider, calls)
    await find_undecided(current)
    await reconcile(current)
    running = [batch for batch in run.state.open() if batch.state == "created" and batch.remote]
    for batch in running:
        await to_thread.run_sync(run.append, Cancelling(at=clock.now(), nonce=batch.nonce))
        if not await stop_batch(provider, calls, batch.remote or ""):
            check_key(current, batch)
    unanswered = sum(batch.state == "creating" for batch in run.state.open())
    return Cancelled(cancelling=len(running), unanswered=unanswered)
