"""The main job in two steps: `prepare` compiles and estimates, `carry_out` asks, analyzes and reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from batchbench.analyze.analysis import Analysis
from batchbench.analyze.labelled_answers import label_expression
from batchbench.app import sweep_file
from batchbench.app.analyze import analyze_labelled, run_answers
from batchbench.app.contact import check_needs
from batchbench.app.estimate import CostEstimate, estimate_run
from batchbench.app.plan import Compiled, PlannedRun, compile_probe, make_target, plan_run, provider_of
from batchbench.app.requests import AnalysisOptions, Options, Purchase, Voice
from batchbench.app.run import Finished, ask
from batchbench.app.spending import check_priced, with_budget
from batchbench.app.sweep_file import Sweep, SweepModel, SweepProbe
from batchbench.compile.catalogue import find_dataset
from batchbench.compile.data_cache import UnreachableError, missing_files
from batchbench.compile.fetch import Link, Wheel
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import InterruptedRun, KeyRefusedError, UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers.target import Target
from batchbench.report import build_report


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep, before its prompts are compiled."""

    probe: Probe[Params]
    params: Params
    target: Target
    options: Options
    weight: float
    where: str = ""  # the model's place in the file, for messages


class PreparedSweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep that is ready to be asked, and what that may cost."""

    runs: list[PlannedRun]
    estimates: list[CostEstimate]
    purchase: Purchase
    analysis: AnalysisOptions
    out: Path  # of the report

    @property
    def worst_usd(self) -> float:
        """The most that it may cost in real money."""
        pairs = zip(self.runs, self.estimates, strict=True)
        worst = sum((estimate.worst_usd for run, estimate in pairs if not run.target.emulated), 0.0)
        limit = self.purchase.limit
        return worst if limit is None else min(worst, limit / money.MILLION)


class SweepResult(NamedTuple):
    """How a sweep ended."""

    finished: list[Finished]
    analyses: dict[Path, Analysis]  # by the folder of the run
    report: Path | None  # None: there is nothing to report yet


def prepare(
    file: Path | None, purchase: Purchase, store: Store, voice: Voice, out: Path | None = None
) -> PreparedSweep:
    """Check the sweep, compile its prompts, and estimate its cost. The budget of `purchase` replaces the file's.

    Without either, the budget of an earlier start holds.
    """
    sweep = sweep_file.read(file) if file else sweep_file.every_probe()
    wanted = plan_sweep(sweep)
    if purchase.budget is None:
        purchase = msgspec.structs.replace(purchase, budget=sweep.budget)
    for run in wanted:
        try:
            check_needs(run.options, store, run.target)
            check_priced(purchase, run.options, store, run.target)
        except (UsageError, KeyRefusedError) as error:
            raise type(error)(f"{run.where}{error}") from None
    compiled = _compiled(wanted, store, voice, or_sample=file is None)
    pairs = zip(wanted, compiled, strict=True)
    runs = [plan_run(item, run.target, run.options, store, run.weight) for run, item in pairs]
    with voice.progress("estimating"):
        estimates = [estimate_run(run, store) for run in runs]
    purchase = with_budget(purchase, runs, store, voice)
    out = out or store.home / (f"{file.stem}.html" if file else "report.html")
    return PreparedSweep(runs=runs, estimates=estimates, purchase=purchase, analysis=sweep.analysis, out=out)


def carry_out(sweep: PreparedSweep, store: Store, voice: Voice) -> SweepResult:
    """Ask, analyze, report. Without a report if the user interrupts it, or leaves batches running with --detach."""
    finished = ask(sweep.runs, sweep.purchase, store, voice)
    if any(isinstance(error, InterruptedRun) for _, error in finished):
        return SweepResult(finished, {}, None)
    analyses = _analyses(sweep, finished, store, voice)
    waiting = sweep.purchase.detach and any(result.missing and result.reserved_usd for result, _ in finished)
    if waiting or not analyses:
        return SweepResult(finished, analyses, None)
    with voice.progress("writing the report"):
        page = build_report(store, list(analyses), sweep.out)
    return SweepResult(finished, analyses, page)


def plan_sweep(sweep: Sweep) -> list[SweepRun]:
    """Every run of a sweep, checked before anything is compiled."""
    found: dict[tuple[str, Params, Target], SweepRun] = {}
    for asked in sweep.probes:
        for model in sweep.models:
            for params in _forms(asked, model):
                if run := _sweep_run(asked, model, params):
                    key = (asked.probe.name, params, run.target)
                    if key in found:
                        raise UsageError(f"{model.where}{asked.probe.name} is listed twice for it: write each run once")
                    found[key] = run
    return list(found.values())


def _forms(asked: SweepProbe, model: SweepModel) -> list[Params]:
    """One run for every form that fits the model, unless the file chooses a form."""
    if "form" in asked.chosen or asked.probe.forms is None:
        return [asked.params]
    return [msgspec.structs.replace(asked.params, form=form) for form in asked.probe.forms(provider_of(model.name))]


def _sweep_run(asked: SweepProbe, model: SweepModel, params: Params) -> SweepRun | None:
    """The run of a probe with a model; None if it needs log-probabilities that the model does not give."""
    options = msgspec.convert({**asked.options, **model.options}, Options)
    try:
        target = make_target(model.name, options, asked.probe, params)
    except UsageError as error:
        if getattr(params, "form", None) == "logprob" and "form" not in asked.chosen:
            return None
        raise UsageError(f"{model.where}{error}") from None
    return SweepRun(
        probe=asked.probe,
        params=params,
        target=target,
        options=options,
        weight=asked.share * model.share,
        where=model.where,
    )


def _compiled(wanted: Sequence[SweepRun], store: Store, voice: Voice, *, or_sample: bool) -> list[Compiled]:
    """The prompts of each run; `or_sample` uses our own sample for data that cannot be fetched, and says so."""
    done: dict[tuple[str, Params], Compiled] = {}
    unreachable: set[Wheel | Link] = set()
    for run in wanted:
        key = (run.probe.name, run.params)
        if key not in done and or_sample:
            done[key] = _compiled_or_sample(run, unreachable, store, voice)
        elif key not in done:
            done[key] = compile_probe(run.probe, run.params, store, voice)
    return [done[run.probe.name, run.params] for run in wanted]


def _compiled_or_sample(run: SweepRun, unreachable: set[Wheel | Link], store: Store, voice: Voice) -> Compiled:
    datasets = [find_dataset(name) for name in run.probe.datasets]
    if not unreachable & {dataset.source for dataset in datasets if missing_files(store, dataset)}:
        try:
            return compile_probe(run.probe, run.params, store, voice)
        except UnreachableError as error:
            unreachable.add(error.source)
            voice.note(str(error))
    voice.note(f"{run.probe.name}: its data cannot be fetched; our own small sample takes its place: SAMPLE DATA")
    return compile_probe(run.probe, msgspec.structs.replace(run.params, data="sample"), store, voice)


def _analyses(sweep: PreparedSweep, finished: Sequence[Finished], store: Store, voice: Voice) -> dict[Path, Analysis]:
    """The metrics of every run that has answers; an unfinished run is a fair sample, too."""
    found: dict[Path, Analysis] = {}
    unreadable: dict[str, str] = {}
    with voice.progress("analyzing", "runs") as progress:
        for number, (run, (result, _)) in enumerate(zip(sweep.runs, finished, strict=True)):
            progress(number, len(sweep.runs))
            item, folder = run.compiled, Path(result.run)
            if result.answered + result.refused == 0:
                continue
            try:
                label_expression(item.probe)
            except UsageError as error:
                unreadable[item.probe.name] = str(error)
                continue
            labelled = run_answers(folder, item.probe, item.folder, item.manifest, result.model)
            found[folder] = analyze_labelled(item.probe, item.params, labelled, sweep.analysis, store, folder)
    for reason in unreadable.values():
        voice.note(f"{reason}; they are kept")
    return found
