"""Pure: counting answers into cells, and the statistics made of them.

An item is what is resampled. Items of the same groups whose answers were read the same way are interchangeable for
every metric, so only their number matters: a cell. Drawing items with replacement is exactly a multinomial draw over
the cells, and its cost does not depend on how many items there are. A metric is written once, over weights with a
row per drawing and a column per cell; the first row is the data.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

Values = npt.NDArray[np.float64]  # a number per drawing, or per cell
Mask = npt.NDArray[np.bool_]  # which cells
Measured = dict[str, Values]

BLOCK = 1 << 20  # weights in work at a time in each thread: 8 MB, and as much again for the drawn integers
NORMAL_95 = 1.959963984540054
PART = 1 << 19  # items grouped at a time
MIN_REGRESSION_ITEMS = 3  # items for a regression
FLAT = 1e-13  # relative to n times the sum of squares: below it all x are the same but for rounding


def tally(
    attempts: pl.DataFrame,
    labels: Sequence[str],
    inner: str | None,
    values: Sequence[str],
    scores: Sequence[str] = (),
) -> pl.DataFrame:
    """One row per item: how many attempts it had, how many were read as each label, and the mean of each score.

    Where `inner` names a column that differs between the prompts of an item, labels are counted apart for each of
    its `values`, as `value/label`, and so are scores. A failed request is no attempt.
    """
    read = {label: pl.col("label") == label for label in labels}
    numbers = {score: pl.col(score) for score in scores}
    if inner:
        read = {f"{value}/{label}": (pl.col(inner) == value) & hit for value in values for label, hit in read.items()}
        numbers = {
            f"{value}/{score}": pl.when(pl.col(inner) == value).then(number)
            for value in values
            for score, number in numbers.items()
        }
    hits = [(hit & pl.col("label").is_not_null()).alias(name) for name, hit in read.items()]
    hits.append((pl.col("outcome") != "failed").alias("attempts"))
    if attempts["item"].n_unique() == attempts.height:  # the common case, and grouping is most of the time
        return attempts.select("item", *(hit.cast(pl.UInt16) for hit in hits), **numbers)
    sums = [
        *(hit.sum().cast(pl.UInt16) for hit in hits),
        *(number.mean().alias(name) for name, number in numbers.items()),
    ]
    return pl.concat([part.group_by("item").agg(sums) for part in _by_items(attempts)])


def _by_items(attempts: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The attempts in parts that never split an item: grouping millions of items at once takes gigabytes."""
    items = attempts.select(pl.col("item").max().fill_null(0)).item() + 1
    for first in range(0, items, PART):
        yield attempts.filter(pl.col("item").is_between(first, first + PART, closed="left"))


def count(items: pl.DataFrame) -> pl.DataFrame:
    """The cells of `items`, in a fixed order, with the number of items in each."""
    keys = [name for name in items.columns if name not in ("item", "key")]
    return items.group_by(keys).agg(items=pl.len()).sort(keys)


class Cells:
    """Cells, and how often each was drawn."""

    def __init__(self, table: pl.DataFrame, tallies: Sequence[str], weights: Values) -> None:
        self.table = table
        self.weights = weights
        self.detected: Mask = self._numbers(tallies).sum(axis=1) > 0
        self._tallies = list(tallies)

    def _numbers(self, names: Sequence[str]) -> Values:
        return self.table.select(pl.col(names).cast(pl.Float64)).to_numpy()

    def column(self, name: str) -> Values:
        """A numeric column, by cell; NaN where there is no number."""
        return self._numbers([name])[:, 0]

    def values(self, name: str) -> list[str]:
        """The groups of a stratum, whether or not there are items in them, in alphabetical order."""
        column = self.table[name]
        known = column.dtype.categories if isinstance(column.dtype, pl.Enum) else column.unique()
        return sorted(known.to_list())

    def where(self, name: str, value: str | int) -> Mask:
        """The cells of one group."""
        return (self.table[name] == value).to_numpy()

    def share(self, label: str) -> Values:
        """Of an item's readable answers, the share read as `label`, by cell; 0 where none is readable."""
        return ratio(self.column(label), self._numbers(self._tallies).sum(axis=1), otherwise=0.0)

    def total(self, value: Values, where: Mask | None = None) -> Values:
        """The sum of a value over the items drawn."""
        return self._sums([value], np.ones_like(self.detected) if where is None else where)[0]

    def mean(self, value: Values, where: Mask) -> Values:
        """The mean of a value over the items drawn that have a readable answer; NaN where there is none."""
        n, sum_ = self._sums([np.ones_like(value), value], where & self.detected)
        return ratio(sum_, n)

    def average(self, value: Values, where: Mask) -> Values:
        """The mean of a value over the items drawn that have one, whatever else can be read of them."""
        n, sum_ = self._sums([np.ones_like(value), value], where & ~np.isnan(value))
        return ratio(sum_, n)

    def slope(self, x: Values, y: Values, where: Mask) -> Values:
        """The slope of y on x by least squares, slope within [-1, 1] and intercept within [0, 1].

        Over the items drawn that have a readable answer; NaN for fewer than three of them.
        """
        n, sx, sy, sxx, sxy = self._sums([np.ones_like(x), x, y, x * x, x * y], where & self.detected)
        return np.where(n < MIN_REGRESSION_ITEMS, np.nan, _bounded_slope(n, sx, sy, sxx, sxy))

    def _sums(self, values: Sequence[Values], where: Mask) -> list[Values]:
        chosen = np.flatnonzero(where)
        weights = self.weights[:, chosen]
        # Not `@`: the result of a matrix product may depend on how many threads share the work.
        return [np.einsum("rc,c->r", weights, value[chosen]) for value in values]


def undetected_rates(cells: Cells) -> Measured:
    """The share of items, and of attempts, from which nothing could be read."""
    items, read = cells.total(np.ones(cells.table.height)), cells.total(cells.detected.astype(np.float64))
    attempts = cells.column("attempts")
    hits = cells._numbers(cells._tallies).sum(axis=1)
    return {
        "undetected_rate_items": 1 - ratio(read, items),
        "undetected_rate_attempts": ratio(cells.total(attempts - hits), cells.total(attempts)),
    }


def _bounded_slope(n: Values, sx: Values, sy: Values, sxx: Values, sxy: Values) -> Values:
    """The slope that minimises the sum of (ax + b - y)² over -1 <= a <= 1, 0 <= b <= 1, from sums.

    The sum of squares is convex: where its lowest point lies outside the box, the best point is on an edge. Where
    all x are the same, the least of all equally good solutions is taken.
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
    return np.where(spread <= FLAT * n * sxx, y * x / (1 + x * x), np.where(inside, a, edge))


def ratio(part: Values, whole: Values, otherwise: float = np.nan) -> Values:
    """Division, with `otherwise` where there is nothing to divide by."""
    return np.divide(part, whole, out=np.full_like(part, otherwise), where=whole > 0)


def average(values: Sequence[Values]) -> Values:
    """The mean of those that are numbers; NaN where none is."""
    stacked = np.array(values).reshape(len(values), -1) if values else np.full((1, 1), np.nan)
    known = ~np.isnan(stacked)
    return ratio(np.where(known, stacked, 0).sum(axis=0), known.sum(axis=0).astype(np.float64))


def total(values: Sequence[Values]) -> Values:
    """The sum of several."""
    added: Values = np.sum(list(values), axis=0)
    return added


def largest(values: Sequence[Values]) -> Values:
    """The largest of several."""
    found: Values = np.max(list(values), axis=0)
    return found


def bootstrap(measure: Callable[[Values], Measured], items: Values, replicates: int, seed: int) -> Measured:
    """What `measure` makes of the data, then of `replicates` drawings of as many items with replacement.

    Each block of drawings has a generator of its own, so that the threads' number and timing change nothing.
    """
    total = int(items.sum())
    rows = max(1, BLOCK // max(1, len(items)))

    def drawn(first: int) -> Measured:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(first,))))
        draws = generator.multinomial(total, items / total, size=min(rows, replicates - first))
        return measure(draws.astype(np.float64))

    blocks = [measure(items[np.newaxis, :].astype(np.float64))]
    if total:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            blocks += pool.map(drawn, range(0, replicates, rows))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


class Summary(NamedTuple):
    """A metric's value and what the drawings say about its precision; NaN where there is none."""

    estimate: float
    se: float
    low: float
    high: float
    compat_low: float
    compat_high: float


def summary(values: Values) -> Summary:
    """Estimate, standard error, 95 % percentile interval, and the interval GenderBench would state."""
    estimate, drawn = float(values[0]), values[1:]
    known = drawn[~np.isnan(drawn)]
    if not known.size:
        return Summary(estimate, *[float("nan")] * 5)
    se = float(known.std(ddof=1)) if known.size > 1 else float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return Summary(estimate, se, float(low), float(high), *compatible(drawn))


def compatible(drawn: Values) -> tuple[float, float]:
    """GenderBench's interval: a normal distribution fitted to the drawings, so centred on their mean.

    Drawings without a value are left out. If all others agree, the fit fails and there is no interval; if all agree
    and none is left out, the interval is that one value.
    """
    known = drawn[~np.isnan(drawn)]
    if not known.size:
        return float("nan"), float("nan")
    if (known == known[0]).all():
        only = float(known[0]) if known.size == drawn.size else float("nan")
        return only, only
    middle, half = float(known.mean()), NORMAL_95 * float(known.std())
    return middle - half, middle + half


def agreement(attempts: pl.DataFrame) -> float | None:
    """Of all pairs of attempts at the same prompt, the share read the same way; None where nothing was repeated."""
    ordered_pairs = (pl.col("len").cast(pl.UInt64) * (pl.col("len") - 1)).sum()
    same = pairs = 0
    for part in _by_items(attempts.filter(pl.col("outcome") != "failed")):
        labels = part.group_by("item", "variant", "label").len()
        same += labels.select(ordered_pairs).item()
        pairs += labels.group_by("item", "variant").agg(pl.col("len").sum()).select(ordered_pairs).item()
    return same / pairs if pairs else None
