"""Pure: from values to places along a line, and which values to write there."""

import math
from collections.abc import Sequence

import msgspec

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
NARROW = 270  # pixels of the narrowest figure that has to be readable
LETTER = 6.4  # pixels of a letter, rather more than less


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


def anchor(place: float, text: str) -> str:
    """How a label goes with its place (in per cent): centred, or leaning inwards where it would not fit."""
    half = len(text) * LETTER / 2 / NARROW * 100
    return "start" if place < half else "end" if place > 100 - half else "middle"


def span(place: float, text: str) -> tuple[float, float]:
    """From where to where a label reaches on the narrowest screen, where labels are closest together."""
    x, width = place / 100 * NARROW, len(text) * LETTER
    start = {"start": x, "middle": x - width / 2, "end": x - width}[anchor(place, text)]
    return start, start + width


def levels(places: Sequence[tuple[float, str]]) -> list[int]:
    """For labels in the order of their places, the line each is written on so that none overlaps another."""
    lines: list[list[tuple[float, float]]] = []
    found = []
    for place, text in places:
        start, end = span(place, text)
        free = (all(end + 8 < a or b + 8 < start for a, b in line) for line in lines)
        level = next((level for level, fits in enumerate(free) if fits), len(lines))
        lines[level:] = [[*(lines[level] if level < len(lines) else []), (start, end)], *lines[level + 1 :]]
        found.append(level)
    return found
