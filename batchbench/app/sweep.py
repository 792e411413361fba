"""What `batchbench sweep` does, apart from its options: compile, estimate, ask, analyze, report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from batchbench.analyze.analysis import Analysis, analyze, write_analysis
from batchbench.analyze.labelled_answers import label_expression
from batchbench.app import compile as compiling
from batchbench.app import contact as stages
from batchbench.app import estimate as estimating
from batchbench.app import run as running
from batchbench.app import sweep_file as sweepfile
from batchbench.app.compile import Compiled
from batchbench.app.estimate import Estimate
from batchbench.app.run import Job, Report
from batchbench.app.sweep_file import AskedModel, AskedProbe, Sweep
from batchbench.cli import options, output
from batchbench.cli.commands.analyze import answers_of
from batchbench.compile.catalogue import find_dataset
from batchbench.compile.data_cache import UnreachableError, missing_files
from batchbench.compile.fetch import Link, Wheel
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, InterruptedRun, UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import target as targets
from batchbench.providers.target import Target


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One run that a sweep wants."""

    probe: Probe[Params]
    params: Params
    target: Target
    options: argparse.Namespace
    weight: float
    where: str


class Result(msgspec.Struct, kw_only=True):
    """A sweep, as `--json` tells it."""

    report: str | None  # the path; null: nothing to report yet
    runs: list[Report]
    spent_usd: float
    budget_usd: float | None


class Swept(NamedTuple):
    """What has become of a sweep."""

    finished: list[tuple[Report, BatchbenchError | None]]
    analyses: list[tuple[Path, Analysis]]
    report: Path | None
    budget: int | None  # micro-dollars


def run(args: argparse.Namespace) -> int:
    """Do it all, or what is left of it, and show it."""
    done = swept(args, output.store(args))
    reports = [report for report, _ in done.finished]
    if args.json:
        spent = sum(report.spent_usd for report in reports)
        limit = None if done.budget is None else done.budget / money.MILLION
        path = str(done.report) if done.report else None
        output.show_json(Result(report=path, runs=reports, spent_usd=spent, budget_usd=limit))
    elif not args.quiet:
        output.show(_table(reports, dict(done.analyses)))
        if done.report:
            output.show(f"\nreport: {done.report}")
    return running.complain(done.finished)


def swept(args: argparse.Namespace, store: Store) -> Swept:
    """Compile, estimate, ask, analyze, report."""
    sweep = sweepfile.read(args.file, store.home) if args.file else sweepfile.every_probe()
    budget = sweep.budget if args.budget is None else money.parse_budget(args.budget)
    wanted = planned(args, sweep)
    items = compiled(args, store, wanted, or_sample=args.file is None)
    _confirm(args, store, wanted, items, budget)
    jobs = [
        running.job(one.options, store, item, one.target, budget, one.weight)
        for one, item in zip(wanted, items, strict=True)
    ]
    finished = running.ask(args, store, jobs, budget)
    if any(isinstance(error, InterruptedRun) for _, error in finished):
        return Swept(finished, [], None, budget)
    analyses = analyzed(args, store, sweep, jobs, [report for report, _ in finished])
    left = args.detach and any(report.missing and report.reserved_usd for report, _ in finished)
    report = None if left or not analyses else _reported(args, store, [folder for folder, _ in analyses])
    return Swept(finished, analyses, report, budget)


# -- what is wanted ----------------------------------------------------------------------------------------


def planned(args: argparse.Namespace, sweep: Sweep) -> list[Planned]:
    """Every run of a sweep, checked before anything is compiled."""
    found: dict[tuple[str, Params, Target], Planned] = {}
    for asked in sweep.probes:
        for model in sweep.models:
            for params in _forms(asked, model):
                if one := _planned(args, asked, model, params):
                    same = (asked.probe.name, params, one.target)
                    if same in found:
                        raise UsageError(f"{one.where}{asked.probe.name} is asked of it twice: write each run once")
                    found[same] = one
    return list(found.values())


def _planned(args: argparse.Namespace, asked: AskedProbe, model: AskedModel, params: Params) -> Planned | None:
    own = {name: value for name, value in vars(args).items() if name not in ("file", "report", "budget")}
    chosen = argparse.Namespace(**{**vars(options.defaults()), **own, **asked.options, **model.options})
    try:
        target = stages.target(chosen, model.name, asked.probe, params)
    except UsageError as error:
        if getattr(params, "form", None) == "logprob" and "form" not in asked.said:
            return None  # nobody insisted on it
        raise UsageError(f"{model.where}{error}") from None
    return Planned(
        probe=asked.probe,
        params=params,
        target=target,
        options=chosen,
        weight=asked.share * model.share,
        where=model.where,
    )


def _forms(asked: AskedProbe, model: AskedModel) -> list[Params]:
    """The forms that fit a model, unless one was chosen: each is a run of its own."""
    if "form" in asked.said or asked.probe.forms is None:
        return [asked.params]
    forms = asked.probe.forms(targets.parse(model.name)[0])
    return [msgspec.structs.replace(asked.params, form=form) for form in forms]


# -- prompts -----------------------------------------------------------------------------------------------


def compiled(args: argparse.Namespace, store: Store, wanted: Sequence[Planned], *, or_sample: bool) -> list[Compiled]:
    """The prompts of each run; `or_sample` takes our own stand-in for data that cannot be fetched, and says so."""
    done: dict[tuple[str, Params], Compiled] = {}
    unreachable: set[Wheel | Link] = set()
    for one in wanted:
        key = (one.probe.name, one.params)
        if key not in done:
            done[key] = _compiled(args, store, one, unreachable if or_sample else None)
    return [done[one.probe.name, one.params] for one in wanted]


def _compiled(args: argparse.Namespace, store: Store, one: Planned, unreachable: set[Wheel | Link] | None) -> Compiled:
    known = [find_dataset(name) for name in one.probe.datasets]
    lacking = {dataset.source for dataset in known if missing_files(store, dataset)}
    if unreachable is None or not lacking & unreachable:
        try:
            return compiling.one(args, store, one.probe, one.params)
        except UnreachableError as error:
            if unreachable is None:
                raise
            unreachable.add(error.source)
            output.note(args)(f"{error}")
    output.note(args)(f"{one.probe.name}: its data is not here, our own small sample takes its place: SAMPLE DATA")
    return compiling.one(args, store, one.probe, msgspec.structs.replace(one.params, data="sample"))


# -- money -------------------------------------------------------------------------------------------------


def _confirm(
    args: argparse.Namespace, store: Store, wanted: Sequence[Planned], items: Sequence[Compiled], budget: int | None
) -> None:
    """Show what it would cost; what costs real money needs a yes."""
    with output.progress(args, "estimating", ""):
        pairs = zip(wanted, items, strict=True)
        found = [estimating.estimated(one.options, store, item, one.target) for one, item in pairs]
    limit = "" if budget is None else f"\nbudget: {money.dollars(budget)}, over all runs together, never exceeded"
    output.note(args)(f"{estimating.priced(found)}{limit}\n")
    worst = sum(_real(one, estimate) for one, estimate in zip(wanted, found, strict=True))
    if worst == 0 or args.yes:
        return
    most = worst if budget is None else min(worst, budget / money.MILLION)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"this may cost up to ${most:,.2f}: say that it may with --yes")
    sys.stderr.write(f"This may cost up to ${most:,.2f}. Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InterruptedRun("nothing was asked")


def _real(one: Planned, estimate: Estimate) -> float:
    return 0.0 if one.target.emulated else estimate.worst_usd


# -- results -----------------------------------------------------------------------------------------------


def analyzed(
    args: argparse.Namespace, store: Store, sweep: Sweep, jobs: Sequence[Job], reports: Sequence[Report]
) -> list[tuple[Path, Analysis]]:
    """The metrics of every run that has answers, also of an unfinished one: what is there is a fair sample."""
    found = []
    unread: dict[str, str] = {}
    with output.progress(args, "analyzing", "runs") as progress:
        for number, (job, report) in enumerate(zip(jobs, reports, strict=True)):
            progress(number, len(jobs))
            item = job.item
            if report.answered + report.refused == 0:
                continue
            try:
                label_expression(item.probe)
            except UsageError as error:
                unread[item.probe.name] = str(error)
                continue
            sample = answers_of(Path(report.run), item.probe, item.folder, item.manifest, report.model)
            analysis, cells = analyze(item.probe, item.params, sample, replicates=sweep.replicates, seed=sweep.seed)
            write_analysis(analysis, cells, Path(report.run), store)
            found.append((Path(report.run), analysis))
    for reason in unread.values():
        output.note(args)(f"{reason}; they are kept")
    return found


def _reported(args: argparse.Namespace, store: Store, folders: list[Path]) -> Path:
    """Write the report, and say where."""
    from batchbench import report

    out = args.report or store.home / (f"{args.file.stem}.html" if args.file else "report.html")
    with output.progress(args, "writing the report", ""):
        return report.build(store, folders, out)


def _table(reports: Sequence[Report], analyses: dict[Path, Analysis]) -> str:
    """A line per run: how far it is, and its first headline metric; stamps once, if they are those of all."""
    stamps = [" ".join(["EMULATED"] * one.emulated + ["SAMPLE DATA"] * one.sample_data) for one in reports]
    alike = len(set(stamps)) <= 1
    rows = [["PROBE", "MODEL", "ANSWERED", "SPENT", "METRIC", "ESTIMATE", "95 % INTERVAL", "MARK"]]
    for report, stamp in zip(reports, stamps, strict=True):
        counts = [f"{report.answered + report.refused:,} of {report.asked:,}", f"${report.spent_usd:,.4f}"]
        probe = f"{report.probe} {report.settings}".rstrip()
        found = _headline(analyses.get(Path(report.run)))
        rows.append([probe, report.model, *counts, *found[:3], found[3] if alike else f"{found[3]}  {stamp}"])
    return "\n".join([*([stamps[0]] if alike and stamps and stamps[0] else []), output.table(rows)])


def _headline(found: Analysis | None) -> list[str]:
    name = next((name for name in found.headline if name in found.metrics), None) if found else None
    value = found.metrics[name] if found and name else None
    if name is None or value is None or value.estimate is None:
        return ["–", "–", "–", "–"]
    interval = "–" if value.low is None else f"{value.low:.4f} … {value.high:.4f}"
    return [name, f"{value.estimate:.4f}", interval, value.mark or "–"]
