"""Pure: the share of each label in each group, from cells."""

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import polars as pl

from batchbench.analyze.labelled_answers import tally_names
from batchbench.probes.kit.probe import Params, Probe, View
from batchbench.stats.cells import NORMAL_95, Cells

BINS = 12  # of a covariate
MAX_SERIES = 4  # in one figure; more cannot be distinguished


class LabelShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a label in a group, with Wilson's 95 % interval for the number of items."""

    row: str
    series: str
    share: float
    low: float
    high: float
    items: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a series within one bin of a covariate."""

    series: str
    x: float
    share: float
    items: int


class TrendLine(msgspec.Struct, frozen=True, kw_only=True):
    """The regression of a share on a covariate, as in the probe's metrics."""

    series: str
    slope: float
    intercept: float


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one view of one run: shares by group, or along a covariate."""

    view: View
    shares: list[LabelShare] = []
    points: list[Point] = []
    lines: list[TrendLine] = []


def groups(probe: Probe[Params], cells: pl.DataFrame) -> list[Groups]:
    """The data of every view of the probe, in the order of the views."""
    result = []
    for view in views(probe):
        if view.rows in probe.covariates:
            points, lines = scatter(probe, cells, view)
            result.append(Groups(view=view, points=points, lines=lines))
        else:
            result.append(Groups(view=view, shares=shares(probe, cells, view)))
    return result


def views(probe: Probe[Params]) -> tuple[View, ...]:
    """The probe's own views, or one for each stratum: groups by label, or labels by group if there are many labels."""
    if probe.views:
        return probe.views
    few = len(probe.labels) <= MAX_SERIES
    return tuple(
        View(
            title=f"Answers by {stratum}",
            about="What answers were read as, in each group.",
            rows=stratum if few else "label",
            series="label" if few else stratum,
        )
        for stratum in probe.strata
        if stratum != probe.inner or not few
    )


def shares(probe: Probe[Params], cells: pl.DataFrame, view: View) -> list[LabelShare]:
    """The shares of a view, row by row; empty if the cells lack the probe's tallies."""
    if not set(tally_names(probe)) <= set(cells.columns):
        return []
    result = []
    for inside in [str(value) for value in probe.values[probe.inner]] if probe.inner else [None]:
        columns = {label: f"{inside}/{label}" if inside else label for label in probe.labels}
        readable = pl.sum_horizontal(pl.col(*columns.values()).cast(pl.Float64))
        for label in [view.label] if view.label else probe.labels:
            # If an item's prompts differ by group, a group's answers are pooled; otherwise items have equal weights.
            hits = pl.col(columns[label])
            hits, of = (hits, readable) if inside else (hits / readable, pl.lit(1.0))
            fixed = {"label": label} | ({probe.inner: inside} if probe.inner and inside else {})
            keys = [name for name in (view.rows, view.series) if name not in fixed]
            table = cells.filter(readable > 0).with_columns(hits=hits * pl.col("items"), of=of * pl.col("items"))
            sums = [pl.col("hits").sum(), pl.col("of").sum(), pl.col("items").sum()]
            groups = table.group_by(keys).agg(sums).sort(keys) if keys else table.select(sums)
            for group in groups.iter_rows(named=True):
                if group["items"]:
                    value = {**group, **fixed}
                    result.append(_share(str(value[view.rows]), str(value[view.series]), group))
    return result


def ordered(probe: Probe[Params], name: str, values: Iterable[str]) -> list[str]:
    """The distinct `values` of a stratum or of `label`, in the probe's order if it lists them."""
    known = probe.labels if name == "label" else probe.values.get(name, ())
    distinct = dict.fromkeys(values)
    return [str(value) for value in known if str(value) in distinct] or list(distinct)


def _share(row: str, series: str, group: dict[str, float]) -> LabelShare:
    share, items = group["hits"] / group["of"], int(group["items"])
    low, high = wilson(share, items)
    return LabelShare(row=row, series=series, share=share, low=low, high=high, items=items)


def wilson(share: float, items: int) -> tuple[float, float]:
    """Wilson's interval, valid also at 0 and 1; conservative, as an item's share varies at most like a yes or no."""
    z = NORMAL_95**2
    middle = (share + z / (2 * items)) / (1 + z / items)
    half = math.sqrt(z * share * (1 - share) / items + z * z / (4 * items * items)) / (1 + z / items)
    return max(0.0, middle - half), min(1.0, middle + half)


def scatter(probe: Probe[Params], cells: pl.DataFrame, view: View) -> tuple[list[Point], list[TrendLine]]:
    """A share along a covariate, in bins, and the regression line of the probe's metrics."""
    tallies = tally_names(probe)
    if not cells.height or view.label is None:
        return [], []
    c = Cells(cells, tallies, cells["items"].to_numpy()[np.newaxis, :].astype(np.float64))
    x, y = c.column(view.rows), c.share(view.label)
    table = cells.select(view.series, "items").with_columns(x=pl.lit(x), y=pl.lit(y), detected=pl.lit(c.detected))
    width = (float(x.max()) - float(x.min())) / BINS or 1.0
    bins = (
        table.filter("detected")
        .group_by(view.series, bin=((pl.col("x") - float(x.min())) / width).floor().clip(0, BINS - 1))
        .agg(
            x=(pl.col("x") * pl.col("items")).sum() / pl.col("items").sum(),
            share=(pl.col("y") * pl.col("items")).sum() / pl.col("items").sum(),
            items=pl.col("items").sum(),
        )
        .sort(view.series, "bin")
    )
    points = [
        Point(series=str(row[view.series]), x=row["x"], share=row["share"], items=row["items"])
        for row in bins.iter_rows(named=True)
    ]
    lines = []
    for series in dict.fromkeys(point.series for point in points):
        inside = c.where(view.series, series)
        slope = float(c.slope(x, y, inside)[0])
        if not math.isnan(slope):
            intercept = float(c.mean(y, inside)[0]) - slope * float(c.mean(x, inside)[0])
            lines.append(TrendLine(series=series, slope=slope, intercept=min(1.0, max(0.0, intercept))))
    return points, lines
