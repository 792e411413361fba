"""Pure: HTML and SVG. `tag` escapes every text that is not Markup, so unescaped text cannot get into a page."""

import html

from batchbench.core.text import sanitize

VOID = {"meta", "input", "br", "wbr", "col"}
EMPTY = {"line", "path", "rect", "circle"}  # SVG elements without children, closed as in XML


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Any value as markup: HTML characters are escaped, control and bidi characters are made visible."""
    return value if isinstance(value, Markup) else Markup(html.escape(sanitize(str(value))))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; `class_` and `aria_label` become `class` and `aria-label`, an attribute of None is left out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{name}{written}>")
    if name in EMPTY:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{''.join(map(escaped, children))}</{name}>")


def joined(parts: "list[Markup]", between: str = "") -> Markup:
    """Several pieces of markup as one."""
    return Markup(between.join(parts))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if isinstance(value, float):
        value = short(value)
    return f' {name}="{html.escape(sanitize(str(value)))}"'


def short(value: float) -> str:
    """A coordinate, rounded to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
