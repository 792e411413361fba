"""Pure: format numbers, dates and lists for display, with a real minus sign and a fixed number of digits."""

from collections.abc import Sequence
from datetime import UTC, datetime

NOTHING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """A number with a fixed count of decimals, so that columns line up."""
    if value is None:
        return NOTHING
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def interval(low: float | None, high: float | None) -> str:
    """An interval, or a dash if it is unknown."""
    return NOTHING if low is None or high is None else f"{number(low)} to {number(high)}"


def percent(part: float, whole: float = 1.0, digits: int = 0) -> str:
    """A share; only an exact 0 or 1 is shown as 0% or 100%, shares close to them as "<1%" or ">99%"."""
    if not whole:
        return NOTHING
    if part in (0, whole):
        return "100%" if part else "0%"
    share = 100 * part / whole
    step = 10.0**-digits
    if 0 < share < step / 2:
        return f"<{step:g}%"
    if 100 - step / 2 < share < 100:
        return f">{100 - step:g}%"
    return f"{share:.{digits}f}%"


def points(value: float | None) -> str:
    """A difference between shares, in percentage points, with its sign."""
    if value is None:
        return NOTHING
    rounded = round(100 * value)
    return f"+{rounded}" if rounded > 0 else f"−{-rounded}" if rounded < 0 else "0"


def day(seconds: float) -> str:
    """The date, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def counted(count: int, noun: str) -> str:
    """`1 model`, `3 models`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    *others, last = items or [""]
    return f"{', '.join(others)} and {last}" if others else last
