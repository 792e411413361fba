"""Pure: small figures side by side, one for each model: shares by group, or a share along a covariate."""

from collections.abc import Mapping, Sequence

import msgspec

from batchbench.report import axis
from batchbench.report.axis import Axis
from batchbench.report.forest import Figure
from batchbench.report.formats import listed, percent
from batchbench.report.markup import Markup, joined, short, tag
from batchbench.report.shares import LabelShare, Point, TrendLine

WIDTH, RIGHT = 300.0, 18.0  # pixels: of a panel, and of its right margin
LETTER = 6.8  # pixels: mean width of a letter in a row's name
MIN_NAMES, MAX_NAMES = 104.0, 150.0  # pixels: width of the names of rows
TOP, ROW, FOOT = 30.0, 21.0, 24.0  # pixels: heights
PLOT_HEIGHT = 190.0  # pixels: of a plot along a covariate
SCALE_ENDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # possible upper ends of a scale of shares
SIZE = 5.0  # pixels: half the width of a symbol

Names = Mapping[str, str]


class ShareScale(msgspec.Struct, frozen=True, kw_only=True):
    """The horizontal scale of a panel, from a share of 0 at `left` to `top` at the right margin."""

    top: float
    left: float

    def x(self, share: float) -> float:
        """The position of a share."""
        return self.left + min(share, self.top) / self.top * (WIDTH - RIGHT - self.left)


def scale_end(shares: Sequence[LabelShare]) -> float:
    """The upper end of the scale that the panels of all models use."""
    highest = max((share.high for share in shares), default=1.0)
    return next((end for end in SCALE_ENDS if highest <= end), 1.0)


def dots(
    title: str, rows: Sequence[str], series: Sequence[str], shares: Sequence[LabelShare], top: float, names: Names
) -> Figure:
    """Shares by group: a row for each group, with a symbol and an interval for each series."""
    longest = max((len(names.get(row, row)) for row in rows), default=0)
    scale = ShareScale(top=top, left=min(MAX_NAMES, max(MIN_NAMES, 14 + LETTER * longest)))
    bottom = TOP + len(rows) * ROW
    elements = [_title(title), *_grid(scale, bottom)]
    for index, row in enumerate(rows):
        y = TOP + index * ROW + ROW / 2
        of_row = {share.series: share for share in shares if share.row == row}
        elements.append(tag("text", _clipped(names.get(row, row), 20), class_="row-name", x=scale.left - 10, y=y + 4))
        if len(of_row) > 1:
            ends = [scale.x(share.share) for share in of_row.values()]
            elements.append(_horizontal("bridge", min(ends), max(ends), y))
        for number, name in enumerate(series):
            if share := of_row.get(name):
                shifted = y + (number - (len(series) - 1) / 2) * 3.2  # so that intervals do not hide each other
                elements.append(_horizontal(f"whisker s{number}", scale.x(share.low), scale.x(share.high), shifted))
                elements.append(_symbol(number, scale.x(share.share), shifted))
    label = _description(title, rows, series, shares, names)
    return Figure(inside=joined(elements), height=bottom + FOOT, width=WIDTH, label=label)


def along(
    title: str, covariate: str, series: Sequence[str], points: Sequence[Point], lines: Sequence[TrendLine], names: Names
) -> Figure:
    """A share along a covariate: a symbol for each bin, and the regression line."""
    low, high = min(point.x for point in points), max(point.x for point in points)
    scale = Axis(low=low, high=high if high > low else low + 1, margin=0.0)
    bottom, left = TOP + PLOT_HEIGHT, 40.0

    def x(value: float) -> float:
        return left + scale.at(value) / 100 * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return bottom - value * PLOT_HEIGHT

    elements = [_title(title)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        elements.append(_horizontal("grid", left, WIDTH - RIGHT, y(share)))
        elements.append(tag("text", percent(share), class_="side", x=left - 8, y=y(share) + 4))
    ticks = axis.ticks(scale.low, scale.high, 5)
    for value, text in zip(ticks, axis.tick_labels(ticks), strict=True):
        elements.append(tag("text", text, class_="below", x=x(value), y=bottom + 16))
    name = names.get(covariate, covariate)
    elements.append(tag("text", name, class_="below", x=(left + WIDTH - RIGHT) / 2, y=bottom + 33))
    max_items = max(point.items for point in points)
    for number, name in enumerate(series):
        for point in points:
            if point.series == name:
                size = SIZE * (0.45 + 0.55 * (point.items / max_items) ** 0.5)
                elements.append(_symbol(number, x(point.x), y(point.share), size))
        for line in lines:
            if line.series == name:
                ends = [min(1.0, max(0.0, line.intercept + line.slope * value)) for value in (low, high)]
                elements.append(
                    tag("line", class_=f"slope s{number}", x1=x(low), x2=x(high), y1=y(ends[0]), y2=y(ends[1]))
                )
    slopes = [f"{names.get(line.series, line.series)} {line.slope:+.2f}" for line in lines]
    label = f"{title}: slopes {listed(slopes) or 'unknown'}."
    return Figure(inside=joined(elements), height=bottom + FOOT + 16, width=WIDTH, label=label)


def legend(series: Sequence[str], names: Names) -> Figure:
    """The symbol and colour of each series."""
    elements, x = [], 8.0
    for number, name in enumerate(series):
        text = names.get(name, name)
        elements += [_symbol(number, x, 10), tag("text", text, class_="series", x=x + 10, y=14)]
        x += 30 + 7 * len(text)
    label = f"Legend: {listed([names.get(name, name) for name in series])}"
    return Figure(inside=joined(elements), height=20, width=x, label=label)


def combined(panels: Sequence[Figure], key: Figure | None, columns: int = 3) -> Figure:
    """Several small figures and their legend as one figure, for a file."""
    columns = min(columns, len(panels))
    height = max(panel.height for panel in panels) + 12
    top = (key.height + 12) if key else 0.0
    elements = [key.inside] if key else []
    for number, panel in enumerate(panels):
        x, y = number % columns * (WIDTH + 16), top + number // columns * height
        elements.append(tag("g", panel.inside, transform=f"translate({x:g} {y:g})"))
    return Figure(
        inside=joined(elements),
        height=top + -(-len(panels) // columns) * height,
        width=max(columns * (WIDTH + 16) - 16, key.width or 0 if key else 0),
        label=" ".join(panel.label for panel in panels),
    )


def _title(title: str) -> Markup:
    # A long name is clipped here; the tables and the description for screen readers have it in full.
    return tag("text", _clipped(title, 38), class_="title", x=0, y=14)


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _grid(scale: ShareScale, bottom: float) -> list[Markup]:
    elements = []
    for value in (0.0, scale.top / 2, scale.top):
        x = scale.x(value)
        elements.append(tag("path", class_="grid", d=f"M{short(x)} {short(TOP)}V{short(bottom)}"))
        digits = 0 if scale.top >= 0.1 and round(100 * value) == 100 * value else 1
        elements.append(tag("text", percent(value, digits=digits), class_="below", x=x, y=bottom + 16))
    return elements


def _horizontal(kind: str, start: float, end: float, y: float) -> Markup:
    return tag("path", class_=kind, d=f"M{short(start)} {short(y)}H{short(end)}")


def _symbol(number: int, x: float, y: float, size: float = SIZE) -> Markup:
    """The symbol of a series: disc, diamond, triangle or square, which can be distinguished without colour."""
    kind = f"dot s{number}"
    if number == 0:
        return tag("circle", class_=kind, cx=x, cy=y, r=0.9 * size)
    corners = {
        1: ((0, -1), (1, 0), (0, 1), (-1, 0)),
        2: ((0, -1), (1, 0.8), (-1, 0.8)),
        3: ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    }[number]
    points = [f"{short(x + right * size)} {short(y + down * size)}" for right, down in corners]
    return tag("path", class_=kind, d=f"M{'L'.join(points)}Z")


def _description(
    title: str, rows: Sequence[str], series: Sequence[str], shares: Sequence[LabelShare], names: Names
) -> str:
    percents = {(share.row, share.series): percent(share.share) for share in shares}
    texts = [
        f"{names.get(row, row)}: "
        + ", ".join(f"{names.get(name, name)} {percents[row, name]}" for name in series if (row, name) in percents)
        for row in rows
    ]
    return f"{title}. {'; '.join(texts)}."
