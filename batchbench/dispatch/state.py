"""The state of one dispatch in memory. The next start needs only the journal."""

from collections import defaultdict
from collections.abc import Callable

import anyio
import msgspec

from batchbench.core.clock import time_of_day
from batchbench.dispatch.budget import Account, Progress
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Calls, Limits, Provider
from batchbench.runs.journal import BatchRecord

SKEW = 600.0  # seconds by which the times that a provider reports may be wrong
LONG_AGO = 2 * 86_400.0  # seconds to look back at least, if the age of a create is unknown
REPORT_EVERY = 30.0  # seconds between two reports of the same wait

Stop = BatchbenchError | None  # why the run buys no more, as a step returns it; None: the run goes on


class Watch(msgspec.Struct, kw_only=True):
    """What this process has observed about one open batch. Times are uptimes: that clock cannot be set."""

    reply_lost_at: float | None = None  # its create ended without a usable reply
    absent_since: float | None = None  # a listing lacked it although it must show accepted creates by now
    not_found_since: float | None = None  # the first of the 404 replies in a row to its id
    not_found_count: int = 0  # 404 replies in a row
    unreadable_since: float | None = None  # replies about it cannot be decoded
    fetch_at: float = 0.0  # its results lacked something: fetch them again at this time
    fetch_count: int = 0  # how often its results were fetched and lacked something
    overdue: bool = False  # it is more than an hour past the end that the provider announced
    done: int = 0  # requests that the provider reports as done

    def not_found(self, uptime: float) -> float:
        """Note a 404 reply; returns for how many seconds there have been only such replies."""
        self.not_found_count += 1
        if self.not_found_since is None:
            self.not_found_since = uptime
        return uptime - self.not_found_since

    def fetch_later(self, uptime: float, pause: float) -> int:
        """Note that results lacked something, and wait three times as long as before; returns how often it happened."""
        self.fetch_at = uptime + pause * 3**self.fetch_count
        self.fetch_count += 1
        return self.fetch_count


class BatchSize:
    """How many requests the next batch may have, as learnt from the provider's replies."""

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.requests
        self._max = limits.requests  # halved when a batch is too large
        self._full_since: float | None = None  # uptime since which the queue has been full of other users' batches

    def too_large(self, rows: int) -> None:
        """Note that a batch of `rows` requests was refused as too large."""
        self._max = max(1, rows // 2)
        self.limit = min(self.limit, self._max)

    def queue_full(self, rows: int, uptime: float) -> float:
        """Note that a batch of `rows` requests found no room; returns for how many seconds this has lasted."""
        self.limit = min(self._max, max(1, rows // 2))
        self._full_since = self._full_since or uptime
        return uptime - self._full_since

    def stored(self) -> None:
        """Note that a batch has ended, so that the queue has room."""
        self._full_since = None
        self.limit = min(self._max, self.limit * 2)


class Dispatch:
    """One run while it is dispatched: its account, the way to the provider, and what was learnt on the way."""

    def __init__(
        self, account: Account, provider: Provider, calls: Calls, report: Callable[[Progress], None] = lambda _: None
    ) -> None:
        self.account = account
        self.run = account.run
        self.plan = account.plan
        self.limits = account.limits
        self.clock = account.clock
        self.now = account.clock.now  # seconds since 1970
        self.uptime = account.clock.uptime  # seconds, to measure how long something lasts
        self.queue = account.queue
        self.append = account.append
        self.mark = account.mark
        self.provider = provider
        self.calls = calls
        self.report = report
        self.waiting = ""  # what for; empty while there is something to do
        self.stop: Stop = None  # set by the loop only
        self.size = BatchSize(account.limits)
        self.collected: list[float] = []  # by the provider's clock: when the batches stored by this process were sent
        self.lost_creates: dict[tuple[int, int], int] = {}  # creates without usable reply, by (rep, first row)
        self.refused_since: float | None = None  # uptime since which the provider has refused everything
        self.list_unreadable_since: float | None = None  # uptime since which listings cannot be decoded
        self._began = self.uptime()
        self.watches: defaultdict[str, Watch] = defaultdict(Watch)  # by nonce

    def unanswered_for(self, batch: BatchRecord) -> float:
        """Seconds since a create was sent or its reply was lost; after a reboot, at least since this process began."""
        sent = batch.sent.uptime if batch.sent and self._same_boot(batch) else self._began
        lost = self.watches[batch.nonce].reply_lost_at
        return self.uptime() - (sent if lost is None else max(sent, lost))

    def sent_by_provider_clock(self, batch: BatchRecord) -> float:
        """When a create was sent by the provider's clock, or earlier: our own clock may be wrong, or was set since."""
        provider_now = self.calls.provider_time()
        now = self.now() if provider_now is None else provider_now
        if batch.sent and self._same_boot(batch):
            sent = now - (self.uptime() - batch.sent.uptime)
        else:
            sent = now - max(self.now() - (batch.sent.at if batch.sent else self.now()), LONG_AGO)
        if batch.sent and batch.sent.provider_time is not None:
            sent = min(sent, batch.sent.provider_time)
        return sent - SKEW

    def _same_boot(self, batch: BatchRecord) -> bool:
        """Whether the uptime at which a create was sent can be compared with the uptime now."""
        return batch.sent is not None and batch.sent.boot == self.clock.boot != ""

    async def cancel_when(self, stop: anyio.Event, scope: anyio.CancelScope) -> None:
        """Cancel the dispatch once `stop` is set."""
        await stop.wait()
        scope.cancel()

    def progress(self) -> Progress:
        """How far the run is."""
        done = sum(self.watches[batch.nonce].done for batch in self.run.state.open())
        return self.account.progress(done, self.waiting)

    async def pause(self, seconds: float, why: str) -> None:
        """Wait, and report what for and until when."""
        until = self.uptime() + seconds
        self.waiting = f"waiting for {why}; next check at {time_of_day(self.now() + seconds)}"
        while (left := until - self.uptime()) > 0:
            if seconds >= 1:
                self.report(self.progress())
            await self.clock.sleep(min(left, REPORT_EVERY))
        self.waiting = ""


def waiting_for(dispatch: Dispatch) -> str:
    """What has to happen before there is something to do, in words."""
    pending = dispatch.run.state.pending()
    reasons = []
    if running := [batch for batch in pending if batch.state == "created"]:
        late = sum(dispatch.watches[batch.nonce].overdue for batch in running)
        overdue = f", {late} of them more than an hour past their expected end" if late else ""
        reasons.append(f"{_batches(len(running))} in progress at the provider{overdue}")
    if ended := [dispatch.watches[batch.nonce].fetch_at for batch in pending if batch.state == "ended"]:
        at = time_of_day(dispatch.now() + max(0.0, min(ended) - dispatch.uptime()))
        reasons.append(f"answers that {_batches(len(ended))} should have (fetched again at {at})")
    if unanswered := [batch for batch in pending if batch.state == "creating"]:
        left = max(0.0, min(dispatch.limits.settle - dispatch.unanswered_for(batch) for batch in unanswered))
        until = time_of_day(dispatch.now() + left)
        count = _batches(len(unanswered))
        reasons.append(f"a listing of {count} created without a reply (until {until} at least)")
    queue = dispatch.queue
    if queue.limit < queue.max and len(queue.open()) >= queue.limit:
        reasons.append("room in the provider's queue")
    return ", ".join(reasons) or "the provider"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
