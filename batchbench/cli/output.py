"""Results on stdout: text, tables, JSON."""

import sys

from batchbench.core.keys import hide
from batchbench.core.text import sanitize, sanitize_json


def show(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{sanitize(hide(text))}\n")
    sys.stdout.flush()


def show_json(document: object) -> None:
    """Print a result as one JSON document."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    sys.stdout.write(f"{sanitize_json(hide(text))}\n")
    sys.stdout.flush()


def table(rows: list[list[str]]) -> str:
    """Left-aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
