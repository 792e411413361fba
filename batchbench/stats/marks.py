"""Pure: the marks A to D, and how likely a difference is by chance."""

import math
from collections.abc import Sequence

MARKS = "ABCD"
Ranges = tuple[tuple[tuple[float, float], ...], ...]  # closed ranges of A, B, C, D


def mark(ranges: Ranges, low: float, high: float) -> str | None:
    """The best mark that any value between `low` and `high` has; None where a bound is no number.

    Ranges are closed, so a value on a border has the better mark: the benefit of the doubt.
    """
    if math.isnan(low) or math.isnan(high):
        return None
    fits = (any(start <= high and low <= end for start, end in several) for several in ranges)
    return next((letter for letter, fit in zip(MARKS, fits, strict=False) if fit), None)


def chi_square(hits: Sequence[int], totals: Sequence[int], repeats: float) -> tuple[float, int, float]:
    """Whether shares differ between groups: the statistic, its degrees of freedom, and the p-value.

    `repeats` is how many observations stand for one: repeated answers of one item are not independent, and counting
    them as one is the cautious choice. Empty groups are left out.
    """
    groups = [(hit, total) for hit, total in zip(hits, totals, strict=True) if total]
    hit, total = sum(hit for hit, _ in groups), sum(total for _, total in groups)
    freedom = len(groups) - 1
    if freedom < 1 or hit in (0, total):
        return 0.0, max(freedom, 0), 1.0
    share = hit / total
    statistic = sum((k - n * share) ** 2 / (n * share * (1 - share)) for k, n in groups) / repeats
    return statistic, freedom, chi_square_tail(statistic, freedom)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability of a larger chi-square, by the finite sums for whole degrees of freedom."""
    half = statistic / 2
    odd = freedom % 2
    tail = math.erfc(math.sqrt(half)) if odd else 0.0
    steps = range(1, (freedom - 1) // 2 + 1) if odd else range(freedom // 2)
    return min(1.0, tail + sum(_poisson(half, step - odd / 2) for step in steps))


def _poisson(mean: float, k: float) -> float:
    if mean == 0:
        return 1.0 if k == 0 else 0.0
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))


def two_sided(estimate: float, se: float) -> float:
    """The p-value of a normally distributed estimate against 0; NaN where there is no estimate."""
    if se > 0:
        return math.erfc(abs(estimate) / se / math.sqrt(2))
    return math.nan if math.isnan(estimate) or math.isnan(se) else float(estimate == 0)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for looking at all of them, after Holm; NaN stays and is not counted."""
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted = list(p_values)
    worst = 0.0
    for rank, (p, place) in enumerate(order):
        worst = max(worst, min(1.0, p * (len(order) - rank)))
        adjusted[place] = worst
    return adjusted
