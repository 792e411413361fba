"""What `batchbench run` does, apart from its options: everything heavy is imported here."""

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import polars as pl

from batchbench import dispatch as stage
from batchbench import journal, money, prices, runs, targets
from batchbench.cli import output, stages
from batchbench.cli.compiling import Compiled, compiled
from batchbench.cli.screen import Screen
from batchbench.cli.stages import Contact
from batchbench.dispatch import Clock, Common, Wish, Work, dispatch
from batchbench.errors import BatchbenchError, InterruptedRun, MissingAnswers, UsageError, unknown
from batchbench.journal import State
from batchbench.store import Store
from batchbench.targets import Target

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
    models = list(dict.fromkeys(args.models))
    pairs = [(item, stages.target(args, name, item.probe)) for item in compiled(args, store) for name in models]
    resolutions(store, pairs, args.resolve)
    for item, _ in pairs:
        stages.sample_size(args, item.probe, item.manifest)  # complains before anything is started
    jobs = [job(args, store, item, target, budget) for item, target in pairs]
    finished = ask(args, store, jobs, budget)
    if args.json:
        output.show_json([report for report, _ in finished])
    else:
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


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would ask and cost, before anything is asked."""

    probe: str
    model: str
    requests: int  # that are not answered yet
    input_tokens: int  # about
    output_tokens: int  # about
    batch_usd: float
    sync_usd: float | None  # null: no price is known for single calls
    worst_usd: float  # what a budget is held against
    prices: str
    settings: str = ""  # parameters and options that are not the usual ones


def estimate(args: argparse.Namespace) -> int:
    """Count what is missing, and price it."""
    store = output.store(args)
    found = [
        estimated(args, store, item, stages.target(args, name, item.probe))
        for item in compiled(args, store)
        for name in args.models
    ]
    if args.json:
        output.show_json(found)
    else:
        output.show(priced(found))
    return 0


def priced(found: Sequence[Estimate]) -> str:
    """Estimates as a table, with what they come to together."""
    rows = [["PROBE", "MODEL", "REQUESTS", "TOKENS IN", "TOKENS OUT", "BATCH", "SYNC", "WORST CASE"]]
    rows += [[f"{entry.probe} {entry.settings}".rstrip(), entry.model, *_figures([entry])] for entry in found]
    if len(found) > 1:
        rows.append(["all", "", *_figures(found)])
    sources = dict.fromkeys(f"prices of {entry.model}: {entry.prices}" for entry in found)
    return "\n".join([output.table(rows), "", *sources])


def _figures(found: Sequence[Estimate]) -> list[str]:
    counts = [sum(getattr(one, name) for one in found) for name in ("requests", "input_tokens", "output_tokens")]
    amounts = [[getattr(one, name) for one in found] for name in ("batch_usd", "sync_usd", "worst_usd")]
    shown = ["unknown" if None in column else f"${sum(column):,.4f}" for column in amounts]
    return [*(f"{count:,}" for count in counts), *shown]


def estimated(args: argparse.Namespace, store: Store, item: Compiled, target: Target) -> Estimate:
    price = stages.price(args, store, target)
    rows = stages.sample_size(args, item.probe, item.manifest) * item.manifest.variants
    folder = store.cache / item.folder.name / target.slug
    answered = 0
    if (folder / "journal").exists():
        state = journal.replay(runs.read_journal(folder / "journal").events)
        answered = sum(outcomes(folder, state, rows, args.repetitions).values())
    requests = rows * args.repetitions - answered
    mean = prompt_bytes(item, rows).mean
    tokens_in = money.likely_input_tokens(requests, mean)
    tokens_out = requests * min(item.probe.typical_tokens, target.max_tokens)
    sync = prices.sync(prices.snapshot(store.prices), target.provider, target.model) if not target.emulated else None
    return Estimate(
        probe=item.probe.name,
        model=target.name,
        requests=requests,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        batch_usd=price.cost(tokens_in, tokens_out) / money.MILLION,
        sync_usd=None if sync is None else sync.cost(tokens_in, tokens_out) / money.MILLION,
        worst_usd=requests * price.bound(round(mean), target.max_tokens) / money.MILLION,
        prices=price.source,
        settings=_settings(item, target),
    )


def _settings(item: Compiled, target: Target) -> str:
    """What tells a run from others of the same probe and model."""
    usual = {**msgspec.structs.asdict(item.probe.params()), "max_tokens": item.probe.max_tokens}
    own = {name: value for name, value in msgspec.structs.asdict(item.params).items() if name != "data"}
    own |= {name: getattr(target, name) for name in ("max_tokens", "temperature", "top_p", "system")}
    return " ".join(f"{name}={value}" for name, value in own.items() if value != usual.get(name))


class PromptBytes(NamedTuple):
    """How long prompts are."""

    mean: float
    most: int


def prompt_bytes(item: Compiled, rows: int) -> PromptBytes:
    """The length of the first `rows` prompts."""
    return _measured(tuple(item.folder / shard.file for shard in item.manifest.shards if shard.first < rows), rows)


@cache  # of a probe that is asked of many models
def _measured(files: tuple[Path, ...], rows: int) -> PromptBytes:
    size = pl.col("prompt").str.len_bytes()
    found = pl.scan_parquet(list(files)).filter(pl.col("id") < rows).select(mean=size.mean(), most=size.max()).collect()
    return PromptBytes(*found.row(0))


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be: its prompts, whom to ask, and what is wanted."""

    item: Compiled
    contact: Contact
    wish: Wish

    @property
    def name(self) -> str:
        """For people."""
        settings = _settings(self.item, self.contact.target)
        return " ".join(filter(None, [self.item.probe.name, settings, self.contact.target.name]))


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
            stack.enter_context(runs.opened(store, one.item.folder, one.item.manifest, one.contact.target, time.time()))
            for one in jobs
        ]

        async def main() -> None:
            stop, everybody = anyio.Event(), anyio.Event()
            common, waiting = Common(budget), set(range(len(jobs)))

            def arrived(place: int) -> None:
                waiting.discard(place)
                if not waiting:
                    everybody.set()

            async def one(place: int) -> None:
                it, run = jobs[place], opened[place]
                async with stages.connected(it.contact, args, store, run.folder) as api:
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

            with Screen(args, [one.name for one in jobs], budget) as screen:
                async with anyio.create_task_group() as around:
                    if threading.current_thread() is threading.main_thread():
                        around.start_soon(_stop_on_signal, stop)
                    around.start_soon(_tick, screen)
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
            if error is None and report.missing:
                error = InterruptedRun(STOPPED) if stopped else _missing(report, run.state)
            report.error = str(error) if error is not None else None
            finished.append((report, error))
    return finished


def _missing(report: Report, state: State) -> MissingAnswers:
    """Why some answers are not there although nothing went wrong."""
    exported = sum(batch.rows for batch in state.open() if batch.state == "exported")
    if state.pending():
        return MissingAnswers("batches are running at the provider's: the same command collects their answers")
    told = f"{report.missing:,} of {report.asked:,} answers are missing"
    if exported:
        return MissingAnswers(f"{told}, {exported:,} of them exported: bring their results with `batchbench import`")
    return MissingAnswers(f"{told}: see `batchbench status`")


def _first(raised: BatchbenchError | ExceptionGroup[Exception]) -> BatchbenchError:
    """Several errors at once are told as the first; what nobody foresaw is not swallowed."""
    first: Exception = raised
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    if not isinstance(first, BatchbenchError):
        raise raised
    return first


async def _tick(screen: Screen) -> None:
    while True:
        await anyio.sleep(0.2)
        screen.tick()


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
        known |= journal.replay(runs.read_journal(path).events).batches.keys() if path.exists() else set()
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
        settings=_settings(item, contact.target),
    )


def outcomes(folder: Path, state: State, rows: int, repetitions: int) -> dict[str, int]:
    """How many of the rows asked for have which outcome, counted in the answers themselves."""
    answers = runs.read_answers(folder, state).filter(pl.col("id") < rows, pl.col("rep") < repetitions)
    return dict(answers.group_by("outcome").len().collect().rows())


def sentence(report: Report) -> str:
    stamps = ["EMULATED"] * report.emulated + ["SAMPLE DATA"] * report.sample_data
    return (
        f"{report.probe} {report.model}: {report.answered:,} of {report.asked:,} answered, {report.refused:,} refused, "
        f"{report.failed:,} failed, {report.missing:,} missing, "
        f"{money.dollars(round(report.spent_usd * money.MILLION))} spent ({report.seconds:.1f} s) in {report.run}"
        f"  {' '.join(stamps)}"
    ).rstrip()
