"""What runs that are dispatched at the same time have in common: one budget, and one place at each provider's."""

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import anyio

from batchbench.runs.journal import BatchRecord

if TYPE_CHECKING:
    from batchbench.dispatch.state import Work

AT_ONCE = 2  # batches encoded, uploaded or read side by side


class Common:
    """One budget over several runs, and the accounts they share; a run alone has it all to itself."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget  # micro-dollars for all runs together; null is no limit
        # Held from counting what is left until the promise is on disk: were another run to count in between, both
        # could promise the same money.
        self.deciding = anyio.Lock()
        self._works: list[Work] = []
        self._accounts: dict[tuple[str, str | None, bool], Account] = {}

    def join(self, work: "Work") -> "Account":
        """Take a run in, before any of them buys; the account that it asks through."""
        self._works.append(work)
        target = work.run.target
        name = (target.provider, target.base_url, target.emulated)  # keys come from one variable for each provider
        account = self._accounts.setdefault(name, Account(work.limits.open_batches))
        account.works.append(work)
        return account

    def affordable(self, work: "Work") -> int | None:
        """Micro-dollars that a run may still promise; null is no limit.

        What is left of the whole budget is the limit that must hold. Within it each run keeps to its part, so that
        the first to start does not take it all.
        """
        if self.budget is None:
            return None
        left = self.budget - sum(other.owed() for other in self._works)
        if len(self._works) == 1:
            return left
        wants = [(other.wish.weight, self._need(other)) for other in self._works]
        part = allowances(self.budget, wants)[self._works.index(work)]
        return min(left, part - work.owed())

    def _need(self, work: "Work") -> int:
        """The most a run will have cost when it is done."""
        return work.owed() + (work.todo() * work.wish.each if work.asking else 0)

    def spent(self) -> int:
        """Micro-dollars that the answers of all runs have cost."""
        return sum(work.run.state.spent() for work in self._works)

    def reserved(self) -> int:
        """Micro-dollars that all runs may still owe."""
        return sum(work.owed() for work in self._works) - self.spent()

    def pending(self) -> bool:
        """Whether batches are open whose end may set money free; those of a run that has ended, nobody waits for."""
        return any(work.run.state.pending() for work in self._works if not work.ended)


class Account:
    """What a provider sees of us: all runs that use one key at one address."""

    def __init__(self, ceiling: int) -> None:
        self.works: list[Work] = []
        self.ceiling = ceiling  # learnt: how many batches the provider queues at once
        # A batch's requests, and its answers while they are read, are in memory: not for every run at once.
        self.submitting = anyio.CapacityLimiter(1)
        self.reading = anyio.CapacityLimiter(AT_ONCE)

    def open(self) -> list[BatchRecord]:
        """The batches of all runs that take up room; those that a failed run has left behind may do so, too, or not."""
        staying = [work for work in self.works if not work.ended or work.wish.detach]
        return [batch for work in staying for batch in work.run.state.pending()]

    def room(self, work: "Work") -> int:
        """How many more batches a run may have: as many as the provider queues, evenly over those who wait."""
        waiting = [other for other in self.works if other.asking and other.unasked]
        fair = max(1, self.ceiling // max(1, len(waiting)))
        return min(self.ceiling - len(self.open()), fair - len(work.run.state.pending()))


def allowances(budget: int, wants: Sequence[tuple[float, int]]) -> list[int]:
    """What each run may have of a budget, from its weight and its need; what one does not need is the others'."""
    given = [0] * len(wants)
    left, waiting = budget, [place for place, (_, need) in enumerate(wants) if need > 0]
    while waiting:
        weights = {place: Fraction(wants[place][0]) for place in waiting}  # exact: to the micro-dollar
        parts = {place: int(left * weights[place] / sum(weights.values())) for place in waiting}
        content = [place for place in waiting if wants[place][1] <= parts[place]]
        if not content:
            return [parts.get(place, amount) for place, amount in enumerate(given)]
        for place in content:
            given[place] = wants[place][1]
            left -= wants[place][1]
        waiting = [place for place in waiting if place not in content]
    return given
