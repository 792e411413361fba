"""One budget for all runs of a command, and one queue for all runs that use the same key at the same provider.

A run joins the budget before any run buys. From then on its spent and reserved money counts.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import anyio
import msgspec
from anyio import to_thread

from batchbench.core.clock import Clock
from batchbench.core.money import Price
from batchbench.errors import DataError
from batchbench.providers.interface import Limits
from batchbench.runs.events import AnyEvent, Asked, Ranges, Rejected
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord
from batchbench.runs.row_states import CUT_OFF, TODO, count_rows, mark, mark_cut_off, row_states

AT_ONCE = 2  # batches encoded, uploaded or read at the same time
BudgetMode = Literal["absolute", "learnt"]  # how the input of a request is reserved


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for in one run."""

    items: int  # ask this many items, from the start of the manifest
    rows: int  # the prompts of these items
    repetitions: int
    price: Price
    weight: float = 1.0  # this run's share of the budget, relative to the other runs
    max_row_cost: int = 0  # micro-dollars, an upper bound for one row
    rebuy_missing: bool = False
    adopt: bool = False  # buy even if the folder is a copy, and adopt batches of the same requests from other folders
    anew: bool = False  # buy even if batches of the same requests are at the provider
    decisions: list[tuple[str, str]] = []  # of the user about batches: nonce, and `void` or an id at the provider
    pilot: Literal["calls", "batch", "none"] = "none"  # how the first prompts are asked before the first batch
    anyway: bool = False  # buy although the answers cannot be read
    expected_row_cost: float = 0.0  # micro-dollars, the estimate for one row
    detach: bool = False  # do not wait for running batches
    budget_mode: BudgetMode = "absolute"
    collect: bool = False  # buy nothing
    again: bool = False  # ask requests again that were in batches which the user cancelled


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run."""

    rows: int
    done: int  # answered, refused or failed
    in_flight: int
    done_at_provider: int  # requests in flight that the provider reports as done
    missing: int
    batches: dict[str, int]  # by state
    spent: int  # micro-dollars
    reserved: int  # micro-dollars
    priced: bool = True  # False: the server has no price, so the amounts are 0
    waiting: str = ""  # what the run waits for, and until when; empty while it works


class Account:
    """One run in a budget: its plan, the state of its rows, and the function that appends to its journal."""

    def __init__(self, run: Run, plan: Plan, limits: Limits, clock: Clock, budget: "Budget", queue: "Queue") -> None:
        self.run = run
        self.plan = plan
        self.limits = limits
        self.clock = clock
        self.budget = budget
        self.queue = queue
        self.rows = row_states(
            run.state, plan.rows, plan.repetitions, rebuy_missing=plan.rebuy_missing, again=plan.again
        )
        self.attempts = run.state.attempts()
        self.phase: Literal["buying", "collecting", "closed"] = "buying"  # collecting: its share is left to others
        self.short_of_money = False  # its share buys no more, and no batch is open that could release money
        self.earlier_tokens_per_byte: float | None = None  # of answers without a measurement; None: unknown
        self.settled_before = 0  # batches that were not open when the first batch of this round was bought
        self._lock = anyio.Lock()  # the lines of a journal are chained: write them one at a time

    async def append(self, event: AnyEvent) -> None:
        """Put an event on disk."""
        async with self._lock:
            await to_thread.run_sync(self.run.append, event)

    async def write_mark(self) -> None:
        """Record the newest line of the journal outside it, before a call that costs money is sent."""
        async with self._lock:  # the number and the checksum of a line belong together
            await to_thread.run_sync(self.run.write_mark)

    async def begin(self) -> None:
        """Record the plan, and free the rows of batches that were interrupted before their create."""
        plan, state, now = self.plan, self.run.state, self.clock.now()
        limit = self.budget.limit
        asked = Asked(
            at=now,
            items=plan.items,
            repetitions=plan.repetitions,
            budget=limit,
            rates=plan.price,
            budget_mode=plan.budget_mode,
        )
        if state.asked is None or msgspec.structs.replace(state.asked, at=asked.at) != asked:
            await self.append(asked)
        for batch in state.open():
            if batch.state in ("intent", "uploaded"):
                await self.reject(batch, "interrupted before it was sent")

    async def reject(self, batch: BatchRecord, reason: str) -> None:
        """Record that a batch was not bought, and free its rows."""
        await self.append(Rejected(at=self.clock.now(), nonce=batch.nonce, reason=reason))
        self.mark(batch, batch.ranges, TODO)

    def mark(self, batch: BatchRecord, ranges: Ranges, value: int) -> None:
        """Set the state of rows, unless the plan does not ask for this repetition."""
        if batch.rep < len(self.rows):
            mark(self.rows[batch.rep], ranges, value)
            if ranges and value == TODO:
                mark_cut_off(self.rows[batch.rep], self.run.state, batch.rep)

    def copied(self) -> DataError | None:
        """An error if another copy of the run may have bought, or may still buy, the same requests."""
        if self.run.state.inode in ("", self.run.inode) or self.plan.adopt or self.run.target.emulated:
            return None
        return DataError(
            f"{self.run.folder} was copied, moved to another disk or restored: if no other copy of it has bought "
            "anything since, or ever will, run the same command with --adopt"
        )

    def close(self) -> None:
        """End the run's part in the command: it buys no more, and no other run waits for its batches."""
        self.phase = "closed"

    @property
    def unasked(self) -> bool:
        """Whether some requests are in no batch yet."""
        return any(TODO in marks or CUT_OFF in marks for marks in self.rows)

    def todo(self) -> int:
        """Count the requests that are in no batch yet."""
        return sum(marks.count(TODO) + marks.count(CUT_OFF) for marks in self.rows)

    def reserved(self) -> int:
        """Micro-dollars that the run may still owe."""
        return self.run.state.reserved()

    def owed(self) -> int:
        """Micro-dollars spent and reserved."""
        return self.run.state.spent() + self.reserved()

    def max_cost(self) -> int:
        """Micro-dollars, an upper bound of what the run will have cost when it has ended."""
        return self.owed() + (self.todo() * self.plan.max_row_cost if self.phase == "buying" else 0)

    def progress(self, done_at_provider: int = 0, waiting: str = "") -> Progress:
        """How far the run is."""
        reserved, counts = self.reserved(), count_rows(self.rows)
        return Progress(
            rows=self.plan.rows * self.plan.repetitions,
            done=counts.answered,
            in_flight=counts.in_flight,
            done_at_provider=done_at_provider,
            missing=counts.missing,
            batches=self.run.state.batch_counts(),
            spent=self.run.state.spent(),
            reserved=reserved,
            priced=self.plan.price.priced or self.run.state.priced(),
            waiting=waiting,
        )


class Budget:
    """One budget for all runs of a command."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit  # micro-dollars for all runs together; None is no limit
        # Held from counting what is left until the reservation is on disk. Otherwise another run could count in
        # between, and both would reserve the same money.
        self.reserving = anyio.Lock()
        self.accounts: list[Account] = []
        self._queues: dict[tuple[str, str | None, bool], Queue] = {}

    def join(self, run: Run, plan: Plan, limits: Limits, clock: Clock) -> Account:
        """Count a run's spent and reserved money from now on; call it for every run before any of them buys."""
        target = run.target
        # One environment variable per provider has the key.
        name = (target.provider, target.canonical().base_url, target.emulated)
        queue = self._queues.setdefault(name, Queue(limits.open_batches))
        account = Account(run, plan, limits, clock, self, queue)
        self.accounts.append(account)
        queue.accounts.append(account)
        return account

    def affordable(self, account: Account) -> int | None:
        """Micro-dollars that a run may still reserve; None is no limit.

        What is left of the whole budget is the hard limit. Within it each run keeps to its share, so that the first
        run to start does not take everything. When no run can use its share, each may use what all of them have left.
        """
        if self.limit is None:
            return None
        left = self.limit - sum(other.owed() for other in self.accounts)
        return left if self.pooled() else min(left, self.share(account) - account.owed())

    def share(self, account: Account) -> int:
        """Micro-dollars that a run may cost in all."""
        if self.limit is None or self.pooled():
            return self.limit or 0
        needs = [(other.plan.weight, other.max_cost()) for other in self.accounts]
        return allowances(self.limit, needs)[self.accounts.index(account)]

    def pooled(self) -> bool:
        """Whether there are no shares: there is one run, or no run that wants to buy can use its share."""
        buying = [other for other in self.accounts if other.phase == "buying" and other.unasked]
        return len(self.accounts) == 1 or all(other.short_of_money for other in buying)

    def spent(self) -> int:
        """Micro-dollars that the answers of all runs have cost."""
        return sum(account.run.state.spent() for account in self.accounts)

    def reserved(self) -> int:
        """Micro-dollars that all runs may still owe."""
        return sum(account.reserved() for account in self.accounts)

    def pending(self) -> bool:
        """Whether open batches may release money when they end; batches of a closed run do not count."""
        return any(account.run.state.pending() for account in self.accounts if account.phase != "closed")


class Queue:
    """The provider's queue, shared by all runs that use one key at one address."""

    def __init__(self, max_batches: int) -> None:
        self.accounts: list[Account] = []
        self.max = self.limit = max_batches  # `limit` is learnt: how many batches the provider queues at once
        # A batch's requests, and its answers while they are read, are in memory: limit how many runs do this at once.
        self.submitting = anyio.CapacityLimiter(1)
        self.reading = anyio.CapacityLimiter(AT_ONCE)
        self.peeked: dict[str, set[str]] = {}  # the nonces in ended batches, by id, if only results show them
        self.peeking = anyio.Lock()  # no two runs read the same results

    def full(self) -> int:
        """The provider has refused a batch: limit the queue to the open batches; returns their number."""
        count = len(self.open())
        self.limit = max(1, count)
        return count

    def stored(self) -> None:
        """A batch has ended: raise the limit of the queue by one."""
        self.limit = min(self.max, self.limit + 1)

    def open(self) -> list[BatchRecord]:
        """The batches of all runs in the queue, without those of a failed run, because they may have ended."""
        present = [account for account in self.accounts if account.phase != "closed" or account.plan.detach]
        return [batch for account in present for batch in account.run.state.pending()]

    def room(self, account: Account) -> int:
        """How many more batches a run may have: the queue is shared evenly between the runs that want to buy."""
        waiting = [other for other in self.accounts if other.phase == "buying" and other.unasked]
        fair = max(1, self.limit // max(1, len(waiting)))
        return min(self.limit - len(self.open()), fair - len(account.run.state.pending()))


def allowances(budget: int, needs: Sequence[tuple[float, int]]) -> list[int]:
    """Divide a budget between runs by weight, from the (weight, need) of each; what one does not need, others get."""
    granted = [0] * len(needs)
    left, waiting = budget, [index for index, (_, need) in enumerate(needs) if need > 0]
    while waiting:
        weights = {index: Fraction(needs[index][0]) for index in waiting}  # exact, to the micro-dollar
        shares = {index: int(left * weights[index] / sum(weights.values())) for index in waiting}
        satisfied = [index for index in waiting if needs[index][1] <= shares[index]]
        if not satisfied:
            return [shares.get(index, amount) for index, amount in enumerate(granted)]
        for index in satisfied:
            granted[index] = needs[index][1]
            left -= needs[index][1]
        waiting = [index for index in waiting if index not in satisfied]
    return granted
