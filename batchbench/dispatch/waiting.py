"""Saying what is being waited for, so that a program that does nothing for a day is not taken for one that hangs."""

from batchbench.core.clock import time_of_day
from batchbench.dispatch.state import Work


def what_for(work: Work) -> str:
    """What has to happen before anything can be done, in words."""
    pending = work.run.state.pending()
    reasons = []
    if running := [batch for batch in pending if batch.state == "created"]:
        late = sum(batch.nonce in work.overdue for batch in running)
        overdue = f", {late} of them more than an hour past their own end" if late else ""
        reasons.append(f"{_batches(len(running))} in progress at the provider{overdue}")
    if ended := [work.due.get(batch.nonce, 0.0) for batch in pending if batch.state == "ended"]:
        due = time_of_day(work.now + max(0.0, min(ended) - work.uptime))
        reasons.append(f"answers that {_batches(len(ended))} should have (fetched again at {due})")
    if unknown := [batch for batch in pending if batch.state == "creating"]:
        left = max(0.0, min(work.limits.settle - work.unanswered_for(batch) for batch in unknown))
        until = time_of_day(work.now + left)
        reasons.append(f"a sign of {_batches(len(unknown))} whose creation was not answered (until {until} at least)")
    if work.account.ceiling < work.limits.open_batches and len(work.account.open()) >= work.account.ceiling:
        reasons.append("room in the provider's queue")
    return ", ".join(reasons) or "the provider"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
