"""Pure: a figure as SVG, inside a page or standing alone, and the pieces that tables are made of."""

import re
from collections.abc import Sequence

from batchbench.report import style
from batchbench.report.forest import Figure
from batchbench.report.formats import NOTHING
from batchbench.report.markup import Markup, escaped, joined, tag

PAPER = 720.0  # pixels: the width of a figure that would fill any, when it stands alone


def inline(figure: Figure) -> Markup:
    """A figure inside a page; what it shows reads aloud as one sentence."""
    size: dict[str, object] = {"class": "fluid", "height": figure.height, "width": "100%"}
    if figure.width is not None:
        size = {"viewBox": f"0 0 {figure.width:g} {figure.height:g}", "width": figure.width}
    return tag("svg", figure.inside, role="img", aria_label=figure.label, **size)


def alone(figure: Figure, title: str, stamps: Sequence[str]) -> str:
    """A figure as a file of its own, with its title, and with its stamps, which may not get lost."""
    width = figure.width or PAPER
    height = figure.height + 28 + (20 if stamps else 0)
    parts = [
        tag("title", title),
        tag("desc", figure.label),
        tag("style", Markup(style.alone())),
        tag("rect", width="100%", height="100%", fill=style.LIGHT["paper"]),
        tag("text", title, class_="title", x=0, y=15),
        tag("g", _in_pixels(figure.inside, width), transform="translate(0 28)"),
    ]
    if stamps:
        parts.append(tag("text", " · ".join(stamps), class_="stamp", x=0, y=height - 6))
    box = {"viewBox": f"-8 -4 {width + 16:g} {height + 8:g}", "width": width + 16, "height": height + 8}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", **box)


def _in_pixels(inside: Markup, width: float) -> Markup:
    """Per cent of the width as pixels: not every program that reads SVG knows per cent."""
    return Markup(re.sub(r'="([\d.]+)%"', lambda match: f'="{float(match[1]) * width / 100:.1f}"', inside))


def cell(text: object, value: float | None = None, **attributes: object) -> Markup:
    """A number in a table; `value` is what sorting goes by, where that is not the text itself."""
    sort = "" if text == NOTHING else None if value is None else f"{value:.6g}"
    return tag("td", text, data_v=sort, class_=attributes.pop("class_", "n"), **attributes)


def head(*names: object, words: int = 1) -> Markup:
    """The heading of a table of numbers, the first columns of which hold words."""
    cells = [tag("th", name, scope="col", class_="n" if place >= words else None) for place, name in enumerate(names)]
    return tag("thead", tag("tr", *cells))


def table(label: str, caption: object, *parts: object, **attributes: object) -> Markup:
    """A table with a name and a sentence before it; it may be wider than the screen, and the keyboard moves it too."""
    inside = tag("table", *parts, aria_label=label, **attributes)
    moving = tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=f"{label}, scrollable")
    return joined([tag("p", caption, class_="caption"), moving]) if caption else moving


def breakable(name: str) -> Markup:
    """A long name with places to break it."""
    return joined([escaped(part) for part in re.split(r"(?<=[_:/@\-])", name)], "<wbr>")


def stamped(stamps: Sequence[str]) -> Markup:
    """Stamps behind a name."""
    return joined([tag("span", stamp.partition(":")[0], class_="stamp", title=stamp) for stamp in stamps])
