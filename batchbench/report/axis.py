"""Pure: positions of values along an axis, ticks, and labels that do not overlap."""

import math
from collections.abc import Sequence

import msgspec

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
NARROW = 270  # pixels: the narrowest figure that has to be readable
LETTER = 6.4  # pixels: upper estimate of a letter's width


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A linear axis from `low` to `high`; positions are per cent of the figure's width, which the screen decides."""

    low: float
    high: float
    margin: float = 4.5  # per cent: free space at both ends, for the symbol around a value

    def at(self, value: float) -> float:
        """The position of a value; values outside of the axis are moved to its ends."""
        inside = min(max(value, self.low), self.high)
        return self.margin + (inside - self.low) / (self.high - self.low) * (100 - 2 * self.margin)


def around(values: Sequence[float], limits: tuple[float, float]) -> Axis:
    """An axis with all values and some padding; the padding does not go beyond `limits`."""
    low, high = min(values), max(values)
    padding = 0.06 * (high - low) or 0.05
    return Axis(low=min(low, max(low - padding, limits[0])), high=max(high, min(high + padding, limits[1])))


def ticks(low: float, high: float, max_intervals: int = 6) -> list[float]:
    """Round values between `low` and `high`, with at most `max_intervals` steps between them."""
    span = high - low
    magnitude = 10.0 ** math.floor(math.log10(span / max_intervals))
    step = next(step * magnitude for step in STEPS if span / (step * magnitude) <= max_intervals)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Values as text, all with as many decimals as the most precise one needs."""
    digits = max((len(f"{value:.4f}".rstrip("0").partition(".")[2]) for value in values), default=0)
    return [f"{value:.{digits}f}".replace("-", "−") for value in values]


def anchor(position: float, text: str) -> str:
    """The text-anchor of a label at `position` (per cent): centred, or turned inwards if it would not fit."""
    half = len(text) * LETTER / 2 / NARROW * 100
    return "start" if position < half else "end" if position > 100 - half else "middle"


def span(position: float, text: str) -> tuple[float, float]:
    """Start and end of a label, in pixels of the narrowest figure, where labels are closest together."""
    x, width = position / 100 * NARROW, len(text) * LETTER
    start = {"start": x, "middle": x - width / 2, "end": x - width}[anchor(position, text)]
    return start, start + width


def line_numbers(labels: Sequence[tuple[float, str]]) -> list[int]:
    """For labels (position, text), sorted by position: the text line for each, so that none overlaps another."""
    lines: list[list[tuple[float, float]]] = []
    numbers = []
    for position, text in labels:
        start, end = span(position, text)
        free = (all(end + 8 < a or b + 8 < start for a, b in line) for line in lines)
        number = next((number for number, fits in enumerate(free) if fits), len(lines))
        if number == len(lines):
            lines.append([])
        lines[number].append((start, end))
        numbers.append(number)
    return numbers
