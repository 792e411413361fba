"""Ask models: all runs of one command in parallel, within one budget."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import anyio
import msgspec

from batchbench.app.contact import LOCAL, Contact, connected, find_contact, price
from batchbench.app.plan import PlannedRun, plan
from batchbench.app.requests import Monitor, Options, Purchase, Selection, Voice
from batchbench.compile.manifest import prompt_bytes
from batchbench.core import money
from batchbench.core.clock import Clock
from batchbench.core.store import Store, storage_warning
from batchbench.dispatch import Account, Budget, Plan, dispatch, resolve
from batchbench.errors import BatchbenchError, InterruptedRun, MissingAnswers, unforeseen, unknown
from batchbench.runs.folder import Run, open_run, read_state
from batchbench.runs.journal import RunState
from batchbench.runs.results import outcomes
from batchbench.transport.rate_limit import RateLimit

STOPPED = "stopped: submitted batches keep running at the provider; run the same command to continue"
GRACE = 9.0  # seconds that a stop may take; the process may end at any moment without losing anything
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
    missing: int
    spent_usd: float
    reserved_usd: float
    seconds: float
    emulated: bool
    sample_data: bool
    settings: str = ""  # parameters and options that are not the defaults
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


def run_probes(
    selection: Selection, options: Options, purchase: Purchase, store: Store, voice: Voice
) -> list[Finished]:
    """Run every probe with every model; calling it again asks only the missing requests."""
    return ask(plan(selection, options, store, voice), purchase, store, voice)


def ask(runs: Sequence[PlannedRun], purchase: Purchase, store: Store, voice: Voice) -> list[Finished]:
    """Dispatch all runs in parallel. An error of one run does not stop the others."""
    resolutions = parse_resolutions(purchase, runs, store)
    jobs = [_job(planned, purchase, store) for planned in runs]
    if not jobs:
        return []
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_planned(job.planned, store)) for job in jobs]
        paid = any(job.plan.max_row_cost and not job.contact.target.emulated for job in jobs)
        if paid and (warning := storage_warning(store.cache)):
            voice.note(warning)
        for run, (nonce, answer) in product(opened, resolutions):
            resolve(run, nonce, answer, time.time())
        # Every run joins the budget before any run buys: what each has spent so far counts.
        clock, budget = Clock(), Budget(purchase.budget)
        accounts = [
            budget.join(run, job.plan, job.contact.limits, clock) for run, job in zip(opened, jobs, strict=True)
        ]
        tasks = list(map(_Task, range(len(jobs)), jobs, accounts))
        stopped = anyio.run(_Dispatches(tasks, store, voice).run, purchase.budget)
        return [task.finished(stopped=stopped) for task in tasks]


def open_planned(planned: PlannedRun, store: Store) -> contextlib.AbstractContextManager[Run]:
    """Open the folder of a planned run, and lock it."""
    item = planned.compiled
    return open_run(store, item.folder, item.manifest, planned.target, time.time())


def _job(planned: PlannedRun, purchase: Purchase, store: Store) -> Job:
    """Look up price and key; start the emulator if the target needs it."""
    plan = make_plan(planned, purchase, store)
    contact = find_contact(planned.options, store, planned.target)
    plan = msgspec.structs.replace(
        plan,
        trial=purchase.trial == "always" or (purchase.trial == "auto" and not contact.local),
        detach=purchase.detach and contact.provider.name not in LOCAL,
    )
    return Job(planned=planned, contact=contact, plan=plan)


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
        max_row_cost=rates.bound(longest, planned.target.max_tokens),
        rebuy_missing=purchase.rebuy_missing,
        adopt=purchase.adopt,
    )


def parse_resolutions(purchase: Purchase, runs: Sequence[PlannedRun], store: Store) -> list[tuple[str, str]]:
    """Nonce and answer of each --resolve; raises UsageError if none of these runs has such a batch."""
    pairs = [(nonce, answer) for nonce, _, answer in (text.partition("=") for text in purchase.resolve)]
    known: set[str] = set()
    for planned in runs if pairs else ():
        folder = store.cache / planned.compiled.folder.name / planned.target.slug
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
        error = self.error or _shortfall(result, self.account.run.state, stopped=stopped)
        return Finished(msgspec.structs.replace(result, error=None if error is None else str(error)), error)


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
    if isinstance(first, (OSError, MemoryError)):
        return unforeseen(first)
    if not isinstance(first, BatchbenchError):
        raise raised
    return first


def _result(task: _Task) -> RunResult:
    planned, plan, run = task.job.planned, task.job.plan, task.account.run
    counts = outcomes(run.folder, run.state, plan.rows, plan.repetitions)
    asked = plan.rows * plan.repetitions
    return RunResult(
        probe=planned.compiled.probe.name,
        model=planned.target.name,
        run=str(run.folder),
        asked=asked,
        answered=counts["answered"] + counts["truncated"],
        refused=counts["refused"] + counts["filtered"],
        failed=counts["failed"],
        missing=asked - counts.total(),
        spent_usd=run.state.spent() / money.MILLION,
        reserved_usd=task.account.reserved() / money.MILLION,
        seconds=round(task.seconds, 3),
        emulated=planned.target.emulated,
        sample_data=planned.compiled.params.data == "sample",
        settings=planned.settings,
    )


def _shortfall(result: RunResult, state: RunState, *, stopped: bool) -> BatchbenchError | None:
    """Why a run without an error is not complete; a request that the provider rejects counts as failed, not missing."""
    if result.failed and result.failed == result.asked:
        return BatchbenchError(f"all {result.asked:,} requests failed: see `batchbench explain` for one of them")
    if not result.missing:
        return None
    if stopped:
        return InterruptedRun(STOPPED)
    if state.pending():
        return MissingAnswers("batches are still running at the provider: run the same command later to collect them")
    missing = f"{result.missing:,} of {result.asked:,} answers are missing"
    if exported := sum(batch.rows for batch in state.open() if batch.state == "exported"):
        return MissingAnswers(f"{missing}, {exported:,} of them exported: import them with `batchbench import`")
    return MissingAnswers(f"{missing}, lost or given up by the provider: --rebuy-missing asks for them again")
