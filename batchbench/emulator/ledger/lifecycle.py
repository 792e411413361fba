"""Pure: the next step of a batch, and its status at a given time."""

from typing import Literal

import msgspec

from batchbench.emulator.ledger.events import Outcome
from batchbench.emulator.ledger.state import EmulatedBatch
from batchbench.emulator.server.limits import Delays

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]

# Faults that end a batch early: the outcome, and the share of the requests that are answered.
EARLY_ENDS: dict[str, tuple[Outcome, float]] = {
    "expire-half": ("expired", 0.5),
    "expire-none": ("expired", 0.0),
    "cancelled-elsewhere": ("cancelled", 0.5),
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The next thing to do for a batch, and when it is due."""

    at: float
    batch: str
    do: Literal["validate", "run"]
    outcome: Outcome = "completed"
    answer_count: int = 0


def next_step(batch: EmulatedBatch, delays: Delays) -> Step | None:
    """The next step of a batch; None if it is finished, or if a fault keeps it in progress."""
    accepted = batch.accepted
    fault = accepted.fault.name if accepted.fault else ""
    if not batch.open or (fault == "stuck" and batch.n is not None):
        return None
    if batch.n is None:
        due = accepted.t + delays.validating
        return Step(at=due if batch.cancelled is None else min(due, batch.cancelled), batch=batch.id, do="validate")
    if batch.started:  # the emulator was killed after the start: repeat its decision
        at, outcome, answer_count = batch.started.at, batch.started.outcome, batch.started.answer_count
    elif accepted.fault and fault in EARLY_ENDS:
        outcome, share = EARLY_ENDS[fault]
        at, answer_count = accepted.t + accepted.fault.seconds, int(batch.n * share)
    else:
        at, outcome, answer_count = _regular_end(batch, batch.n, delays.processing)
    return Step(at=at, batch=batch.id, do="run", outcome=outcome, answer_count=answer_count)


def _regular_end(batch: EmulatedBatch, n: int, processing: float) -> tuple[float, Outcome, int]:
    """The time and outcome of the end of a batch without a fault, and the number of answered requests."""
    begin = batch.validated.at if batch.validated else batch.accepted.t
    expires, cancelled = batch.accepted.expires, batch.cancelled
    stop = expires if cancelled is None else min(expires, cancelled)
    if begin + processing <= stop:
        return begin + processing, "completed", n
    return stop, "cancelled" if stop == cancelled else "expired", answered_by(stop, begin, n, processing)


def answered_by(now: float, begin: float, n: int, processing: float) -> int:
    """How many of `n` requests are answered at `now` if they are processed at a constant rate."""
    if now <= begin:
        return 0
    return n if now >= begin + processing else int(n * (now - begin) / processing)


def status(batch: EmulatedBatch, now: float, delays: Delays) -> Status:
    """OpenAI's status; the Anthropic dialect derives its own from it."""
    ended = batch.ended
    if batch.failed and now >= batch.failed.at:
        return "failed"
    if ended and now >= ended.at:
        return "cancelled" if batch.cancelled is not None and ended.outcome == "completed" else ended.outcome
    if batch.cancelled is not None or (ended and ended.outcome == "cancelled"):
        return "cancelling"
    if not batch.validated:
        return "validating"
    if ended or (delays.processing and now >= batch.validated.at + delays.processing):
        return "finalizing"
    return "in_progress"
