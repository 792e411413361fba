"""The state of one dispatch in memory. The next start needs only the journal."""

from collections import defaultdict
from collections.abc import Callable

import anyio
import msgspec

from batchbench.analyze.quality import Quality
from batchbench.core.clock import time_of_day
from batchbench.dispatch.budget import Account, Progress
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Calls, Limits, Provider, Remote
from batchbench.runs.journal import BatchRecord

SKEW = 600.0  # seconds by which the times that a provider reports may be wrong
LONGEST_SEND = 3600.0  # seconds for which something between here and the provider may keep a create
LONG_AGO = 2 * 86_400.0  # seconds to look back at least, if the age of a create is unknown
NEAR = 1.1  # a size that found no room is approached up to this ratio
TRY_MORE_AFTER = 16  # stored batches after which a size that found no room is tried again
REPORT_EVERY = 30.0  # seconds between two reports of the same wait

Stop = BatchbenchError | None  # why the run buys no more, as a step returns it; None: the run goes on


class Watch(msgspec.Struct, kw_only=True):
    """What this process has observed about one open batch. Times are uptimes: that clock cannot be set."""

    reply_lost_at: float | None = None  # its create ended without a usable reply
    reply_lost: str = ""  # why
    absent_since: float | None = None  # a listing lacked it although it must show accepted creates by now
    not_found_since: float | None = None  # the first of the 404 replies in a row to its id
    not_found_count: int = 0  # 404 replies in a row
    unreadable_since: float | None = None  # replies about it cannot be decoded
    fetch_at: float = 0.0  # its results lacked something: fetch them again at this time
    fetch_count: int = 0  # how often its results were fetched and lacked something
    fetch_since: float | None = None  # when its results were first fetched and lacked something
    overdue: bool = False  # it is more than an hour past the end that the provider announced
    done: int = 0  # requests that the provider reports as done

    def not_found(self, uptime: float) -> float:
        """Note a 404 reply; returns for how many seconds there have been only such replies."""
        self.not_found_count += 1
        if self.not_found_since is None:
            self.not_found_since = uptime
        return uptime - self.not_found_since

    def fetch_later(self, uptime: float, pause: float, patience: float) -> bool:
        """Note that results lacked something; False after `patience` seconds, else wait three times as long again."""
        if self.fetch_since is None:
            self.fetch_since = uptime
        left = self.fetch_since + patience - uptime
        self.fetch_at = uptime + min(max(left, 0.0), pause * 3**self.fetch_count)
        self.fetch_count += 1
        return left > 0


class BatchSize:
    """How many requests the next batch may have, as learnt from the provider's replies."""

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.requests
        self._max = limits.requests  # halved when a batch is too large
        self._full_since: float | None = None  # uptime since which the queue has been full of other users' batches
        self._worked = 0  # the last size that found room
        self._failed: int | None = None  # the last size that found no room
        self._stored = 0  # batches since that failure
        self.queued_rows: int | None = None  # in all open batches, from the limit of tokens that the provider names
        self._overfull: list[int] = []  # rows in all batches, with the refused one, whenever the limit was named
        self._stored_within = 0  # batches since then

    def learn(self, limit: int, tokens: int, rows: int, queued: int = 0) -> None:
        """Note the limit of tokens in the provider's queue, where `queued` rows were open.

        The refused batch of `rows` requests has about `tokens` tokens.
        """
        self.queued_rows = max(1, limit * rows // max(1, tokens))
        self._overfull = sorted([*self._overfull, queued + rows])
        self._stored_within = 0

    def too_large(self, rows: int) -> None:
        """Note that a batch of `rows` requests was refused as too large."""
        self._max = max(1, rows // 2)
        self.limit = min(self.limit, self._max)

    def queue_full(self, rows: int, uptime: float) -> float:
        """Note that a batch of `rows` requests found no room; returns for how many seconds this has lasted."""
        self._worked = self._worked if self._worked < rows else 0
        self.limit = min(self._max, self._worked or max(1, rows // 2))
        self._failed, self._stored = rows, 0
        self._full_since = self._full_since or uptime
        return uptime - self._full_since

    def stored(self) -> None:
        """Note that a batch has ended, so that the queue has room."""
        self._full_since = None
        self._worked = self.limit
        self._stored += 1
        self._relax()
        if self._failed is None:
            self.limit = min(self._max, self.limit * 2)
            return
        if self._stored % TRY_MORE_AFTER == 0:
            self._failed *= 2  # the queue may have been full of other users' batches then
        middle = (self.limit + self._failed) // 2
        if middle > self.limit * NEAR:
            self.limit = min(self._max, self.limit * 2, middle)

    def _relax(self) -> None:
        """Queue more rows from time to time: the estimate of tokens may be too high, or the provider's limit has risen.

        A number of rows that was too many twice is not tried again.
        """
        self._stored_within += 1
        if self.queued_rows is None or self._stored_within % TRY_MORE_AFTER:
            return
        more = self.queued_rows * 2
        if len(self._overfull) > 1 and more >= (too_many := self._overfull[1]):  # the second smallest
            more = (self.queued_rows + too_many) // 2
        if more > self.queued_rows * NEAR:
            self.queued_rows = more


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
        self.inspected = False  # whether the pilot and earlier answers were judged by this process
        self.judged = self.unjudged = Quality()  # of answers of this run: good enough, and too few to judge
        self.collected: list[Remote] = []  # the batches that this process has stored
        self.garbled: dict[tuple[int, int], int] = {}  # creates that arrived damaged, by (rep, first row)
        self.refused_since: float | None = None  # uptime since which the provider has refused everything
        self.list_unreadable_since: float | None = None  # uptime since which listings cannot be decoded
        self.list_problem = ""  # why
        self._began = self.uptime()
        self.watches: defaultdict[str, Watch] = defaultdict(Watch)  # by nonce

    def max_rows(self) -> int:
        """How many requests the next batch may have, so that the provider accepts it and its queue has room."""
        sizes = [self.size.limit]
        if self.limits.queued_requests is not None:
            sizes.append(self.limits.queued_requests - sum(batch.rows for batch in self.queue.open()))
        if self.size.queued_rows is not None:
            sizes.append(self.size.queued_rows - self.queued())
        return min(sizes)

    def queued(self) -> int:
        """How many requests to the same model are in open batches of all runs."""
        same_model = [one for one in self.queue.accounts if one.run.target.model == self.run.target.model]
        return sum(batch.rows for account in same_model for batch in account.run.state.pending())

    def unanswered_for(self, batch: BatchRecord) -> float:
        """Seconds since a create can have left at the latest.

        The lock proves that an earlier process is dead, but that process may have sent it just before this one began.
        """
        return self.uptime() - self._left_by(batch)

    def _left_by(self, batch: BatchRecord) -> float:
        """The uptime at which a create had left, or its process was dead."""
        sent = batch.sent.uptime if batch.sent and self._same_boot(batch) else self._began
        lost = self.watches[batch.nonce].reply_lost_at
        return max(sent, self._began, lost or 0.0)

    def sent_between(self, batch: BatchRecord) -> tuple[float, float]:
        """When a create can have been accepted, by the provider's clock, at the earliest and at the latest.

        Our clock may be wrong or was set since, and a reply may show the clock of a gateway: both widen the range.
        """
        now, provider_now = self.now(), self.calls.provider_time()
        clocks = [now] if provider_now is None else [now, provider_now]
        if batch.sent and self._same_boot(batch):
            ago = self.uptime() - batch.sent.uptime
        else:
            ago = max(now - (batch.sent.at if batch.sent else now), LONG_AGO)
        sent = [clock - ago for clock in clocks]
        if batch.sent and batch.sent.provider_time is not None:
            sent.append(batch.sent.provider_time)
        left = max(clocks) - (self.uptime() - self._left_by(batch))
        return min(sent) - SKEW, max(left, *sent) + LONGEST_SEND + SKEW

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
        until = f"unreadable: {dispatch.list_problem}" if dispatch.list_problem else f"until {until} at least"
        reasons.append(f"a listing of {count} created without a reply ({until})")
    if dispatch.account.short_of_money:
        reasons.append("money that batches of other runs may release")
    queue = dispatch.queue
    if queue.limit < queue.max and len(queue.open()) >= queue.limit:
        reasons.append("room in the provider's queue")
    return ", ".join(reasons) or "the provider"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
