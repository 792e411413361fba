"""IO: read everything a report shows about a run, from the files of the run's folder only."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl

from batchbench.analyze.analysis import FORMAT, Analysis, MetricEstimate
from batchbench.analyze.human_check import HumanCheck, read_human_check, sentences
from batchbench.compile.manifest import Manifest, Source, read_manifest
from batchbench.core import money
from batchbench.core.money import Price
from batchbench.core.store import POLARS_ERRORS, Store, check_links
from batchbench.errors import DataError, UsageError
from batchbench.probes import load_probe
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers.target import Target, changed_options, changed_params
from batchbench.report.shares import Groups, groups
from batchbench.runs import events, journal
from batchbench.runs.folder import read_journal, read_run, unchecked_folders
from batchbench.runs.journal import RunState

DATED_EVENTS = (events.Intent, events.Stored)  # the first and the last of them give a run's dates


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a run, in micro-dollars."""

    estimated: int | None  # by the rule of `estimate`, for as many answers; None if the prompts are not on disk
    spent: int
    budget: int | None
    answers: int
    input: int | None  # price per million tokens; None if the batches were bought at several prices
    output: int | None
    source: str  # of the prices, with their date
    priced: bool = True  # False: the server has no price, so the amounts are 0

    @property
    def per_thousand(self) -> float | None:
        """Dollars for a thousand answers."""
        return self.spent / money.MILLION / self.answers * 1000 if self.answers else None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a run, its settings and its data."""

    run: str  # its folder, relative to the home
    target: Target | None = None  # None: answers from a file
    items: int | None = None
    repetitions: int | None = None
    first: float | None = None  # time of the first batch's intent, in seconds since 1970
    last: float | None = None  # time of the last intent or stored answers
    data: dict[str, Source] = {}
    outdated: bool = False  # answers were stored, or read again, after the analysis


class AnalysedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One analysed run. `column` and `model` together identify it within a report."""

    probe: Probe[Params]
    column: str  # the probe, and the parameters that differ from its defaults
    model: str  # the model, and the settings that differ from the defaults
    analysis: Analysis
    groups: list[Groups]  # one for each view of the probe
    cost: Cost | None
    provenance: Provenance
    check: HumanCheck | None = None  # how people judge the readings of this run

    @property
    def notes(self) -> list[str]:
        """What has to be known about this run, in sentences."""
        return [*self.analysis.notes, *(sentences(self.check, self.analysis.origin.rereads) if self.check else [])]

    @property
    def stamps(self) -> list[str]:
        """The warnings that have to be shown beside every number of this run."""
        return [
            *self.analysis.stamps,
            *(["OUTDATED: answers have come since"] if self.provenance.outdated else []),
        ]

    def value(self, metric: str) -> MetricEstimate | None:
        """A metric as it is shown; its mark may be `A / D`, by the reference reading and by the careful reading."""
        return self.analysis.shown(metric)

    @property
    def disputed(self) -> bool:
        """Whether the readings give different marks, or differ on many answers."""
        agreed = self.analysis.reading_agreement
        return bool(agreed and agreed.low) or any("/" in mark for mark in self.analysis.marks.values())


def analysed(store: Store) -> list[Path]:
    """The folders of all analysed runs, also of damaged ones."""
    return [folder for folder in unchecked_folders(store) if (folder / "metrics.json").is_file()]


def read(store: Store, folders: Sequence[Path]) -> list[AnalysedRun]:
    """The runs in these folders, real models before emulated ones; runs with equal names get a digest appended."""
    return arrange([read_one(store, folder) for folder in dict.fromkeys(folders)])


def arrange(runs: Sequence[AnalysedRun]) -> list[AnalysedRun]:
    """The runs in the order of the page, under names that differ."""
    if not runs:
        raise UsageError("nothing has been analysed yet: `batchbench run`, then `batchbench analyze`")
    by_name: dict[tuple[str, str], list[AnalysedRun]] = {}
    for run in runs:
        by_name.setdefault((run.column, run.model), []).append(run)
    unique = [
        msgspec.structs.replace(run, model=f"{run.model} [{_digest(run)}]") if len(same_name) > 1 else run
        for same_name in by_name.values()
        for run in same_name
    ]
    return sorted(unique, key=lambda run: (run.column, run.analysis.origin.emulated, run.model))


def read_one(store: Store, folder: Path) -> AnalysedRun:
    """The analysed run in a folder."""
    check_links(folder)
    analysis = read_analysis(folder / "metrics.json")
    probe = load_probe(analysis.probe)
    try:
        cells = pl.read_parquet(io.BytesIO((folder / "cells.parquet").read_bytes()))
    except POLARS_ERRORS as error:
        raise DataError(f"{folder / 'cells.parquet'} cannot be read ({error}): analyze the run again") from None
    cost, provenance = _run(store, folder, probe, analysis)
    return AnalysedRun(
        probe=probe,
        column=_with_settings(probe.name, changed_params(probe, analysis.params)),
        model=_with_settings(analysis.origin.model, changed_options(probe, provenance.target)),
        analysis=analysis,
        groups=groups(probe, cells),
        cost=cost,
        provenance=provenance,
        check=read_human_check(folder),
    )


def read_analysis(path: Path) -> Analysis:
    """The analysis in a metrics.json file."""
    try:
        analysis = msgspec.json.decode(path.read_bytes(), type=Analysis)
    except FileNotFoundError:
        raise UsageError(f"{path.parent} has not been analysed: `batchbench analyze` first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): analyze the run again") from None
    if analysis.format != FORMAT:
        formats = f"has format {analysis.format}, and this batchbench reads {FORMAT}"
        raise DataError(f"{path} {formats}: analyze the run again")
    return analysis


def _run(store: Store, folder: Path, probe: Probe[Params], analysis: Analysis) -> tuple[Cost | None, Provenance]:
    home, path = store.home.absolute(), folder.absolute()
    name = str(path.relative_to(home)) if path.is_relative_to(home) else folder.name
    if not (folder / "run.json").is_file():
        return None, Provenance(run=name)
    events = read_journal(folder / "journal").events
    state = journal.replay(events)
    manifest_folder = store.manifests / folder.parent.name
    manifest = read_manifest(manifest_folder)
    times = [event.at for event in events if isinstance(event, DATED_EVENTS)]
    provenance = Provenance(
        run=name,
        target=read_run(folder / "run.json").target,
        items=state.asked.items if state.asked else None,
        repetitions=state.asked.repetitions if state.asked else None,
        first=min(times, default=None),
        last=max(times, default=None),
        data=manifest.data if manifest else {},
        outdated=(state.answered(), state.rereads()) != (analysis.origin.stored, analysis.origin.rereads),
    )
    mean = _mean_bytes(manifest_folder, manifest) if manifest else None
    return _cost(state, probe, provenance.target, mean), provenance


def _cost(state: RunState, probe: Probe[Params], target: Target | None, mean_bytes: float | None) -> Cost | None:
    if state.asked is None or target is None:
        return None
    rates, answers = state.rates(), Counter[Price]()  # answers by the rates at which they were bought
    for batch in state.batches.values():
        if batch.stored and batch.rates:
            answers[batch.rates] += batch.stored.answered
    estimated = None
    if mean_bytes is not None:
        longest = min(probe.typical_tokens, target.max_tokens)
        estimated = sum(
            price.cost(money.likely_input_tokens(count, mean_bytes), count * longest)
            for price, count in answers.items()
        )
    return Cost(
        estimated=estimated,
        spent=state.spent(),
        budget=state.asked.budget,
        answers=answers.total(),
        input=rates[0].input if len(rates) == 1 else None,
        output=rates[0].output if len(rates) == 1 else None,
        priced=state.priced(),
        source="; ".join(dict.fromkeys(price.source for price in rates)),
    )


def _mean_bytes(folder: Path, manifest: Manifest) -> float | None:
    """The mean length of a prompt in the first shard, which is a fair sample of all."""
    first = folder / manifest.shards[0].file
    if not first.is_file():
        return None
    mean = pl.scan_parquet(first, glob=False).select(pl.col("prompt").str.len_bytes().mean()).collect().item()
    return None if mean is None else float(mean)


def _with_settings(name: str, settings: Mapping[str, object]) -> str:
    text = ", ".join(f"{key}={_short(value)}" for key, value in settings.items())
    return f"{name} ({text})" if text else name


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"


def _digest(run: AnalysedRun) -> str:
    """The digests in the folder names of the manifest and of the run, which differ between manifests and targets."""
    manifest = (run.analysis.origin.manifest or "").rpartition("-")[2]
    return f"{manifest}/{run.provenance.run.rpartition('-')[2]}".strip("/")
