"""Ask models: all runs of one command in parallel, within one budget."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import anyio
import msgspec

from batchbench.analyze import quality
from batchbench.app.contact import LOCAL, Contact, check_needs, connected, find_contact, price
from batchbench.app.estimate import CostEstimate, estimate_new, likely_tokens
from batchbench.app.plan import PlannedRun, check_sizes, chosen, make_target, plan, provider_of, run_folder
from batchbench.app.requests import Monitor, Options, Purchase, Selection, Voice
from batchbench.app.spending import check_priced, mention_other_runs, with_budget
from batchbench.compile.manifest import prompt_bytes
from batchbench.core import money
from batchbench.core.clock import Clock
from batchbench.core.money import Price
from batchbench.core.store import Store, storage_warning
from batchbench.dispatch import Account, Budget, Plan, dispatch
from batchbench.dispatch.judge import run_quality
from batchbench.errors import BatchbenchError, InterruptedRun, MissingAnswers, UnreadableAnswers, unforeseen, unknown
from batchbench.runs.folder import Run, open_run, read_state
from batchbench.runs.ingest import max_row_cost
from batchbench.runs.journal import OPEN, BatchRecord, RunState, rows_of
from batchbench.runs.results import outcomes, sample_answers
from batchbench.runs.retry import release_failed
from batchbench.runs.row_states import GIVEN_UP, count_rows
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.spool import BatchSpool

STOPPED = "stopped: submitted batches keep running at the provider; run the same command to continue"
GRACE = 9.0  # seconds that a stop may take; the process may end at any moment without losing anything
ASK_ABOVE = 1.0  # dollars: ask before runs without a budget that probably cost more
TICK = 0.2  # seconds between two ticks of the monitor


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one run ended."""

    probe: str
    model: str
    run: str  # its folder
    asked: int
    answered: int
    refused: int
    failed: int
    empty: int  # replies without text
    missing: int
    spent_usd: float
    reserved_usd: float
    seconds: float
    emulated: bool
    sample_data: bool
    settings: str = ""  # parameters and options that are not the defaults
    priced: bool = True  # False: the server has no price, so the amounts are 0
    lost_calls: int = 0  # single calls that a kill interrupted; they were made again
    lost_calls_usd: float = 0.0  # what they are counted at
    error: str | None = None


class Finished(NamedTuple):
    """How one run ended, and the error behind `result.error`."""

    result: RunResult
    error: BatchbenchError | None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A run with everything that is needed to dispatch it."""

    planned: PlannedRun
    contact: Contact
    plan: Plan


class PreparedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that are ready to be asked, and what that may cost."""

    runs: list[PlannedRun]
    purchase: Purchase
    estimates: list[CostEstimate]  # of the runs that cost real money, if it has to be allowed; else empty

    @property
    def question(self) -> str:
        """What it may cost, if the user has to allow that; else empty."""
        likely, worst = (sum(getattr(one, name) for one in self.estimates) for name in ("batch_usd", "worst_usd"))
        return f"this costs about ${likely:,.2f}, at most ${worst:,.2f}" if likely > ASK_ABOVE else ""


def prepare_runs(
    selection: Selection, options: Options, purchase: Purchase, store: Store, voice: Voice
) -> PreparedRuns:
    """Check and compile every probe with every model, and estimate the cost if it has no limit."""
    for name in selection.models:
        for probe, params in chosen(selection, provider_of(name)):
            target = make_target(name, options, probe, params)
            check_needs(options, store, target)
            check_priced(purchase, options, store, target)
    check_sizes(selection, options, store, voice)
    runs = plan(selection, options, store, voice)
    purchase = with_budget(purchase, runs, store, voice)
    estimates = []
    if purchase.limit is None and not purchase.yes and not purchase.collect:
        real = [run for run in runs if not run.target.emulated]
        estimates = [
            estimate_new(run, store, rebuy_missing=purchase.rebuy_missing, again=purchase.again) for run in real
        ]
    return PreparedRuns(runs=runs, purchase=purchase, estimates=estimates)


def ask(runs: Sequence[PlannedRun], purchase: Purchase, store: Store, voice: Voice) -> list[Finished]:
    """Dispatch all runs in parallel. An error of one run does not stop the others."""
    decisions = parse_resolutions(purchase, runs, store)
    mention_other_runs(runs, store, voice)
    jobs = [_job(planned, purchase, store, decisions) for planned in runs]
    if not jobs:
        return []
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_planned(job.planned, store)) for job in jobs]
        paid = any(job.plan.max_row_cost and not job.contact.target.emulated for job in jobs)
        if paid and (warning := storage_warning(store.cache)):
            voice.note(warning)
        for run, job in zip(opened, jobs, strict=True) if purchase.retry_failed and not purchase.collect else ():
            release_failed(run, job.plan.rows, job.plan.repetitions, time.time())
        # Every run joins the budget before any run buys: what each has spent so far counts.
        clock, budget = Clock(), Budget(purchase.limit)
        accounts = [
            budget.join(run, job.plan, job.contact.limits, clock) for run, job in zip(opened, jobs, strict=True)
        ]
        tasks = list(map(_Task, range(len(jobs)), jobs, accounts))
        stopped = anyio.run(_Dispatches(tasks, store, voice).run, purchase.limit)
        return [task.finished(stopped=stopped) for task in tasks]


def open_planned(planned: PlannedRun, store: Store) -> contextlib.AbstractContextManager[Run]:
    """Open the folder of a planned run, and lock it."""
    item = planned.compiled
    return open_run(store, item.folder, item.manifest, planned.target, time.time())


def _job(planned: PlannedRun, purchase: Purchase, store: Store, decisions: list[tuple[str, str]]) -> Job:
    """Look up price and key; start the emulator if the target needs it."""
    plan = make_plan(planned, purchase, store)
    contact = find_contact(planned.options, store, planned.target)
    plan = msgspec.structs.replace(
        plan,
        decisions=decisions,
        pilot=_pilot(purchase, contact, plan.price),
        detach=purchase.detach and contact.provider.name not in LOCAL,
    )
    return Job(planned=planned, contact=contact, plan=plan)


def _pilot(purchase: Purchase, contact: Contact, rates: Price) -> Literal["calls", "batch", "none"]:
    """How the first prompts are asked. The price decides: a server on this machine may forward to a paid provider."""
    if contact.target.emulated or not (rates.input or rates.output):
        return "none"
    return "calls" if purchase.pilot == "auto" else purchase.pilot


def make_plan(planned: PlannedRun, purchase: Purchase, store: Store) -> Plan:
    """What a run is to ask, and what it may cost."""
    item, rates = planned.compiled, price(planned.options, store, planned.target)
    longest = prompt_bytes(item.folder, item.manifest, planned.rows).longest
    return Plan(
        items=planned.items,
        rows=planned.rows,
        repetitions=planned.options.repetitions,
        price=rates,
        weight=planned.weight,
        max_row_cost=rates.bound(longest + planned.target.other_bytes, planned.target.max_tokens),
        expected_row_cost=rates.cost(*likely_tokens(planned, 1000)) / 1000,
        anyway=purchase.anyway,
        rebuy_missing=purchase.rebuy_missing,
        adopt=purchase.adopt,
        anew=purchase.anew,
        budget_mode=purchase.budget_mode,
        collect=purchase.collect,
        again=purchase.again,
    )


def parse_resolutions(purchase: Purchase, runs: Sequence[PlannedRun], store: Store) -> list[tuple[str, str]]:
    """Nonce and answer of each --resolve; raises UsageError if none of these runs has such a batch."""
    pairs = [(nonce, answer) for nonce, _, answer in (text.partition("=") for text in purchase.resolve)]
    known: set[str] = set()
    for planned in runs if pairs else ():
        folder = run_folder(planned, store)
        known |= read_state(folder).batches.keys() if (folder / "journal").exists() else set()
    for nonce, _ in pairs:
        if nonce not in known:
            raise unknown("batch to resolve", nonce, known)
    return pairs


class _Task:
    """One run while it is dispatched."""

    def __init__(self, number: int, job: Job, account: Account) -> None:
        self.number = number
        self.job = job
        self.account = account
        self.error: BatchbenchError | None = None
        self.seconds = 0.0

    def finished(self, *, stopped: bool) -> Finished:
        """How the run ended; `stopped`: the user interrupted the program."""
        result = _result(self)
        error = (
            self.error
            or _shortfall(
                result, self.account.run.state, self.account.rows, stopped=stopped, collect=self.job.plan.collect
            )
            or self._unreadable()
        )
        return Finished(msgspec.structs.replace(result, error=None if error is None else str(error)), error)

    def _unreadable(self) -> UnreadableAnswers | None:
        """An error if most answers of a complete run cannot be read."""
        run = self.account.run
        if self.job.plan.anyway or not (sample := sample_answers(run.folder, run.state)).height:
            return None
        cause = quality.problem(run_quality(run, sample), quality.Quality(), run.target.max_tokens)
        return UnreadableAnswers(f"{cause}; `batchbench answers` lists them, --anyway accepts them") if cause else None


class _Dispatches:
    """All runs of one command, dispatched in parallel."""

    def __init__(self, tasks: list[_Task], store: Store, voice: Voice) -> None:
        self._tasks = tasks
        self._store = store
        self._voice = voice
        self._stop = anyio.Event()
        self._rate_limits: dict[str, RateLimit] = {}  # by chat server; its runs share one rate limit

    async def run(self, budget: int | None) -> bool:
        """Dispatch every run to its end, or until a signal stops them; returns whether one did."""
        with self._voice.monitor([task.job.planned.name for task in self._tasks], budget) as monitor:
            async with anyio.create_task_group() as background:
                if threading.current_thread() is threading.main_thread():
                    background.start_soon(_stop_on_signal, self._stop)
                background.start_soon(_tick, monitor)
                async with anyio.create_task_group() as group:
                    for task in self._tasks:
                        group.start_soon(self._guarded, task, monitor)
                background.cancel_scope.cancel()
        return self._stop.is_set()

    async def _guarded(self, task: _Task, monitor: Monitor) -> None:
        """Dispatch one run, and keep its error."""
        started = time.monotonic()
        try:
            await self._dispatch(task, monitor)
        except (BatchbenchError, ExceptionGroup) as raised:
            task.error = _first(raised)
        finally:
            task.account.close()
            task.seconds = time.monotonic() - started
            monitor.end(task.number)

    async def _dispatch(self, task: _Task, monitor: Monitor) -> None:
        contact, folder = task.job.contact, task.account.run.folder
        chat = contact.provider.name == "chat"
        limit = self._rate_limits.setdefault(contact.base_url, RateLimit()) if chat else None
        show = partial(monitor.show, task.number)
        show(task.account.progress())
        async with connected(contact, self._store, folder, self._voice, limit) as calls:
            if isinstance(calls, BatchSpool):
                calls.may_execute = not task.job.plan.collect
            await dispatch(task.account, contact.provider, calls, self._stop, show)


async def _tick(monitor: Monitor) -> None:
    while True:
        await anyio.sleep(TICK)
        monitor.tick()


async def _stop_on_signal(stop: anyio.Event) -> None:
    """Stop at the first signal; end the process at the second one, or when stopping takes too long."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                os._exit(InterruptedRun.exit_code)
            stop.set()
            leave = threading.Timer(GRACE, os._exit, [InterruptedRun.exit_code])
            leave.daemon = True
            leave.start()


def _first(raised: BatchbenchError | ExceptionGroup[Exception]) -> BatchbenchError:
    """The first of several errors; a programming error is raised again."""
    first: Exception = raised
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, RuntimeError) and "start new thread" in str(first):  # its stack needs memory
        first = MemoryError(str(first))
    if isinstance(first, (OSError, MemoryError)):
        return unforeseen(first)
    if not isinstance(first, BatchbenchError):
        raise raised
    return first


def _result(task: _Task) -> RunResult:
    planned, plan, run = task.job.planned, task.job.plan, task.account.run
    counts = outcomes(run.folder, run.state, plan.rows, plan.repetitions)
    asked = plan.rows * plan.repetitions
    stored = [batch for batch in run.state.batches.values() if batch.stored]
    return RunResult(
        probe=planned.compiled.probe.name,
        model=planned.target.name,
        run=str(run.folder),
        asked=asked,
        answered=counts["answered"] + counts["truncated"],
        refused=counts["refused"] + counts["filtered"],
        failed=counts["failed"],
        empty=counts["empty"],
        missing=asked - counts.total(),
        spent_usd=run.state.spent() / money.MILLION,
        reserved_usd=task.account.reserved() / money.MILLION,
        seconds=round(task.seconds, 3),
        emulated=planned.target.emulated,
        sample_data=planned.compiled.params.data == "sample",
        settings=planned.settings,
        priced=run.state.priced(),
        lost_calls=sum(batch.stored.interrupted for batch in stored if batch.stored),
        lost_calls_usd=sum(batch.stored.interrupted * max_row_cost(batch) for batch in stored if batch.stored)
        / money.MILLION,
    )


def _still_held(batch: BatchRecord, rows: list[bytearray]) -> bool:
    """Whether rows that were refused because of the server or the settings have no answer yet."""
    held = rows_of(batch.stored.held) if batch.stored and batch.rep < len(rows) else []
    return any(row < len(rows[batch.rep]) and rows[batch.rep][row] == GIVEN_UP for row in held)


def _left_out(result: RunResult, state: RunState, rows: list[bytearray], *, collect: bool) -> str:
    """Which requests were not asked on purpose; empty if there are none."""
    counts = count_rows(rows)
    cancelled = f"{counts.cancelled:,} requests of batches that you cancelled have no answer: --again asks them again"
    if not collect:
        return cancelled if counts.cancelled and not counts.todo and not state.pending() else ""
    open_batches = ", ".join(f"{count} {name}" for name, count in state.batch_counts().items() if name in OPEN)
    parts = [f"{result.missing:,} of {result.asked:,} requests have no answer, and none was bought (--collect)"]
    parts += [f"open batches: {open_batches}"] if open_batches else []
    parts += [f"{counts.todo:,} are in no batch: run the same command without --collect"] if counts.todo else []
    return "; ".join([*parts, *([cancelled] if counts.cancelled else [])])


def _shortfall(
    result: RunResult, state: RunState, rows: list[bytearray], *, stopped: bool, collect: bool
) -> BatchbenchError | None:
    """Why a run without an error is not complete; a request that the provider rejects counts as failed, not missing."""
    if result.failed and result.failed == result.asked:
        return BatchbenchError(f"all {result.asked:,} requests failed: see `batchbench explain` for one of them")
    if not result.missing:
        return None
    held = {batch.stored.held_reason for batch in state.batches.values() if batch.stored and _still_held(batch, rows)}
    if held and not state.pending() and not stopped:
        return MissingAnswers(
            f"{result.missing:,} of {result.asked:,} requests have no answer: some were refused because of the server "
            f"or the settings ({min(held)}): correct this, then run the same command"
        )
    if stopped:
        return InterruptedRun(STOPPED)
    if reason := _left_out(result, state, rows, collect=collect):
        return MissingAnswers(reason)
    if state.pending():
        return MissingAnswers("batches are still running at the provider: run the same command later to collect them")
    missing = f"{result.missing:,} of {result.asked:,} answers are missing"
    if exported := sum(batch.rows for batch in state.open() if batch.state == "exported"):
        return MissingAnswers(f"{missing}, {exported:,} of them exported: import them with `batchbench import`")
    return MissingAnswers(f"{missing}, lost or given up by the provider: --rebuy-missing asks for them again")
