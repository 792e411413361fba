"""What `batchbench run` does, apart from its options: everything heavy is imported here."""

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import polars as pl

from batchbench import dispatch as stage
from batchbench import journal, money, runs, targets
from batchbench.cli import output, stages
from batchbench.cli.compiling import Compiled
from batchbench.cli.stages import Contact
from batchbench.dispatch import Clock, Standing, Wish, Work, dispatch
from batchbench.errors import BatchbenchError, InterruptedRun, MissingAnswers, UsageError, unknown
from batchbench.journal import State
from batchbench.store import Store
from batchbench.targets import Target

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
    error: str | None = None


def run(args: argparse.Namespace) -> int:
    """Run each probe with each model, one after the other; the exit code is that of the first trouble."""
    store = output.store(args)
    budget = money.parse_budget(args.budget) if args.budget is not None else None
    said = resolutions(args.resolve)
    models = list(dict.fromkeys(args.models))
    pairs = stages.planned(args, store, models)
    _check_resolutions(store, pairs, said)
    for item, _ in pairs:
        stages.sample_size(args, item.probe, item.manifest)  # complains before anything is started
    contacts = [(item, stages.contact(args, store, target)) for item, target in pairs]
    reports: list[Report] = []
    code = 0
    for item, contact in contacts:
        left = None if budget is None else budget - sum(_owed(report) for report in reports)
        report, error = _one(args, store, item, contact, left)
        reports.append(report)
        if not args.json and not args.quiet:
            output.show(_sentence(report))
        if error is not None:
            code = code or error.exit_code
            output.complain(error)
            if isinstance(error, InterruptedRun):
                break
    if args.json:
        output.show_json(reports)
    return code


def cancel(args: argparse.Namespace) -> int:
    """Ask the provider to stop what is running; runs that never were are not made by that."""
    store = output.store(args)
    stopped = []
    for folder in runs.folders(store):
        about = runs.read_run(folder / "run.json")
        manifest_folder = store.manifests / about.manifest
        manifest = store.manifest(manifest_folder)
        if manifest is None or manifest.probe not in args.probes or about.target.name not in args.models:
            continue
        contact = stages.contact(args, store, about.target)
        with runs.opened(store, manifest_folder, manifest, contact.target, time.time()) as opened:
            wish = Wish(items=0, rows=0, repetitions=0, price=contact.price)

            async def ask(opened: runs.Run = opened, contact: Contact = contact, wish: Wish = wish) -> int:
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


def _owed(report: Report) -> int:
    return round((report.spent_usd + report.reserved_usd) * money.MILLION)


def _one(
    args: argparse.Namespace, store: Store, item: Compiled, contact: Contact, budget: int | None
) -> tuple[Report, BatchbenchError | None]:
    """One run from opening to the last answer it can have."""
    started = time.monotonic()
    items = stages.sample_size(args, item.probe, item.manifest)
    wish = Wish(
        items=items,
        rows=items * item.manifest.variants,
        repetitions=args.repetitions,
        price=contact.price,
        budget=budget,
        rebuy_missing=args.rebuy_missing,
        trial=args.trial == "always" or (args.trial == "auto" and not targets.is_loopback(contact.base_url)),
    )
    error: BatchbenchError | None = None
    with runs.opened(store, item.folder, item.manifest, contact.target, time.time()) as opened:
        work: Work | None = None

        async def main() -> None:
            nonlocal work
            stop = anyio.Event()
            async with anyio.create_task_group() as group, stages.connected(contact, args, store, opened.folder) as api:
                group.start_soon(_stop_on_signal, stop)
                work = Work(opened, contact.provider, contact.limits, api, wish, Clock())
                for nonce, answer in resolutions(args.resolve):
                    await stage.resolve(work, nonce, answer)
                with _display(args, f"{item.probe.name} {contact.target.name}", budget) as show:
                    await dispatch(work, stop, show)
                group.cancel_scope.cancel()
            if stop.is_set():
                raise InterruptedRun("stopped: batches that were paid for keep running; the same command goes on")

        try:
            _unwrapped(main)
        except BatchbenchError as raised:
            error = raised
        report = _report(opened.folder, opened.state, item, contact, wish, time.monotonic() - started)
    error = error or _lack(report)
    if error is not None:
        report.error = str(error)
    return report, error


def _lack(report: Report) -> BatchbenchError | None:
    """What a run lacks that went to its end; requests that failed for their own sake are data, unless all did."""
    if report.missing:
        return MissingAnswers(
            f"{report.missing:,} of {report.asked:,} answers are missing, lost or given up by the provider: "
            "--rebuy-missing asks for them again"
        )
    if report.failed and report.failed == report.asked:
        return BatchbenchError(f"all {report.asked:,} requests failed: see `batchbench explain` for one of them")
    return None


def resolutions(words: list[str]) -> list[tuple[str, str]]:
    """What the user knows about batches nobody else can tell of."""
    pairs = [word.partition("=") for word in words]
    for word, (nonce, equals, answer) in zip(words, pairs, strict=True):
        if not nonce or not equals or not answer:
            raise UsageError(f"--resolve {word!r} is not NONCE=void or NONCE=BATCH_ID")
    return [(nonce, answer) for nonce, _, answer in pairs]


def _check_resolutions(store: Store, pairs: list[tuple[Compiled, Target]], said: list[tuple[str, str]]) -> None:
    """A word about a batch that none of these runs knows is a slip, and slips about money are not passed over."""
    known: set[str] = set()
    for item, target in pairs if said else []:
        path = store.cache / item.folder.name / target.slug / "journal"
        known |= journal.replay(runs.read_journal(path).events).batches.keys() if path.exists() else set()
    for nonce, _ in said:
        if nonce not in known:
            raise unknown("batch to resolve", nonce, known)


def _unwrapped(main: Callable[[], object]) -> None:
    """Run to the end; several errors at once are told as the first."""
    try:
        anyio.run(main)  # type: ignore[arg-type]
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


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
    )


def outcomes(folder: Path, state: State, rows: int, repetitions: int) -> dict[str, int]:
    """How many of the rows asked for have which outcome, counted in the answers themselves."""
    answers = runs.read_answers(folder, state).filter(pl.col("id") < rows, pl.col("rep") < repetitions)
    return dict(answers.group_by("outcome").len().collect().rows())


def _sentence(report: Report) -> str:
    stamps = ["EMULATED"] * report.emulated + ["SAMPLE DATA"] * report.sample_data
    return (
        f"{report.probe} {report.model}: {report.answered:,} of {report.asked:,} answered, {report.refused:,} refused, "
        f"{report.failed:,} failed, {report.missing:,} missing, "
        f"{money.dollars(round(report.spent_usd * money.MILLION))} spent ({report.seconds:.1f} s) in {report.run}"
        f"  {' '.join(stamps)}"
    ).rstrip()


def _display(args: argparse.Namespace, what: str, budget: int | None) -> "output.Live[Standing]":
    began, at_first = time.monotonic(), -1

    def line(standing: Standing) -> str:
        nonlocal at_first
        at_first = standing.done if at_first < 0 else at_first
        batches = ", ".join(f"{count} {state}" for state, count in standing.batches.items())
        limit = "" if budget is None else f" of {money.dollars(budget)}"
        waiting = f"; {standing.waiting}" if standing.waiting else ""
        return (
            f"{what}: {standing.done:,} of {standing.rows:,} done, {standing.missing:,} missing{waiting}; "
            f"{batches or 'no batch yet'}; {money.dollars(standing.spent)} spent, "
            f"{money.dollars(standing.reserved)} reserved{limit}{eta(standing, at_first, time.monotonic() - began)}"
        )

    return output.Live(args, line)


def eta(standing: Standing, at_first: int, seconds: float) -> str:
    """About how long the rest takes at the pace so far; nothing until there is a pace."""
    done = standing.done - at_first
    left = standing.rows - standing.done - standing.missing
    if done <= 0 or left <= 0:
        return ""
    rest = round(left * seconds / done)
    hours, minutes = divmod(rest // 60, 60)
    return f"; about {hours} h {minutes} min left" if hours else f"; about {minutes} min {rest % 60} s left"
