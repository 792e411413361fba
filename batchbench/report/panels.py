"""Pure: small figures side by side, one for each model: shares by group as dots, or along a scale."""

from collections.abc import Mapping, Sequence

import msgspec

from batchbench.report import axis
from batchbench.report.axis import Axis
from batchbench.report.forest import Figure
from batchbench.report.formats import listed, percent
from batchbench.report.markup import Markup, joined, short, tag
from batchbench.report.shares import Line, Point, Share

WIDTH, RIGHT = 300.0, 18.0  # pixels
LETTER = 6.8  # of the names of rows, on average
NARROW, WIDE = 104.0, 150.0  # what the names of rows may take
TOP, ROW, FOOT = 30.0, 21.0, 24.0
SQUARE = 190.0  # height of a plot along a scale
TOPS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # where a scale of shares may end
SIZE = 5.0  # of the marks of series, from the middle outwards

Names = Mapping[str, str]


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Where shares from nothing to `top` lie in a small figure, right of the names of its rows."""

    top: float
    left: float

    def x(self, share: float) -> float:
        """Where a share lies."""
        return self.left + min(share, self.top) / self.top * (WIDTH - RIGHT - self.left)


def ceiling(shares: Sequence[Share]) -> float:
    """The end of a scale that all models of a figure share."""
    most = max((share.high for share in shares), default=1.0)
    return next((top for top in TOPS if most <= top), 1.0)


def dots(
    title: str, rows: Sequence[str], series: Sequence[str], shares: Sequence[Share], top: float, names: Names
) -> Figure:
    """Shares by group: a line for each group, on it a dot with its interval for each series."""
    longest = max((len(names.get(row, row)) for row in rows), default=0)
    scale = Shares(top=top, left=min(WIDE, max(NARROW, 14 + LETTER * longest)))
    bottom = TOP + len(rows) * ROW
    drawn = [_title(title), *_grid(scale, bottom)]
    for place, row in enumerate(rows):
        y = TOP + place * ROW + ROW / 2
        mine = {share.series: share for share in shares if share.row == row}
        drawn.append(tag("text", _fitting(names.get(row, row), 20), class_="row-name", x=scale.left - 10, y=y + 4))
        if len(mine) > 1:
            ends = [scale.x(share.share) for share in mine.values()]
            drawn.append(_across("bridge", min(ends), max(ends), y))
        for number, name in enumerate(series):
            if share := mine.get(name):
                at = y + (number - (len(series) - 1) / 2) * 3.2  # intervals of several series must not hide each other
                drawn.append(_across(f"whisker s{number}", scale.x(share.low), scale.x(share.high), at))
                drawn.append(_mark(number, scale.x(share.share), at))
    return Figure(
        inside=joined(drawn), height=bottom + FOOT, width=WIDTH, label=_aloud(title, rows, series, shares, names)
    )


def along(
    title: str, what: str, series: Sequence[str], points: Sequence[Point], lines: Sequence[Line], names: Names
) -> Figure:
    """A share along a covariate, `what`: dots of neighbouring values, and the line through them."""
    low, high = min(point.x for point in points), max(point.x for point in points)
    across = Axis(low=low, high=high if high > low else low + 1, margin=0.0)
    bottom, left = TOP + SQUARE, 40.0

    def x(value: float) -> float:
        return left + across.at(value) / 100 * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return bottom - value * SQUARE

    drawn = [_title(title)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawn.append(_across("grid", left, WIDTH - RIGHT, y(share)))
        drawn.append(tag("text", percent(share), class_="side", x=left - 8, y=y(share) + 4))
    ticks = axis.ticks(across.low, across.high, 5)
    for value, text in zip(ticks, axis.written(ticks), strict=True):
        drawn.append(tag("text", text, class_="below", x=x(value), y=bottom + 16))
    drawn.append(tag("text", names.get(what, what), class_="below", x=(left + WIDTH - RIGHT) / 2, y=bottom + 33))
    most = max(point.items for point in points)
    for number, name in enumerate(series):
        for point in points:
            if point.series == name:
                size = SIZE * (0.45 + 0.55 * (point.items / most) ** 0.5)
                drawn.append(_mark(number, x(point.x), y(point.share), size))
        for line in lines:
            if line.series == name:
                ends = [min(1.0, max(0.0, line.intercept + line.slope * value)) for value in (low, high)]
                drawn.append(
                    tag("line", class_=f"slope s{number}", x1=x(low), x2=x(high), y1=y(ends[0]), y2=y(ends[1]))
                )
    slopes = [f"{names.get(line.series, line.series)} {line.slope:+.2f}" for line in lines]
    return Figure(
        inside=joined(drawn),
        height=bottom + FOOT + 16,
        width=WIDTH,
        label=f"{title}: slopes {listed(slopes) or 'unknown'}.",
    )


def legend(series: Sequence[str], names: Names) -> Figure:
    """What the shapes and colours stand for."""
    drawn, x = [], 8.0
    for number, name in enumerate(series):
        text = names.get(name, name)
        drawn += [_mark(number, x, 10), tag("text", text, class_="series", x=x + 10, y=14)]
        x += 30 + 7 * len(text)
    said = listed([names.get(name, name) for name in series])
    return Figure(inside=joined(drawn), height=20, width=x, label=f"Legend: {said}")


def together(panels: Sequence[Figure], key: Figure | None, columns: int = 3) -> Figure:
    """Several small figures as one, for paper."""
    columns = min(columns, len(panels))
    height = max(panel.height for panel in panels) + 12
    top = (key.height + 12) if key else 0.0
    drawn = [key.inside] if key else []
    for place, panel in enumerate(panels):
        x, y = place % columns * (WIDTH + 16), top + place // columns * height
        drawn.append(tag("g", panel.inside, transform=f"translate({x:g} {y:g})"))
    return Figure(
        inside=joined(drawn),
        height=top + -(-len(panels) // columns) * height,
        width=max(columns * (WIDTH + 16) - 16, key.width or 0 if key else 0),
        label=" ".join(panel.label for panel in panels),
    )


def _title(title: str) -> Markup:
    # A name too long for its panel ends in an ellipsis; it stands in full in the tables, and reads aloud in full.
    return tag("text", _fitting(title, 38), class_="title", x=0, y=14)


def _fitting(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _grid(scale: Shares, bottom: float) -> list[Markup]:
    drawn = []
    for value in (0.0, scale.top / 2, scale.top):
        x = scale.x(value)
        drawn.append(tag("path", class_="grid", d=f"M{short(x)} {short(TOP)}V{short(bottom)}"))
        digits = 0 if scale.top >= 0.1 and round(100 * value) == 100 * value else 1
        drawn.append(tag("text", percent(value, digits=digits), class_="below", x=x, y=bottom + 16))
    return drawn


def _across(kind: str, start: float, end: float, y: float) -> Markup:
    return tag("path", class_=kind, d=f"M{short(start)} {short(y)}H{short(end)}")


def _mark(number: int, x: float, y: float, size: float = SIZE) -> Markup:
    """The mark of a series: disc, diamond, triangle or square, so that they are told apart without colour too."""
    kind = f"dot s{number}"
    if number == 0:
        return tag("circle", class_=kind, cx=x, cy=y, r=0.9 * size)
    corners = {
        1: ((0, -1), (1, 0), (0, 1), (-1, 0)),
        2: ((0, -1), (1, 0.8), (-1, 0.8)),
        3: ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    }[number]
    places = [f"{short(x + across * size)} {short(y + down * size)}" for across, down in corners]
    return tag("path", class_=kind, d=f"M{'L'.join(places)}Z")


def _aloud(title: str, rows: Sequence[str], series: Sequence[str], shares: Sequence[Share], names: Names) -> str:
    found = {(share.row, share.series): percent(share.share) for share in shares}
    said = [
        f"{names.get(row, row)}: "
        + ", ".join(f"{names.get(name, name)} {found[row, name]}" for name in series if (row, name) in found)
        for row in rows
    ]
    return f"{title}. {'; '.join(said)}."
