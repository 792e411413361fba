"""Pure: shares of a population, estimated from a sample that takes some groups more often than others.

The interval is the set of shares that a score test does not reject at 5 %. For each tested share, the shares of the
strata are the most likely ones that add up to it, and the variance is that of sampling without replacement from them.
With one stratum this is Wilson's interval. It covers also where every drawn answer is right, where an interval from the
sample's own variance would have no width.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from batchbench.stats.cells import NORMAL_95, Values

STEPS = 45  # of the bisection, which starts with a width of 40
TINY = 1e-18  # a squared difference of two equal shares may be this large
MIN_DRAWN = 2  # of a stratum, if it has as many


class Stratum(NamedTuple):
    """One stratum of a population, and what was found in the part of it that was drawn."""

    size: int
    drawn: int
    counted: int  # of the drawn ones, those that the share is about
    hits: int  # of the counted ones


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


def share(strata: Sequence[Stratum]) -> Share | None:
    """The share of hits among what would be counted in the population; None if nothing was counted."""
    table = np.array([stratum for stratum in strata if stratum.counted], dtype=np.float64)
    if not table.size:
        return None
    size, drawn, counted, hits = table.T
    population, part = float(size.sum()), counted / drawn
    weight = size * part / (size * part).sum()
    estimate = float((weight * hits / counted).sum())
    spread = (size / (size * part).sum()) ** 2 * (size - drawn) / np.maximum(size - 1, 1) / drawn * part

    def distance(multiplier: float) -> tuple[float, float]:
        """A tested share, and how far it is outside of the interval: above 0 if the test rejects it."""
        likely = np.where(spread > 0, _most_likely(hits, counted, multiplier * weight), hits / counted)
        tested = float((weight * likely).sum())
        variance = (spread * (likely * (1 - likely) + (1 - part) * (likely - tested) ** 2)).sum()
        return tested, (estimate - tested) ** 2 - NORMAL_95**2 * variance - TINY

    scale = counted.sum()
    low = _boundary(lambda power: distance(scale * math.exp(power))) if hits.any() else 0.0
    high = _boundary(lambda power: distance(-scale * math.exp(power))) if (hits < counted).any() else 1.0
    # Whole answers: a share of 100 answers is a whole percentage.
    low, high = math.floor(low * population + 1e-6) / population, math.ceil(high * population - 1e-6) / population
    return Share(estimate=estimate, low=max(0.0, min(low, estimate)), high=min(1.0, max(high, estimate)))


def _most_likely(hits: Values, counted: Values, pull: Values) -> Values:
    """The shares that maximize the binomial likelihood minus `pull` times the share: the root of a quadratic."""
    linear = counted + pull
    root = np.sqrt(np.maximum(linear**2 - 4 * pull * hits, 0))
    half = (linear + np.where(linear >= 0, root, -root)) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        likely = np.where(linear >= 0, hits / half, half / pull)
    return np.clip(np.where(half == 0, 0.0, likely), 0.0, 1.0)


def _boundary(distance: Callable[[float], tuple[float, float]]) -> float:
    """The tested share at which the distance becomes positive."""
    inside, outside = -20.0, 20.0
    if distance(outside)[1] <= 0:
        return distance(outside)[0]
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if distance(middle)[1] > 0 else (middle, outside)
    return distance(outside)[0]


def kappa(agreement: Share, chance: float) -> Share | None:
    """Cohen's kappa, with the interval of the agreement at a fixed chance agreement; None if chance is 1."""
    if chance >= 1:
        return None
    low, estimate, high = (
        (value - chance) / (1 - chance) for value in (agreement.low, agreement.estimate, agreement.high)
    )
    return Share(estimate=estimate, low=max(-1.0, low), high=high)


def allocate(sizes: Sequence[int], factors: Sequence[float], total: int) -> list[int]:
    """How many to draw from each stratum: in proportion to `factor * sqrt(size)`, and at least MIN_DRAWN.

    The root gives small strata more than their part, and large strata enough.
    """
    size = np.array(sizes, dtype=np.int64)
    priority = np.array(factors) * np.sqrt(size)
    drawn = np.minimum(size, MIN_DRAWN)
    while drawn.sum() < min(total, size.sum()):
        drawn[np.argmax(np.where(drawn < size, priority / np.maximum(drawn, 1), -1))] += 1
    return [int(number) for number in drawn]
