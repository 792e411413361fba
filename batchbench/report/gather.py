"""IO: everything a report says about one analysed run, read from the files of its folder and nothing else."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl

from batchbench import probes
from batchbench.analyze.analysis import FORMAT, Analysis, Estimate
from batchbench.compile.manifest import Manifest, Source, read_manifest
from batchbench.core import money
from batchbench.core.store import POLARS_ERRORS, Store
from batchbench.errors import DataError, UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers.target import Target
from batchbench.report.shares import Groups, groups
from batchbench.runs import events, journal
from batchbench.runs.folder import read_journal, read_run, run_folders
from batchbench.runs.journal import RunState
from batchbench.runs.settings import changed_options, changed_params

NO_VALUE = Estimate(estimate=None, se=None, low=None, high=None, compat_low=None, compat_high=None, mark=None)
WORKED = (events.Intent, events.Stored)  # events that tell when a run was worked on


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a run cost, in micro-dollars."""

    estimated: int | None  # what `estimate` says about as many answers; null where the prompts are not there
    spent: int
    budget: int | None
    answers: int
    input: int  # prices per million tokens
    output: int
    source: str  # of the prices, with their date

    @property
    def per_thousand(self) -> float | None:
        """Dollars for a thousand answers."""
        return self.spent / money.MILLION / self.answers * 1000 if self.answers else None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run can be found again, and what it was made of."""

    run: str  # its folder, within the home
    target: Target | None = None  # null: answers from a file
    items: int | None = None
    repetitions: int | None = None
    first: float | None = None  # when the first batch was prepared and the last answers came, in seconds since 1970
    last: float | None = None
    data: dict[str, Source] = {}
    outdated: bool = False  # answers have come since the analysis


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One analysed run. `column` and `model` name it among all runs of a report."""

    probe: Probe[Params]
    column: str  # the probe, and parameters that are not its own defaults
    model: str  # the model, and settings that are not the usual ones
    analysis: Analysis
    groups: list[Groups]  # one for each view of the probe
    cost: Cost | None
    provenance: Provenance

    @property
    def stamps(self) -> list[str]:
        """What has to be said wherever a number of this run is shown."""
        return [*self.analysis.stamps, *(["OUTDATED: answers have come since"] if self.provenance.outdated else [])]

    def value(self, metric: str) -> Estimate | None:
        """A metric as it may be shown: where no answer could be read none has a value, though a sum would be 0."""
        found = self.analysis.metrics.get(metric)
        return found if found is None or self.analysis.coverage.detected else NO_VALUE


def analysed(store: Store) -> list[Path]:
    """The folders of every run that has been analysed."""
    return [folder for folder in run_folders(store) if (folder / "metrics.json").is_file()]


def read(store: Store, folders: Sequence[Path]) -> list[Result]:
    """The analyses in these folders, real models before emulated ones, each under a name of its own."""
    found = [_read(store, folder) for folder in dict.fromkeys(folders)]
    if not found:
        raise UsageError("nothing has been analysed yet: `batchbench run`, then `batchbench analyze`")
    named: dict[tuple[str, str], list[Result]] = {}
    for result in found:
        named.setdefault((result.column, result.model), []).append(result)
    apart = [
        msgspec.structs.replace(result, model=f"{result.model} [{_digest(result)}]") if len(several) > 1 else result
        for several in named.values()
        for result in several
    ]
    return sorted(apart, key=lambda result: (result.column, result.analysis.origin.emulated, result.model))


def _read(store: Store, folder: Path) -> Result:
    about = analysis(folder / "metrics.json")
    probe = probes.load(about.probe)
    try:
        cells = pl.read_parquet(io.BytesIO((folder / "cells.parquet").read_bytes()))
    except POLARS_ERRORS as error:
        raise DataError(f"{folder / 'cells.parquet'} cannot be read ({error}): analyze the run again") from None
    cost, provenance = _run(store, folder, probe, about)
    return Result(
        probe=probe,
        column=_with(probe.name, changed_params(probe, about.params)),
        model=_with(about.origin.model, changed_options(probe, provenance.target)),
        analysis=about,
        groups=groups(probe, cells),
        cost=cost,
        provenance=provenance,
    )


def analysis(path: Path) -> Analysis:
    """What `analyze` wrote."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Analysis)
    except FileNotFoundError:
        raise UsageError(f"{path.parent} has not been analysed: `batchbench analyze` first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): analyze the run again") from None
    if found.format != FORMAT:
        raise DataError(f"{path} has format {found.format}, and this batchbench reads {FORMAT}: analyze the run again")
    return found


def _run(store: Store, folder: Path, probe: Probe[Params], analysis: Analysis) -> tuple[Cost | None, Provenance]:
    name = str(folder.absolute().relative_to(store.home.absolute())) if _inside(folder, store.home) else folder.name
    if not (folder / "run.json").is_file():
        return None, Provenance(run=name)
    events = read_journal(folder / "journal").events
    state = journal.replay(events)
    manifest_folder = store.manifests / folder.parent.name
    manifest = read_manifest(manifest_folder)
    worked = [event.at for event in events if isinstance(event, WORKED)]
    provenance = Provenance(
        run=name,
        target=read_run(folder / "run.json").target,
        items=state.asked.items if state.asked else None,
        repetitions=state.asked.repetitions if state.asked else None,
        first=min(worked, default=None),
        last=max(worked, default=None),
        data=manifest.data if manifest else {},
        outdated=state.answered() != analysis.origin.stored,
    )
    mean = _mean_bytes(manifest_folder, manifest) if manifest else None
    return _cost(state, probe, provenance.target, mean), provenance


def _cost(state: RunState, probe: Probe[Params], target: Target | None, mean_bytes: float | None) -> Cost | None:
    if state.asked is None or target is None:
        return None
    rates = state.asked.rates
    answers = sum(batch.stored.answered for batch in state.batches.values() if batch.stored)
    estimated = None
    if mean_bytes is not None:
        tokens = money.likely_input_tokens(answers, mean_bytes)
        estimated = rates.cost(tokens, answers * min(probe.typical_tokens, target.max_tokens))
    return Cost(
        estimated=estimated,
        spent=state.spent(),
        budget=state.asked.budget,
        answers=answers,
        input=rates.input,
        output=rates.output,
        source=rates.source,
    )


def _mean_bytes(folder: Path, manifest: Manifest) -> float | None:
    """The length of a prompt; the first file tells, as every prefix is a fair sample."""
    first = folder / manifest.shards[0].file
    if not first.is_file():
        return None
    mean = pl.scan_parquet(first, glob=False).select(pl.col("prompt").str.len_bytes().mean()).collect().item()
    return None if mean is None else float(mean)


def _inside(folder: Path, home: Path) -> bool:
    return folder.absolute().is_relative_to(home.absolute())


def _with(name: str, settings: Mapping[str, object]) -> str:
    said = ", ".join(f"{key}={_short(value)}" for key, value in settings.items())
    return f"{name} ({said})" if said else name


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"


def _digest(result: Result) -> str:
    """The end of a run's folder name, which differs between targets; of the manifest, if that is what differs."""
    manifest = (result.analysis.origin.manifest or "").rpartition("-")[2]
    return f"{manifest}/{result.provenance.run.rpartition('-')[2]}".strip("/")
