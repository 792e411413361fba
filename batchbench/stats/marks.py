"""Pure: the marks A to D."""

import math

MARKS = "ABCD"
Ranges = tuple[tuple[tuple[float, float], ...], ...]  # closed ranges of A, B, C, D


def mark(ranges: Ranges, low: float, high: float) -> str | None:
    """The best mark of any value between `low` and `high`; None if a bound is NaN.

    Ranges are closed, so a value on a border gets the better mark.
    """
    if math.isnan(low) or math.isnan(high):
        return None
    fits = (any(start <= high and low <= end for start, end in own) for own in ranges)
    return next((letter for letter, fit in zip(MARKS, fits, strict=False) if fit), None)
