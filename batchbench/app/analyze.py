"""Read answers of runs or of files, compute their metrics, and compare them."""

import re
from pathlib import Path
from typing import NamedTuple

import polars as pl

from batchbench.analyze import analysis
from batchbench.analyze.analysis import Analysis, write_analysis
from batchbench.analyze.answer_files import label_file
from batchbench.analyze.compare import Comparison, compare
from batchbench.analyze.human_check import HumanCheck, read_human_check
from batchbench.analyze.labelled_answers import (
    ANSWER_COLUMNS,
    LabelledAnswers,
    Origin,
    bound,
    input_columns,
    label_expression,
)
from batchbench.analyze.read import RunSize, label_run
from batchbench.app.plan import parameters, provider_of
from batchbench.app.requests import AnalysisOptions, AnalysisRequest, Voice
from batchbench.compile.compiler import identify
from batchbench.compile.data_cache import load_table
from batchbench.compile.manifest import Manifest, checked_shards, folder_of, read_manifest
from batchbench.core.store import Store
from batchbench.errors import DataError, UsageError
from batchbench.probes import load_probe
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.folder import check_prompts, find_run, read_run, read_state
from batchbench.runs.results import read_answers
from batchbench.runs.view import BrokenRun


class Analyses(NamedTuple):
    """What was found in answers."""

    analyses: list[Analysis]
    comparisons: list[Comparison]
    checks: list[HumanCheck | None]  # of each analysis: how people judge the readings of that run
    broken: list[BrokenRun]  # of several runs, those with a damaged file; they are left out


class _Answers(NamedTuple):
    """The answers of a run or a file to one probe."""

    params: Params
    labelled: LabelledAnswers
    home: Path | None  # the folder of the run
    check: HumanCheck | None


def analyze(request: AnalysisRequest, store: Store, voice: Voice) -> Analyses:
    """Analyze each probe with each model or file, write the results, and compare models.

    Of several, a damaged one is left out; if nothing is left, its error is raised.
    """
    if bool(request.models) == bool(request.answers):
        raise UsageError("name the answers to analyze: either --model M or --answers FILE")
    chosen = [load_probe(name) for name in dict.fromkeys(request.probes)]
    if request.answers and len(chosen) > 1:
        raise UsageError("a file of answers belongs to one probe: name only that one")
    for probe in chosen:
        label_expression(probe)  # raises UsageError before anything is fetched or read
    sources: list[str | Path] = list(dict.fromkeys([*request.answers, *request.models]))
    several = len(sources) > 1 or len(chosen) > 1
    done = Analyses([], [], [], [])
    damage: list[DataError] = []
    for probe in chosen:
        sound: dict[int, _Answers] = {}
        with voice.progress(f"reading answers to {probe.name}"):
            for place, source in enumerate(sources):
                try:
                    params = parameters(chosen, request.params, provider_of_source(source))[chosen.index(probe)]
                    labelled, home = _read(source, probe, params, store, voice)
                    sound[place] = _Answers(params, labelled, home, read_human_check(home) if home else None)
                except DataError as error:
                    damage.append(error)
                    done.broken.append(BrokenRun(run=f"{probe.name} {source}", error=str(error)))
        for place, (params, labelled, home, check) in sound.items():
            folder = request.folder / f"{probe.name}-{place}" if request.folder and several else request.folder or home
            with voice.progress(f"analyzing {probe.name} {labelled.origin.model}"):
                done.analyses.append(analyze_labelled(probe, params, labelled, request, store, folder))
            done.checks.append(check)
        with voice.progress(f"comparing {probe.name}"):
            runs = [answers.labelled for answers in sound.values()]
            done.comparisons.extend(compare(probe, runs, replicates=request.replicates, seed=request.seed))
    if damage and not done.analyses:
        raise damage[0]
    return done


def analyze_labelled(
    probe: Probe[Params],
    params: Params,
    labelled: LabelledAnswers,
    options: AnalysisOptions,
    store: Store,
    folder: Path | None,
) -> Analysis:
    """Compute the metrics of labelled answers, and write them to `folder`."""
    found, cells = analysis.analyze(probe, params, labelled, replicates=options.replicates, seed=options.seed)
    if folder:
        write_analysis(found, cells, folder, store)
    return found


def columns(probe: Probe[Params]) -> str:
    """The columns that a file of answers needs where its lines name no row of the manifest, and what replaces them."""
    external, needed = probe.external_answers, dict.fromkeys([*probe.strata, *probe.covariates, *input_columns(probe)])
    instead = [
        *external.spellings.items(),
        *((source, tuple(re.findall(r"\(\?<(\w+)>", pattern))) for source, pattern in external.patterns.items()),
        *((lookup.key, lookup.columns) for lookup in external.lookups),
        *((source, (name,)) for name, source in external.fallbacks.items()),
    ]
    text = ", ".join(name for name in needed if name not in ANSWER_COLUMNS)
    return "; ".join([text, *(f"or {source} for {', '.join(names)}" for source, names in instead)])


def provider_of_source(source: str | Path) -> str | None:
    """The provider that determines the form of the probe; None for a file."""
    if isinstance(source, Path):
        return None
    run = Path(source) / "run.json"
    return read_run(run).target.provider if run.is_file() else provider_of(source)


def _read(
    source: str | Path, probe: Probe[Params], params: Params, store: Store, voice: Voice
) -> tuple[LabelledAnswers, Path | None]:
    """The answers of a run or a file, and the run's folder."""
    probe = bound(probe, params)
    if isinstance(source, Path):
        return _file_answers(source, probe, params, store, voice), None
    manifest_folder, manifest = find_manifest(probe, params, store, voice)
    folder = find_run(store, manifest_folder.name, source)
    return run_answers(folder, probe, manifest_folder, manifest, source), folder


def run_answers(
    folder: Path, probe: Probe[Params], manifest_folder: Path, manifest: Manifest, model: str
) -> LabelledAnswers:
    """The answers in the folder of a run."""
    state = read_state(folder)
    check_prompts(state, manifest_folder, manifest)
    if state.asked is None:
        raise UsageError(f"nothing has been asked in {folder} yet: `batchbench run {probe.name} --model {model}`")
    target = read_run(folder / "run.json").target
    origin = Origin(
        model=model,
        stored=state.answered(),
        rereads=state.rereads(),
        manifest=manifest_folder.name,
        prices="; ".join(dict.fromkeys(rates.source for rates in state.rates())),
        sample_data=manifest.sample_data,
        emulated=target.emulated,
    )
    size = RunSize(items=state.asked.items, repetitions=state.asked.repetitions)
    answers = read_answers(folder, state)
    if target.top_logprobs and not answers.select(pl.col("logprobs").count()).collect().item():
        raise DataError(f"{model} gave no log-probabilities: ask {probe.name} with --set form=question instead")
    return label_run(probe, manifest_folder, manifest, answers, size, origin)


def _file_answers(path: Path, probe: Probe[Params], params: Params, store: Store, voice: Voice) -> LabelledAnswers:
    sample = params.data == "sample"

    def table(name: str) -> pl.DataFrame:
        return load_table(store, name, sample=sample, note=voice.note)[0]

    def rows() -> pl.DataFrame:
        folder, manifest = find_manifest(probe, params, store, voice)
        return pl.scan_parquet(checked_shards(folder, manifest), glob=False).drop("prompt").collect()

    return label_file(path, probe, table, rows, sample_data=sample)


def find_manifest(probe: Probe[Params], params: Params, store: Store, voice: Voice) -> tuple[Path, Manifest]:
    """The compiled prompts of a probe with these parameters, and their folder."""
    sample = params.data == "sample"
    sources = {name: load_table(store, name, sample=sample, note=voice.note)[1] for name in probe.datasets}
    folder = folder_of(store, identify(probe, params, sources))
    manifest = read_manifest(folder)
    if manifest is None:
        raise UsageError(f"{probe.name} has not been asked with these parameters: `batchbench run {probe.name}` first")
    return folder, manifest
