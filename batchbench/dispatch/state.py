"""One dispatch in progress: what is wanted, how far it is, and what every step needs."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.clock import Clock, time_of_day
from batchbench.core.money import Price
from batchbench.dispatch.budget import Common
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Calls, Limits, Provider
from batchbench.runs.events import AnyEvent, Asked, Ranges, Rejected
from batchbench.runs.folder import Run
from batchbench.runs.journal import Batch
from batchbench.runs.progress import ANSWERED, GIVEN_UP, IN_FLIGHT, MISSING, TODO, mark, row_states

SKEW = 600.0  # seconds that times told by a provider may be off
LONG_AGO = 2 * 86_400.0  # seconds, the least to look back where nobody can tell how long ago something was
GLANCE = 30.0  # seconds between two words about the same wait


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
    adopt: bool = False  # buy even though the folder is a copy
    trial: bool = False  # ask one harmless question before the first batch is bought
    detach: bool = False  # do not wait for batches that are running


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is."""

    rows: int
    done: int  # answered, refused or failed
    in_flight: int
    progress: int  # of those in flight, done as far as the provider tells
    missing: int
    batches: dict[str, int]  # by state
    spent: int
    reserved: int
    waiting: str = ""  # for what, and until when; empty while there is something to do


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
        self.rows = row_states(run.state, wish.rows, wish.repetitions, rebuy_missing=wish.rebuy_missing)
        self.attempts = run.state.attempts()
        self.report: Callable[[Standing], None] = lambda _: None
        self.waiting = ""
        self.progress: dict[str, int] = {}  # requests of a batch that are done, as the provider tells
        self.largest = limits.requests  # learnt: how many requests it takes in one
        self.modest = limits.requests  # how many we try while its queue is full; every batch that is done doubles it
        # Times here are uptimes: nobody can set that clock, and nothing here outlives the process.
        self.began = clock.uptime()
        self.strikes: dict[str, list[float]] = {}  # when the provider did not know a batch
        self.silences: dict[str, list[float]] = {}  # when listings that lacked a batch were asked for
        self.lost: dict[str, float] = {}  # when a create was left without an answer
        self.due: dict[str, float] = {}  # when to fetch results again that lacked something
        self.full_since: float | None = None  # how long the queue has had no room, and not because of us
        self.nonsense_since: dict[str, float] = {}  # since when a batch, or under "" the listing, has made no sense
        self.refused_since: float | None = None  # how long nothing but refusals have come
        self.collected: list[float] = []  # when what this process has stored was sent, by the provider
        self.fetches: dict[str, int] = {}  # how often the results of a batch were fetched and lacked something
        self.unheard: dict[tuple[int, int], int] = {}  # how often a create that begins with a row got no proper answer
        self.overdue: set[str] = set()  # batches that should have ended an hour ago, by their provider's own word
        self.halt: BatchbenchError | None = None  # why no more is to be submitted
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

    @property
    def uptime(self) -> float:
        """Seconds, for comparing with each other."""
        return self.clock.uptime()

    async def pause(self, seconds: float, why: str) -> None:
        """Wait, and let people know for what and how long."""
        until = self.uptime + seconds
        self.waiting = f"waiting for {why}; next look at {time_of_day(self.now + seconds)}"
        while (left := until - self.uptime) > 0:
            if seconds >= 1:
                self.report(self.standing())
            await self.clock.sleep(min(left, GLANCE))
        self.waiting = ""

    @property
    def signature(self) -> str:
        """Which key is in use, as the journal tells it."""
        return self.api.signature(self.run.state.run)

    def same_boot(self, batch: Batch) -> bool:
        """Whether the uptime at which a create left can be compared with that of now."""
        return batch.sent is not None and batch.sent.boot == self.clock.boot != ""

    def unanswered_for(self, batch: Batch) -> float:
        """Seconds for which a create has surely been out; where nobody can tell, since this process began."""
        began = batch.sent.uptime if batch.sent and self.same_boot(batch) else self.began
        return self.uptime - max(began, self.lost.get(batch.nonce, began))

    def sent_there(self, batch: Batch) -> float:
        """When a create left, by the provider's clock, or earlier: our own may be wrong, or have been set since."""
        there = self.api.provider_time()
        now = self.now if there is None else there
        if batch.sent and self.same_boot(batch):
            left = now - (self.uptime - batch.sent.uptime)
        else:
            left = now - max(self.now - (batch.sent.at if batch.sent else self.now), LONG_AGO)
        if batch.sent and batch.sent.there is not None:
            left = min(left, batch.sent.there)
        return left - SKEW

    def mark(self, batch: Batch, ranges: Ranges, value: int) -> None:
        """Set what has become of rows; those of a repetition that nobody asks for now are of no interest."""
        if batch.rep < len(self.rows):
            mark(self.rows[batch.rep], ranges, value)

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
        return any(TODO in marks for marks in self.rows)

    def todo(self) -> int:
        """Requests that are in no batch yet."""
        return sum(marks.count(TODO) for marks in self.rows)

    def standing(self) -> Standing:
        """How far the run is."""
        counts = [sum(marks.count(value) for marks in self.rows) for value in range(5)]
        states: dict[str, int] = {}
        for batch in self.run.state.batches.values():
            states[batch.state] = states.get(batch.state, 0) + 1
        return Standing(
            rows=self.wish.rows * self.wish.repetitions,
            done=counts[ANSWERED],
            in_flight=counts[IN_FLIGHT],
            progress=sum(self.progress.get(batch.nonce, 0) for batch in self.run.state.open()),
            missing=counts[MISSING] + counts[GIVEN_UP],
            batches=states,
            spent=self.run.state.spent(),
            reserved=self.run.state.reserved(self.now, self.limits.window),
            waiting=self.waiting,
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
    work.mark(batch, batch.ranges, TODO)


async def together(steps: Sequence[Callable[[], Awaitable[None]]], limiter: anyio.CapacityLimiter) -> bool:
    """Take steps side by side, a few at a time; whether there were any."""

    async def limited(step: Callable[[], Awaitable[None]]) -> None:
        async with limiter:
            await step()

    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(limited, step)
    return bool(steps)
