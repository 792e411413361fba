"""Pure: HTML and SVG as text in which whatever is not markup is escaped, because there is no other way in."""

import html

from batchbench.core.text import sanitize

VOID = {"meta", "input", "br", "wbr", "col"}
EMPTY = {"line", "path", "rect", "circle"}  # of SVG, which closes them as XML does


class Markup(str):
    """Text that may stand in a page as it is."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Any value as text: what could be taken for markup, or hide or turn round its neighbours, is made visible."""
    return value if isinstance(value, Markup) else Markup(html.escape(sanitize(str(value))))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; `class_` and `aria_label` become `class` and `aria-label`, an attribute of None is left out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{name}{given}>")
    if name in EMPTY:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{''.join(map(escaped, children))}</{name}>")


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
    """A place in a drawing; a tenth of a pixel is finer than anybody can see."""
    return f"{value:.1f}".removesuffix(".0")
