"""One dispatch in progress: the run's account, the way to the provider, and what is only of interest while it lasts."""

from collections.abc import Awaitable, Callable, Sequence

import anyio

from batchbench.core.clock import clock_face
from batchbench.dispatch.budget import Account
from batchbench.dispatch.plan import Progress
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Calls, Provider
from batchbench.runs.journal import BatchRecord

SKEW = 600.0  # seconds that times told by a provider may be off
LONG_AGO = 2 * 86_400.0  # seconds, the least to look back where nobody can tell how long ago something was
GLANCE = 30.0  # seconds between two words about the same wait


class Dispatch:
    """What one dispatch knows while it lasts."""

    def __init__(
        self, account: Account, provider: Provider, calls: Calls, report: Callable[[Progress], None] = lambda _: None
    ) -> None:
        self.account = account
        self.run = account.run
        self.plan = account.plan
        self.limits = account.limits
        self.clock = account.clock
        self.queue = account.queue
        self.append = account.append
        self.mark = account.mark
        self.provider = provider
        self.calls = calls
        self.report = report
        self.waiting = ""
        self.done: dict[str, int] = {}  # requests of a batch that are done, as the provider tells
        self.largest = self.limits.requests  # learnt: how many requests it takes in one
        self.modest = self.limits.requests  # how many we try while its queue is full; a stored batch doubles it
        # Times here are uptimes: nobody can set that clock, and nothing here outlives the process.
        self.began = self.clock.uptime()
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

    @property
    def halt(self) -> BatchbenchError | None:
        """Why no more is to be submitted."""
        return self.account.halt

    @halt.setter
    def halt(self, reason: BatchbenchError | None) -> None:
        self.account.halt = reason

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
        self.waiting = f"waiting for {why}; next look at {clock_face(self.now + seconds)}"
        while (left := until - self.uptime) > 0:
            if seconds >= 1:
                self.report(self.progress())
            await self.clock.sleep(min(left, GLANCE))
        self.waiting = ""

    @property
    def signature(self) -> str:
        """Which key is in use, as the journal tells it."""
        return self.calls.signature(self.run.state.run)

    def same_boot(self, batch: BatchRecord) -> bool:
        """Whether the uptime at which a create left can be compared with that of now."""
        return batch.sent is not None and batch.sent.boot == self.clock.boot != ""

    def unanswered_for(self, batch: BatchRecord) -> float:
        """Seconds for which a create has surely been out; where nobody can tell, since this process began."""
        began = batch.sent.uptime if batch.sent and self.same_boot(batch) else self.began
        return self.uptime - max(began, self.lost.get(batch.nonce, began))

    def sent_there(self, batch: BatchRecord) -> float:
        """When a create left, by the provider's clock, or earlier: our own may be wrong, or have been set since."""
        there = self.calls.now_there()
        now = self.now if there is None else there
        if batch.sent and self.same_boot(batch):
            left = now - (self.uptime - batch.sent.uptime)
        else:
            left = now - max(self.now - (batch.sent.at if batch.sent else self.now), LONG_AGO)
        if batch.sent and batch.sent.there is not None:
            left = min(left, batch.sent.there)
        return left - SKEW

    def progress(self) -> Progress:
        """How far the run is."""
        done = sum(self.done.get(batch.nonce, 0) for batch in self.run.state.open())
        return self.account.progress(done, self.waiting)


async def run_all(steps: Sequence[Callable[[], Awaitable[None]]], limiter: anyio.CapacityLimiter) -> bool:
    """Take steps side by side, a few at a time; whether there were any."""

    async def limited(step: Callable[[], Awaitable[None]]) -> None:
        async with limiter:
            await step()

    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(limited, step)
    return bool(steps)
