"""Pure: how often each label is given in each group, from cells."""

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import polars as pl

from batchbench.analyze.labelled_answers import tally_names
from batchbench.probes.kit.probe import Params, Probe, View
from batchbench.stats.cells import NORMAL_95, Cells

BINS = 12  # of a covariate
FEW = 4  # more series than this cannot be told apart in one figure


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How often a label is given in a group, with a 95 % interval after Wilson for as many items."""

    row: str
    series: str
    share: float
    low: float
    high: float
    items: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a series within a short stretch of a covariate."""

    series: str
    x: float
    share: float
    items: int


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The probe's own regression of a share on a covariate."""

    series: str
    slope: float
    intercept: float


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """What one view shows of one run: shares by group, or along a covariate."""

    view: View
    shares: list[Share] = []
    points: list[Point] = []
    lines: list[Line] = []


def groups(probe: Probe[Params], cells: pl.DataFrame) -> list[Groups]:
    """What every view of the probe shows, in the order of its views."""
    found = []
    for view in views(probe):
        if view.rows in probe.covariates:
            points, lines = scatter(probe, cells, view)
            found.append(Groups(view=view, points=points, lines=lines))
        else:
            found.append(Groups(view=view, shares=shares(probe, cells, view)))
    return found


def views(probe: Probe[Params]) -> tuple[View, ...]:
    """The probe's own views, or one for each stratum: its groups by label, or labels by group where labels are many."""
    if probe.views:
        return probe.views
    few = len(probe.labels) <= FEW
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


def shares(probe: Probe[Params], cells: pl.DataFrame, view: View) -> list[Share]:
    """The shares of a view, row by row; nothing where the cells do not tell."""
    if not set(tally_names(probe)) <= set(cells.columns):
        return []
    found = []
    for inside in [str(value) for value in probe.values[probe.inner]] if probe.inner else [None]:
        columns = {label: f"{inside}/{label}" if inside else label for label in probe.labels}
        readable = pl.sum_horizontal(pl.col(*columns.values()).cast(pl.Float64))
        for label in [view.label] if view.label else probe.labels:
            # Where an item's prompts differ by group, a group's answers are pooled; else items have the same weight.
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
                    found.append(_share(str(value[view.rows]), str(value[view.series]), group))
    return found


def ordered(probe: Probe[Params], name: str, there: Iterable[str]) -> list[str]:
    """The values of a stratum that are there, in their own order: as the probe lists them, else as they come."""
    known = probe.labels if name == "label" else probe.values.get(name, ())
    found = dict.fromkeys(there)
    return [str(value) for value in known if str(value) in found] or list(found)


def _share(row: str, series: str, group: dict[str, float]) -> Share:
    share, items = group["hits"] / group["of"], int(group["items"])
    low, high = wilson(share, items)
    return Share(row=row, series=series, share=share, low=low, high=high, items=items)


def wilson(share: float, items: int) -> tuple[float, float]:
    """An interval that keeps its sense at 0 and 1; an item's share varies no more than a yes or no would."""
    z = NORMAL_95**2
    middle = (share + z / (2 * items)) / (1 + z / items)
    half = math.sqrt(z * share * (1 - share) / items + z * z / (4 * items * items)) / (1 + z / items)
    return max(0.0, middle - half), min(1.0, middle + half)


def scatter(probe: Probe[Params], cells: pl.DataFrame, view: View) -> tuple[list[Point], list[Line]]:
    """A share along a covariate, in short stretches, and the line the probe's metrics lay through it."""
    tallies = tally_names(probe)
    if not cells.height or view.label is None:
        return [], []
    counted = Cells(cells, tallies, cells["items"].to_numpy()[np.newaxis, :].astype(np.float64))
    x, y = counted.column(view.rows), counted.share(view.label)
    table = cells.select(view.series, "items").with_columns(x=pl.lit(x), y=pl.lit(y), known=pl.lit(counted.detected))
    width = (float(x.max()) - float(x.min())) / BINS or 1.0
    bins = (
        table.filter("known")
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
        inside = counted.where(view.series, series)
        slope = float(counted.slope(x, y, inside)[0])
        if not math.isnan(slope):
            middle = float(counted.mean(y, inside)[0]) - slope * float(counted.mean(x, inside)[0])
            lines.append(Line(series=series, slope=slope, intercept=min(1.0, max(0.0, middle))))
    return points, lines
