"""Pure: a figure as SVG, inside a page or as a file, and the parts of HTML tables."""

import re
from collections.abc import Sequence

from batchbench.report import style
from batchbench.report.forest import Figure
from batchbench.report.formats import NOTHING
from batchbench.report.markup import Markup, escaped, joined, tag

FILE_WIDTH = 720.0  # pixels: the width of the file if a figure does not set its width


def inline(figure: Figure) -> Markup:
    """A figure inside a page, with its description for screen readers."""
    size: dict[str, object] = {"class": "fluid", "height": figure.height, "width": "100%"}
    if figure.width is not None:
        size = {"viewBox": f"0 0 {figure.width:g} {figure.height:g}", "width": figure.width}
    return tag("svg", figure.inside, role="img", aria_label=figure.label, **size)


def standalone(figure: Figure, title: str, stamps: Sequence[str]) -> str:
    """A figure as an SVG file, with its title and its stamps."""
    width = figure.width or FILE_WIDTH
    height = figure.height + 28 + (20 if stamps else 0)
    parts = [
        tag("title", title),
        tag("desc", figure.label),
        tag("style", Markup(style.standalone_figure())),
        tag("rect", width="100%", height="100%", fill=style.LIGHT["paper"]),
        tag("text", title, class_="title", x=0, y=15),
        tag("g", _in_pixels(figure.inside, width), transform="translate(0 28)"),
    ]
    if stamps:
        parts.append(tag("text", " · ".join(stamps), class_="stamp", x=0, y=height - 6))
    box = {"viewBox": f"-8 -4 {width + 16:g} {height + 8:g}", "width": width + 16, "height": height + 8}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", **box)


def _in_pixels(inside: Markup, width: float) -> Markup:
    """Replace per cent by pixels, because some programs that read SVG do not support per cent."""
    return Markup(re.sub(r'="([\d.]+)%"', lambda match: f'="{float(match[1]) * width / 100:.1f}"', inside))


def cell(text: object, value: float | None = None, **attributes: object) -> Markup:
    """A table cell with a number; `value` is the key for sorting, if it is not the text itself."""
    sort = "" if text == NOTHING else None if value is None else f"{value:.6g}"
    return tag("td", text, data_v=sort, class_=attributes.pop("class_", "n"), **attributes)


def head(*names: object, text_columns: int = 1) -> Markup:
    """The heading of a table; the columns after the first `text_columns` hold numbers."""
    cells = [
        tag("th", name, scope="col", class_="n" if number >= text_columns else None)
        for number, name in enumerate(names)
    ]
    return tag("thead", tag("tr", *cells))


def table_row(name: str, *cells: Markup) -> Markup:
    """A row of a table: its name, and its other cells."""
    return tag("tr", tag("th", breakable(name), scope="row"), *cells)


def table(label: str, caption: object, *parts: object, **attributes: object) -> Markup:
    """A table with its accessible name and a caption before it; a wide table can be scrolled, also by keyboard."""
    inside = tag("table", *parts, aria_label=label, **attributes)
    scrollable = tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=f"{label}, scrollable")
    return joined([tag("p", caption, class_="caption"), scrollable]) if caption else scrollable


def breakable(name: str) -> Markup:
    """A long name with line-break opportunities."""
    return joined([escaped(part) for part in re.split(r"(?<=[_:/@\-])", name)], "<wbr>")


def stamped(stamps: Sequence[str]) -> Markup:
    """Stamps, to be shown after a name."""
    return joined([tag("span", stamp.partition(":")[0], class_="stamp", title=stamp) for stamp in stamps])
