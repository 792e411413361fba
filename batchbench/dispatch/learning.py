"""Spend a budget to its end: reserve less for the next requests, by what the answers of the run so far teach.

A reserve is the highest cost of a request, several times its usual cost. So a round of batches uses only a part of the
money, and the rest is free when the round has ended. The less a reserve exceeds the cost, the fewer rounds a
budget takes. The limit of output tokens is in the requests, so the provider keeps it: a short limit breaks no promise.
What it cuts off is asked again with the target's own limit.
"""

import math

import msgspec
from anyio import to_thread

from batchbench.compile.manifest import sizes_of
from batchbench.core.money import dollars
from batchbench.dispatch.budget import Account
from batchbench.errors import BudgetReached, UsageError
from batchbench.providers.target import Target
from batchbench.runs.folder import Run
from batchbench.runs.ingest import measure_input
from batchbench.runs.journal import RunState
from batchbench.runs.results import answer_files, read_answers

LONGER, SHORTEST = 1.25, 8  # a limit, relative to the longest answer so far, and in tokens
ENOUGH = 10  # answers of a pilot that teach how long answers are
FIRST_PART, FIRST_ROWS = 50, 20  # a round that teaches has a fiftieth of the run's requests, and at least 20


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What limits the cost of a batch's requests."""

    max_tokens: int | None = None  # of output; None: the target's own limit
    tokens_per_byte: float | None = None  # of input; None: at most a token per byte


def full_terms(account: Account) -> Terms:
    """The terms of requests with the target's own limit."""
    return Terms(tokens_per_byte=tokens_per_byte(account) if account.plan.budget_mode == "learnt" else None)


def short_terms(account: Account, affordable: int | None) -> Terms:
    """The terms of requests that were not cut off before: with a short limit, if the budget limits the run."""
    terms, longest = full_terms(account), longest_answer(account.run.state)
    if not longest or not _binds(account, affordable) or _thinks(account.run.target):
        return terms
    limit = max(SHORTEST, math.ceil(longest * LONGER))
    return terms if limit >= account.run.target.max_tokens else msgspec.structs.replace(terms, max_tokens=limit)


def first_round(account: Account, affordable: int | None) -> int | None:
    """How many requests a round has that teaches how long answers are; None if the run needs no such round."""
    known = longest_answer(account.run.state) is not None
    if known or not _binds(account, affordable) or _thinks(account.run.target):
        return None
    return max(FIRST_ROWS, account.plan.rows * account.plan.repetitions // FIRST_PART)


def longest_answer(state: RunState) -> int | None:
    """Output tokens of the longest answer so far, also of the pilot; None if too few answers are known."""
    stored = [batch.stored.longest for batch in state.batches.values() if batch.stored]
    known = [longest for longest in stored if longest is not None]
    asked = [one.answer.output_tokens for one in state.passed if one.answer and one.answer.usage]
    return max([*known, *asked]) if known or len(asked) >= ENOUGH else None


def tokens_per_byte(account: Account) -> float | None:
    """Input tokens per byte, of one request so far at most.

    None if that is unknown, or if a request had more input tokens than were reserved for it.
    """
    stored = [batch.stored for batch in account.run.state.batches.values() if batch.stored]
    if any(one.above for one in stored) or account.earlier_tokens_per_byte is None:
        return None
    asked = [one for one in account.run.state.passed if one.answer and one.answer.usage and one.input_bytes]
    found = [one.answer.input_tokens / one.input_bytes for one in asked if one.answer]
    highest = max([*found, *(one.tokens_per_byte for one in stored), account.earlier_tokens_per_byte], default=0.0)
    return highest or None


async def measure_earlier(account: Account) -> None:
    """Measure the input of answers that were stored without that: in the absolute mode, late, or by older versions."""
    if account.plan.budget_mode == "learnt":
        account.earlier_tokens_per_byte = await to_thread.run_sync(_highest_unmeasured, account.run)


def _highest_unmeasured(run: Run) -> float | None:
    """Input tokens per byte, of one unmeasured request at most; None if one had more tokens than were reserved."""
    highest = 0.0
    for batch in run.state.batches.values():
        if batch.stored and (not batch.stored.tokens_per_byte or len(answer_files(run.folder, batch)) > 1):
            answers = read_answers(run.folder, RunState(batches={batch.nonce: batch})).collect()
            sizes = sizes_of(run.manifest_folder, run.manifest, batch.ranges)
            found, above = measure_input(answers, sizes, run.target, batch.tokens_per_byte)
            if above:
                return None
            highest = max(highest, found)
    return highest


def _binds(account: Account, affordable: int | None) -> bool:
    """Whether the rest of the run may cost more than it may still reserve."""
    return affordable is not None and account.todo() * account.plan.max_row_cost > affordable


def _thinks(target: Target) -> bool:
    """Whether a model thinks: its thoughts count as output and vary in length, so it keeps its own limit."""
    try:
        return target.resolved_thinking().effort is not None
    except UsageError:  # options of an older run that are not accepted any more
        return True


def budget_reached(account: Account, affordable: int, next_cost: int) -> BudgetReached:
    """Why nothing more is bought, and what the rest of all runs of the command would cost."""
    budget = account.budget
    waiting = [one for one in budget.accounts if one.unasked and one.phase != "closed"]
    rest, most = sum(map(_likely_rest, waiting)), sum(one.todo() * one.plan.max_row_cost for one in waiting)
    spent, reserved = budget.spent(), budget.reserved()
    held = f", {dollars(reserved)} reserved" if reserved else ""
    why = (
        f"the next request may cost up to {dollars(next_cost)}" if affordable < next_cost else "that is below 3 % of it"
    )
    return BudgetReached(
        f"{dollars(spent)} of the budget of {dollars(budget.limit or 0)} is spent{held}, "
        f"{dollars(max(0, affordable))} is left, and {why}. The other {sum(one.todo() for one in waiting):,} requests "
        f"would cost about {dollars(rest)}, at most {dollars(most)}: raise --budget to about "
        f"{dollars(spent + reserved + rest)} and run the same command"
    )


def _likely_rest(account: Account) -> int:
    """Micro-dollars that the requests in no batch would probably cost, by the answers so far or by the estimate."""
    stored = [batch.stored for batch in account.run.state.batches.values() if batch.stored]
    answered, cost = sum(one.answered for one in stored), sum(one.cost for one in stored)
    return math.ceil(account.todo() * (cost / answered if answered else account.plan.expected_row_cost))
