"""Colours and CSS of a report: of the page, light and dark, and of a figure in a separate file."""

import base64
import hashlib
import re
from importlib import resources

# Blue to vermilion, after Okabe and Ito: distinguishable with any kind of colour vision, and in grey.
COLOURS = {  # light, dark
    "paper": ("#ffffff", "#14171a"),
    "wash": ("#f5f7f9", "#1d2126"),
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#57606a", "#a6aeb8"),
    "faint": ("#d3d9df", "#3a4149"),
    "link": ("#0a58a5", "#7cc0ff"),
    "A": ("#0072b2", "#2f93d1"),
    "B": ("#8ecbf0", "#8ecbf0"),
    "C": ("#f0b429", "#f0b429"),
    "D": ("#b3470a", "#e0702f"),
    "s0": ("#0072b2", "#5db3ec"),
    "s1": ("#c2500a", "#f19a5b"),
    "s2": ("#00795a", "#3fcf9f"),
    "s3": ("#7a5195", "#c79be0"),
    "p1": ("#e3f0f9", "#1d2b37"),
    "p2": ("#bfdcf0", "#1f3f58"),
    "p3": ("#8fc2e6", "#22577f"),
    "p4": ("#58a5da", "#2a6c9f"),
    "n1": ("#fbeadf", "#35271f"),
    "n2": ("#f7d0b6", "#56351f"),
    "n3": ("#efac7e", "#7a4620"),
    "n4": ("#e4894b", "#935222"),
    "alert": ("#fff4d6", "#3a3216"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}


def page() -> str:
    """The CSS of a page."""
    light, dark = (":root{" + "".join(f"--{name}:{value};" for name, value in x.items()) + "}" for x in (LIGHT, DARK))
    dark_screen = f"@media screen and (prefers-color-scheme: dark){{{dark}}}"
    return "\n".join([light, dark_screen, asset("figure.css"), asset("page.css")])


def standalone_figure() -> str:
    """The CSS of a figure in a separate file, in the light colours."""
    return re.sub(r"var\(--(\w+)\)", lambda match: LIGHT[match[1]], asset("figure.css"))


def asset(name: str) -> str:
    """A text file of this package."""
    return resources.files("batchbench.report").joinpath(name).read_text("utf-8")


def hashed(text: str) -> str:
    """The source expression that allows exactly this inline text in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
