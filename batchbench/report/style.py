"""Colours and CSS of a report: of the page, light and dark, and of a figure in a file of its own."""

import base64
import hashlib
import re
from importlib import resources

# Blue to vermilion, after Okabe and Ito: distinguishable with any kind of colour vision, and in grey.
LIGHT = {
    "paper": "#ffffff",
    "wash": "#f5f7f9",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "faint": "#d3d9df",
    "link": "#0a58a5",
    "A": "#0072b2",
    "B": "#8ecbf0",
    "C": "#f0b429",
    "D": "#b3470a",
    "s0": "#0072b2",
    "s1": "#c2500a",
    "s2": "#00795a",
    "s3": "#7a5195",
    "p1": "#e3f0f9",
    "p2": "#bfdcf0",
    "p3": "#8fc2e6",
    "p4": "#58a5da",
    "n1": "#fbeadf",
    "n2": "#f7d0b6",
    "n3": "#efac7e",
    "n4": "#e4894b",
    "alert": "#fff4d6",
}
DARK = {
    "paper": "#14171a",
    "wash": "#1d2126",
    "ink": "#e8eaed",
    "muted": "#a6aeb8",
    "faint": "#3a4149",
    "link": "#7cc0ff",
    "A": "#2f93d1",
    "B": "#8ecbf0",
    "C": "#f0b429",
    "D": "#e0702f",
    "s0": "#5db3ec",
    "s1": "#f19a5b",
    "s2": "#3fcf9f",
    "s3": "#c79be0",
    "p1": "#1d2b37",
    "p2": "#1f3f58",
    "p3": "#22577f",
    "p4": "#2a6c9f",
    "n1": "#35271f",
    "n2": "#56351f",
    "n3": "#7a4620",
    "n4": "#935222",
    "alert": "#3a3216",
}


def page() -> str:
    """The CSS of a page."""
    light, dark = (":root{" + "".join(f"--{name}:{value};" for name, value in x.items()) + "}" for x in (LIGHT, DARK))
    dark_screen = f"@media screen and (prefers-color-scheme: dark){{{dark}}}"
    return "\n".join([light, dark_screen, asset("figure.css"), asset("page.css")])


def standalone_figure() -> str:
    """The CSS of a figure in a file of its own, in the light colours."""
    return re.sub(r"var\(--(\w+)\)", lambda match: LIGHT[match[1]], asset("figure.css"))


def asset(name: str) -> str:
    """A text file of this package."""
    return resources.files("batchbench.report").joinpath(name).read_text("utf-8")


def hashed(text: str) -> str:
    """The source expression that allows exactly this inline text in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
