"""Compare runs of one probe, item by item: the differences between their metrics, with intervals and p-values.

Both readings are compared. P-values are adjusted within each reading.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from batchbench.analyze import readings
from batchbench.analyze.analysis import measure, nan_to_none
from batchbench.analyze.labelled_answers import LabelledAnswers, score_names, tally_items, tally_names
from batchbench.probes.kit.probe import Params, Probe
from batchbench.stats import cells, significance
from batchbench.stats.cells import Cells, Measured, Values


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first run's metric minus the second's, over the items that both answered."""

    estimate: float | None
    se: float | None
    low: float | None
    high: float | None
    p: float | None = None  # headline metrics only
    p_holm: float | None = None  # adjusted for all headline metrics and pairs of this comparison, in one reading


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of one probe, compared item by item."""

    probe: str
    first: str
    second: str
    stamps: list[str]
    items: int
    agreement: float | None  # share of the common answers that have the same label by the reference reading
    differences: dict[str, Difference]


def compare(probe: Probe[Params], runs: Sequence[LabelledAnswers], *, replicates: int, seed: int) -> list[Comparison]:
    """Compare every pair of runs, over the items that both have."""
    pairs = [(first, second) for number, first in enumerate(runs) for second in runs[number + 1 :]]
    reference, *others = (_compare_reading(kind, probe, pairs, replicates, seed) for kind in readings.kinds(probe))
    for careful in others:
        for comparison, other in zip(reference, careful, strict=True):
            comparison.differences.update({f"{readings.CAREFUL}{k}": v for k, v in other.differences.items()})
    return reference


def _compare_reading(
    kind: readings.Kind,
    probe: Probe[Params],
    pairs: Sequence[tuple[LabelledAnswers, LabelledAnswers]],
    replicates: int,
    seed: int,
) -> list[Comparison]:
    comparisons = []
    for pair in pairs:
        (view, first), (_, second) = (readings.read_by(kind, probe, run) for run in pair)
        comparisons.append(_compare_pair(view, first, second, replicates, seed))
    tests = [
        (comparison.differences, name, difference.p)
        for comparison in comparisons
        for name, difference in comparison.differences.items()
        if difference.p is not None
    ]
    adjusted = significance.holm([p for _, _, p in tests])
    for (differences, name, _), p_holm in zip(tests, adjusted, strict=True):
        differences[name] = msgspec.structs.replace(differences[name], p_holm=p_holm)
    return comparisons


def _compare_pair(
    probe: Probe[Params], first: LabelledAnswers, second: LabelledAnswers, replicates: int, seed: int
) -> Comparison:
    tallies, on = tally_names(probe), "key" if "key" in first.design.columns else "item"
    counted = [*tallies, *score_names(probe), "attempts"]
    of_second = {name: f"{name} of the second" for name in counted}
    joined = tally_items(probe, first).join(
        tally_items(probe, second).select(on, pl.col(counted).name.map(of_second.__getitem__)), on=on, how="inner"
    )
    table = cells.count(joined)
    renamed = {column: name for name, column in of_second.items()}
    tables = [table.drop(of_second.values()), table.drop(counted).rename(renamed)]

    def difference(weights: Values) -> Measured:
        one, other = (measure(probe, Cells(table, tallies, weights)) for table in tables)
        return {name: one[name] - other[name] for name in one if name in other}

    measured = cells.bootstrap(difference, table["items"].to_numpy().astype(np.float64), replicates, seed)
    headline = {metric.name for metric in probe.key_metrics if metric.headline}
    return Comparison(
        probe=probe.name,
        first=first.origin.model,
        second=second.origin.model,
        stamps=list(dict.fromkeys([*first.stamps, *second.stamps])),
        items=joined.height,
        agreement=_agreement(first, second, on),
        differences={name: _difference(values, name in headline) for name, values in measured.items()},
    )


def _difference(values: Values, tested: bool) -> Difference:
    summary = cells.summary(values)
    p = significance.two_sided(summary.estimate, summary.se) if tested else math.nan
    numbers = {name: nan_to_none(getattr(summary, name)) for name in ("estimate", "se", "low", "high")}
    return Difference(**numbers, p=nan_to_none(p))


def _agreement(first: LabelledAnswers, second: LabelledAnswers, on: str) -> float | None:
    keys = [on, "variant", "rep"]
    one, other = (
        _with_key(run, on).filter(pl.col("outcome") != "failed").select(*keys, "label") for run in (first, second)
    )
    common = one.join(other, on=keys, how="inner")
    same = common.select(pl.col("label").eq_missing(pl.col("label_right")).mean()).item()
    return None if same is None else float(same)


def _with_key(labelled: LabelledAnswers, on: str) -> pl.DataFrame:
    if on == "item":
        return labelled.answers
    return labelled.answers.with_columns(labelled.design["key"][labelled.answers["item"]])
