"""Pure: from values to places along a line, and which values to write there."""

import math
from collections.abc import Sequence

import msgspec

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
NARROW = 300  # pixels of the narrowest screen that a figure has to be readable on


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line from `low` to `high`; places are per cent of a width that only the reader's screen knows."""

    low: float
    high: float
    margin: float = 4.5  # per cent that stay free at both ends, for what is drawn around a value

    def at(self, value: float) -> float:
        """Where a value lies; values beyond the ends lie at the ends."""
        inside = min(max(value, self.low), self.high)
        return self.margin + (inside - self.low) / (self.high - self.low) * (100 - 2 * self.margin)


def around(values: Sequence[float], limits: tuple[float, float]) -> Axis:
    """An axis that shows all values with some air around them, and stays within limits unless a value does not."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or 0.05
    return Axis(low=min(low, max(low - air, limits[0])), high=max(high, min(high + air, limits[1])))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between the ends, at most so many."""
    span = high - low
    magnitude = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * magnitude for step in STEPS if span / (step * magnitude) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def written(values: Sequence[float]) -> list[str]:
    """Values with as many decimals as the finest of them needs."""
    digits = max((len(f"{value:.4f}".rstrip("0").partition(".")[2]) for value in values), default=0)
    return [f"{value:.{digits}f}".replace("-", "−") for value in values]


def levels(places: Sequence[tuple[float, str]], letter: float = 6.4) -> list[int]:
    """For labels centred on places (in per cent), the line each is written on so that none overlaps another.

    They are measured on the narrowest screen, where they are closest together.
    """
    ends: list[float] = []
    found = []
    for place, text in places:
        half = len(text) * letter / 2
        middle = min(max(place / 100 * NARROW, half), NARROW - half)
        level = next((level for level, end in enumerate(ends) if end + 8 < middle - half), len(ends))
        ends[level:] = [middle + half] if level == len(ends) else [middle + half, *ends[level + 1 :]]
        found.append(level)
    return found
