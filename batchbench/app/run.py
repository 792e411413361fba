"""What `batchbench run` does, apart from its options: everything heavy is imported here."""

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec

from batchbench import dispatch as stage
from batchbench.app import contact as stages
from batchbench.app.compile import Compiled
from batchbench.app.contact import Contact
from batchbench.app.estimate import named, prompt_bytes, settings
from batchbench.cli import output
from batchbench.cli.screen import Screen
from batchbench.cli.watchdog import Vigil
from batchbench.compile.manifest import read_manifest
from batchbench.core import money
from batchbench.core.disk import storage_warning
from batchbench.core.store import Store
from batchbench.dispatch import Clock, Common, Wish, Work, dispatch
from batchbench.errors import BatchbenchError, InterruptedRun, MissingAnswers, UsageError, unforeseen, unknown
from batchbench.providers import target as targets
from batchbench.providers.target import Target
from batchbench.runs import journal
from batchbench.runs.answers import outcomes
from batchbench.runs.folder import Run, open_run, read_journal, read_run, run_folders
from batchbench.runs.journal import State
from batchbench.transport.rate_limit import RateLimit

STOPPED = "stopped: batches that were paid for keep running; the same command goes on"
GRACE = 9.0  # seconds after which a stop no longer waits: leaving at any moment loses nothing


class Report(msgspec.Struct, kw_only=True):
    """One run, as `--json` tells it."""

    probe: str
    model: str
    run: str
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
    settings: str = ""  # parameters and options that are not the usual ones
    error: str | None = None


def run(args: argparse.Namespace) -> int:
    """Run each probe with each model, all at once; the exit code is that of the first trouble."""
    store = output.store(args)
    budget = money.parse_budget(args.budget) if args.budget is not None else None
    wanted = stages.planned(args, store)
    resolutions(store, wanted, args.resolve)
    for item, _ in wanted:
        stages.sample_size(args, item.probe, item.manifest)  # complains before anything is started
    jobs = [job(args, store, item, target, budget) for item, target in wanted]
    finished = ask(args, store, jobs, budget)
    if args.json:
        output.show_json([report for report, _ in finished])
    elif not args.quiet:
        for report, _ in finished:
            output.show(sentence(report))
    return complain(finished)


def complain(finished: list[tuple[Report, BatchbenchError | None]]) -> int:
    """Say what went wrong, each thing once; the exit code is that of the first trouble."""
    troubles = [error for _, error in finished if error is not None]
    for error in {str(error): error for error in troubles}.values():
        output.complain(error)
    return troubles[0].exit_code if troubles else 0


def cancel(args: argparse.Namespace) -> int:
    """Ask the provider to stop what is running; runs that never were are not made by that."""
    store = output.store(args)
    stopped = []
    for folder in run_folders(store):
        about = read_run(folder / "run.json")
        manifest_folder = store.manifests / about.manifest
        manifest = read_manifest(manifest_folder)
        if manifest is None or manifest.probe not in args.probes or about.target.name not in args.models:
            continue
        contact = stages.contact(args, store, stages.vouched(args, about.target, folder))
        with open_run(store, manifest_folder, manifest, contact.target, time.time()) as opened:
            wish = Wish(items=0, rows=0, repetitions=0, price=contact.price)

            async def ask(opened: Run = opened, contact: Contact = contact, wish: Wish = wish) -> int:
                async with stages.connected(contact, args, store, opened.folder) as api:
                    return await stage.cancel(Work(opened, contact.provider, contact.limits, api, wish, Clock()))

            stopped.append({"probe": manifest.probe, "model": contact.target.name, "cancelling": anyio.run(ask)})
    if args.json:
        output.show_json(stopped)
    elif not stopped:
        output.show("nothing to cancel: see `batchbench status`")
    else:
        for entry in stopped:
            output.show(f"{entry['probe']} {entry['model']}: {entry['cancelling']} batches are being cancelled")
    return 0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be: its prompts, whom to ask, and what is wanted."""

    item: Compiled
    contact: Contact
    wish: Wish

    @property
    def name(self) -> str:
        """For people."""
        return named(self.item, self.contact.target)


def job(
    args: argparse.Namespace, store: Store, item: Compiled, target: Target, budget: int | None, weight: float = 1.0
) -> Job:
    """Everything that is needed to ask a target what a probe asks; its emulator is started, its key looked up."""
    contact = stages.contact(args, store, target)
    items = stages.sample_size(args, item.probe, item.manifest)
    rows = items * item.manifest.variants
    wish = Wish(
        items=items,
        rows=rows,
        repetitions=args.repetitions,
        price=contact.price,
        budget=budget,
        weight=weight,
        each=contact.price.bound(prompt_bytes(item, rows).most, target.max_tokens),
        rebuy_missing=args.rebuy_missing,
        adopt=args.adopt,
        trial=args.trial == "always" or (args.trial == "auto" and not targets.is_loopback(contact.base_url)),
        detach=args.detach and contact.provider.name not in stages.LOCAL,
    )
    return Job(item=item, contact=contact, wish=wish)


def ask(
    args: argparse.Namespace, store: Store, jobs: list[Job], budget: int | None
) -> list[tuple[Report, BatchbenchError | None]]:
    """Ask everything at once, within one budget; for each run how it ended, and what was in its way.

    All runs are opened before anything is bought: what they have spent and promised so far counts, too.
    """
    said = resolutions(store, [(one.item, one.contact.target) for one in jobs], args.resolve)
    started = time.monotonic()
    errors: list[BatchbenchError | None] = [None] * len(jobs)
    seconds = [0.0] * len(jobs)
    stopped = False
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(open_run(store, one.item.folder, one.item.manifest, one.contact.target, time.time()))
            for one in jobs
        ]

        paid = any(one.wish.each and not one.contact.target.emulated for one in jobs)
        if paid and (warning := storage_warning(store.cache)):
            output.note(args)(warning)

        async def main() -> None:
            stop, everybody = anyio.Event(), anyio.Event()
            common, waiting = Common(budget), set(range(len(jobs)))
            paces: dict[str, RateLimit] = {}  # by server: runs at the same one learn from each other how fast it is

            def arrived(place: int) -> None:
                waiting.discard(place)
                if not waiting:
                    everybody.set()

            async def one(place: int) -> None:
                it, run = jobs[place], opened[place]
                pace = paces.setdefault(it.contact.base_url, RateLimit())
                async with stages.connected(it.contact, args, store, run.folder, pace) as api:
                    work = Work(run, it.contact.provider, it.contact.limits, api, it.wish, Clock(), common)
                    screen.show(place, work.standing())
                    arrived(place)
                    await everybody.wait()  # what every run has spent and promised counts before any buys
                    for nonce, answer in said:
                        await stage.resolve(work, nonce, answer)
                    await dispatch(work, stop, partial(screen.show, place))

            async def guarded(place: int) -> None:
                try:
                    await one(place)
                except (BatchbenchError, ExceptionGroup) as raised:
                    errors[place] = _first(raised)
                finally:
                    arrived(place)
                    seconds[place] = time.monotonic() - started
                    screen.end(place)

            names = [one.name for one in jobs]
            with Screen(args, names, budget) as screen, Vigil(output.note(args)) as vigil:
                async with anyio.create_task_group() as around:
                    if threading.current_thread() is threading.main_thread():
                        around.start_soon(_stop_on_signal, stop)
                    around.start_soon(_tick, screen, vigil)
                    async with anyio.create_task_group() as group:
                        for place in range(len(jobs)):
                            group.start_soon(guarded, place)
                    around.cancel_scope.cancel()
            nonlocal stopped
            stopped = stop.is_set()

        if jobs:
            anyio.run(main)
        finished = []
        for one, run, error, took in zip(jobs, opened, errors, seconds, strict=True):
            report = _report(run.folder, run.state, one.item, one.contact, one.wish, took)
            if error is None:
                error = _lack(report, run.state, stopped=stopped)
            report.error = str(error) if error is not None else None
            finished.append((report, error))
    return finished


def _lack(report: Report, state: State, *, stopped: bool) -> BatchbenchError | None:
    """What a run lacks although nothing was in its way; requests that failed for their own sake are data."""
    if report.failed and report.failed == report.asked:
        return BatchbenchError(f"all {report.asked:,} requests failed: see `batchbench explain` for one of them")
    if not report.missing:
        return None
    if stopped:
        return InterruptedRun(STOPPED)
    if state.pending():
        return MissingAnswers("batches are running at the provider's: the same command collects their answers")
    told = f"{report.missing:,} of {report.asked:,} answers are missing"
    if exported := sum(batch.rows for batch in state.open() if batch.state == "exported"):
        return MissingAnswers(f"{told}, {exported:,} of them exported: bring their results with `batchbench import`")
    return MissingAnswers(f"{told}, lost or given up by the provider: --rebuy-missing asks for them again")


def _first(raised: BatchbenchError | ExceptionGroup[Exception]) -> BatchbenchError:
    """Several errors at once are told as the first; what nobody foresaw is not swallowed."""
    first: Exception = raised
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, (OSError, MemoryError)):
        return unforeseen(first)
    if not isinstance(first, BatchbenchError):
        raise raised
    return first


async def _tick(screen: Screen, vigil: Vigil) -> None:
    while True:
        await anyio.sleep(0.2)
        screen.tick()
        vigil.tick()


def resolutions(store: Store, pairs: Sequence[tuple[Compiled, Target]], words: list[str]) -> list[tuple[str, str]]:
    """What the user knows about batches nobody else can tell of.

    A word about a batch that none of these runs knows is a slip, and slips about money are not passed over.
    """
    said = [word.partition("=") for word in words]
    for word, (nonce, equals, answer) in zip(words, said, strict=True):
        if not nonce or not equals or not answer:
            raise UsageError(f"--resolve {word!r} is not NONCE=void or NONCE=BATCH_ID")
    known: set[str] = set()
    for item, target in pairs if said else []:
        path = store.cache / item.folder.name / target.slug / "journal"
        known |= journal.replay(read_journal(path).events).batches.keys() if path.exists() else set()
    for nonce, _, _ in said:
        if nonce not in known:
            raise unknown("batch to resolve", nonce, known)
    return [(nonce, answer) for nonce, _, answer in said]


async def _stop_on_signal(stop: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                os._exit(InterruptedRun.exit_code)
            stop.set()
            leave = threading.Timer(GRACE, os._exit, [InterruptedRun.exit_code])
            leave.daemon = True
            leave.start()


def _report(folder: Path, state: State, item: Compiled, contact: Contact, wish: Wish, seconds: float) -> Report:
    counts = outcomes(folder, state, wish.rows, wish.repetitions)
    asked = wish.rows * wish.repetitions
    return Report(
        probe=item.probe.name,
        model=contact.target.name,
        run=str(folder),
        asked=asked,
        answered=counts.get("answered", 0) + counts.get("truncated", 0),
        refused=counts.get("refused", 0) + counts.get("filtered", 0),
        failed=counts.get("failed", 0),
        missing=asked - sum(counts.values()),
        spent_usd=state.spent() / money.MILLION,
        reserved_usd=state.reserved(time.time(), contact.limits.window) / money.MILLION,
        seconds=round(seconds, 3),
        emulated=contact.target.emulated,
        sample_data=item.manifest.sample_data,
        settings=settings(item, contact.target),
    )


def sentence(report: Report) -> str:
    stamps = ["EMULATED"] * report.emulated + ["SAMPLE DATA"] * report.sample_data
    return (
        f"{report.probe} {report.model}: {report.answered:,} of {report.asked:,} answered, {report.refused:,} refused, "
        f"{report.failed:,} failed, {report.missing:,} missing, "
        f"{money.dollars(round(report.spent_usd * money.MILLION))} spent ({report.seconds:.1f} s) in {report.run}"
        f"  {' '.join(stamps)}"
    ).rstrip()
