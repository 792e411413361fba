"""Pure: p-values."""

import math
from collections.abc import Sequence


def chi_square(hits: Sequence[int], totals: Sequence[int], repeats: float) -> tuple[float, int, float]:
    """Test whether shares differ between groups: the statistic, its degrees of freedom, and the p-value.

    The statistic is divided by `repeats`, the number of answers per item: repeated answers of one item are not
    independent, and counting them as one observation is conservative. Empty groups are left out.
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
    """The probability of a larger chi-square, by the finite sums for integer degrees of freedom."""
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
    """The p-value of a normally distributed estimate against 0; NaN if the estimate or its error is NaN."""
    if se > 0:
        return math.erfc(abs(estimate) / se / math.sqrt(2))
    return math.nan if math.isnan(estimate) or math.isnan(se) else float(estimate == 0)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple testing, after Holm; NaN stays NaN and is not counted as a test."""
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = list(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[index] = largest
    return adjusted
