"""Pure: what a batch does next, and what it looks like at a given time."""

from typing import Literal

import msgspec

from batchbench.emulator.ledger.events import Outcome
from batchbench.emulator.ledger.state import Batch
from batchbench.emulator.server.limits import Delays

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]

# Share of the requests that a fated batch still answers, and how it ends.
FATES: dict[str, tuple[Outcome, float]] = {
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
    answer: int = 0


def next_step(batch: Batch, delays: Delays) -> Step | None:
    """Null when the batch has nothing more to do, or is fated to hang."""
    accepted = batch.accepted
    fate = accepted.fate.name if accepted.fate else ""
    if not batch.open or (fate == "stuck" and batch.n is not None):
        return None
    if batch.n is None:
        due = accepted.t + delays.validating
        return Step(at=due if batch.cancelled is None else min(due, batch.cancelled), batch=batch.id, do="validate")
    if batch.started:  # a run that a kill cut short goes on as it was decided
        started = batch.started
        return Step(at=started.at, batch=batch.id, do="run", outcome=started.outcome, answer=started.answer)
    begin = batch.validated.at if batch.validated else accepted.t
    if fate in FATES:
        outcome, share = FATES[fate]
        return Step(at=fate_time(batch), batch=batch.id, do="run", outcome=outcome, answer=int(batch.n * share))
    finish = begin + delays.processing
    stop = min(accepted.expires, batch.cancelled if batch.cancelled is not None else accepted.expires)
    if finish <= stop:
        return Step(at=finish, batch=batch.id, do="run", answer=batch.n)
    stopped: Outcome = "cancelled" if batch.cancelled is not None and stop == batch.cancelled else "expired"
    return Step(
        at=stop, batch=batch.id, do="run", outcome=stopped, answer=answered_by(stop, begin, batch.n, delays.processing)
    )


def answered_by(now: float, begin: float, n: int, processing: float) -> int:
    """How many of `n` requests are answered at `now` when they are worked off evenly."""
    if now <= begin:
        return 0
    return n if now >= begin + processing else int(n * (now - begin) / processing)


def fate_time(batch: Batch) -> float:
    fate = batch.accepted.fate
    return batch.accepted.t + (fate.seconds if fate else 0.0)


def status(batch: Batch, now: float, delays: Delays) -> Status:
    """OpenAI's word for the state; the Anthropic dialect derives its own from it."""
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
