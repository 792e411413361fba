"""One dispatch in progress: what is wanted, how far it is, and what every step needs."""

import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec
from anyio import to_thread

from batchbench import runs
from batchbench.dispatch.common import AT_ONCE, Common
from batchbench.errors import BatchbenchError
from batchbench.journal import AnyEvent, Asked, Batch, Ranges, Rejected
from batchbench.money import Price
from batchbench.providers.seam import Calls, Limits, Provider
from batchbench.runs import Run

__all__ = ["AT_ONCE", "Clock", "Common", "Standing", "Wish", "Work", "begin", "refuse", "together"]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of a run."""

    items: int  # the first so many items of the manifest
    rows: int  # their prompts
    repetitions: int
    price: Price
    budget: int | None = None  # micro-dollars for this run and those beside it; null is no limit
    weight: float = 1.0  # its part of that, among runs that have a budget together
    each: int = 0  # micro-dollars, the most that one row is expected to cost
    rebuy_missing: bool = False
    trial: bool = False  # ask one harmless question before the first batch is bought
    detach: bool = False  # do not wait for batches that are running


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is."""

    rows: int
    answered: int
    in_flight: int
    done: int  # of those in flight, answered as far as the provider tells
    missing: int
    batches: dict[str, int]  # by state
    spent: int
    reserved: int


class Clock(msgspec.Struct, frozen=True):
    """Time, so that tests can have their own."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


class Work:
    """One dispatch in progress: the run, and what is only of interest while it lasts."""

    def __init__(
        self,
        run: Run,
        provider: Provider,
        limits: Limits,
        api: Calls,
        wish: Wish,
        clock: Clock,
        common: Common | None = None,
    ) -> None:
        self.run = run
        self.provider = provider
        self.limits = limits
        self.api = api
        self.wish = wish
        self.clock = clock
        self.rows = run.progress(wish.rows, wish.repetitions, rebuy_missing=wish.rebuy_missing)
        self.attempts = _attempts(run)
        self.progress: dict[str, int] = {}  # requests of a batch that are done, as the provider tells
        self.largest = limits.requests  # learnt: how many requests it takes in one
        self.strikes: dict[str, list[float]] = {}  # when the provider did not know a batch
        self.silences: dict[str, list[float]] = {}  # when listings that lacked a batch were asked for
        self.collected: list[float] = []  # when the batches were intended that this process has stored
        self.lost: dict[str, float] = {}  # when a create was left without an answer
        self.fetches: dict[str, int] = {}  # how often the results of a batch were fetched and lacked something
        self.due: dict[str, float] = {}  # when to fetch them again
        self.full_since: float | None = None  # how long the queue has had no room, and not because of us
        self.nonsense_since: float | None = None  # how long listings have made no sense
        self.halt: BatchbenchError | None = None  # why no more is to be submitted
        self.refused_since: float | None = None  # how long nothing but refusals have come
        self._lock = anyio.Lock()  # lines of the journal are chained, so they are written one at a time
        self.ended = False  # the dispatch is over, one way or another
        self.common = common or Common(wish.budget)
        self.account = self.common.join(self)

    async def append(self, event: AnyEvent) -> None:
        """Put an event on disk, off the event loop."""
        async with self._lock:
            await to_thread.run_sync(self.run.append, event)

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.clock.now()

    def mark(self, batch: Batch, ranges: Ranges, value: int) -> None:
        """Set what has become of rows; those of a repetition that nobody asks for now are of no interest."""
        if batch.rep < len(self.rows):
            runs.mark(self.rows[batch.rep], ranges, value)

    def affordable(self) -> int | None:
        """Micro-dollars that may still be promised; null is no limit."""
        return self.common.affordable(self)

    def owed(self) -> int:
        """Micro-dollars spent, or promised."""
        return self.run.state.spent() + self.run.state.reserved(self.now, self.limits.window)

    @property
    def asking(self) -> bool:
        """Whether it may still buy something."""
        return not self.ended and self.halt is None

    @property
    def unasked(self) -> bool:
        """Whether there are requests that are in no batch yet."""
        return any(runs.TODO in marks for marks in self.rows)

    def todo(self) -> int:
        """Requests that are in no batch yet."""
        return sum(marks.count(runs.TODO) for marks in self.rows)

    def standing(self) -> Standing:
        """How far the run is."""
        counts = [sum(marks.count(value) for marks in self.rows) for value in range(5)]
        states: dict[str, int] = {}
        for batch in self.run.state.batches.values():
            states[batch.state] = states.get(batch.state, 0) + 1
        return Standing(
            rows=self.wish.rows * self.wish.repetitions,
            answered=counts[runs.ANSWERED],
            in_flight=counts[runs.IN_FLIGHT],
            done=sum(self.progress.get(batch.nonce, 0) for batch in self.run.state.open()),
            missing=counts[runs.MISSING] + counts[runs.GIVEN_UP],
            batches=states,
            spent=self.run.state.spent(),
            reserved=self.run.state.reserved(self.now, self.limits.window),
        )


async def begin(work: Work) -> None:
    """Note what is asked for, and let go of what was interrupted before it was sent."""
    wish, state = work.wish, work.run.state
    asked = Asked(at=work.now, items=wish.items, repetitions=wish.repetitions, budget=wish.budget, rates=wish.price)
    if state.asked is None or msgspec.structs.replace(state.asked, at=0.0) != msgspec.structs.replace(asked, at=0.0):
        await work.append(asked)
    for batch in state.open():
        if batch.state in ("intent", "uploaded"):
            await refuse(work, batch, "interrupted before it was sent")


async def refuse(work: Work, batch: Batch, reason: str) -> None:
    """Note that a batch was never bought, and free its rows."""
    await work.append(Rejected(at=work.now, nonce=batch.nonce, reason=reason))
    work.mark(batch, batch.ranges, runs.TODO)


async def together(steps: Sequence[Callable[[], Awaitable[None]]], limiter: anyio.CapacityLimiter) -> bool:
    """Take steps side by side, a few at a time; whether there were any."""

    async def limited(step: Callable[[], Awaitable[None]]) -> None:
        async with limiter:
            await step()

    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(limited, step)
    return bool(steps)


def _attempts(run: Run) -> dict[tuple[int, int], int]:
    attempts: dict[tuple[int, int], int] = {}
    for batch in run.state.batches.values():
        for start, stop in batch.stored.again if batch.stored else []:
            for row in range(start, stop):
                attempts[batch.rep, row] = attempts.get((batch.rep, row), 0) + 1
    return attempts
