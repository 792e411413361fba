"""`batchbench explain CUSTOM_ID`"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import show_result

if TYPE_CHECKING:
    from batchbench.app.explain import Explanation

DESCRIPTION = """\
Everything about one request: its prompt, the batch that contains it, every attempt, the provider's own line, its cost.
A custom id is what requests carry, such as 7c7ed463f1-42-0: nonce, row, repetition.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "explain", run, help="all about one request", description=DESCRIPTION)
    parser.add_argument("custom_id", metavar="CUSTOM_ID")


def run(args: argparse.Namespace) -> int:
    from batchbench.app.explain import explain

    found = explain(args.custom_id, options.store(args))
    show_result(found, "\n".join(_lines(found)), json=args.json)
    return 0


def _lines(found: "Explanation") -> Iterator[str]:
    """A block for each field: its name in front, long texts indented, fields without a value left out."""
    import msgspec

    for name, value in msgspec.structs.asdict(found).items():
        if value is msgspec.UNSET:
            continue
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            texts = [f"{key}: {one}" for key, one in value.items() if one is not None]
        lines = [line for text in texts for line in _indented(str(text))] or ["none"]
        yield f"{name:9} {lines[0]}"
        yield from (f"{'':9} {line}" for line in lines[1:])


def _indented(text: str) -> list[str]:
    """The lines of a text; JSON is indented."""
    import msgspec

    try:
        return msgspec.json.format(text, indent=2).splitlines() if text.startswith("{") else text.splitlines()
    except (ValueError, RecursionError):
        return text.splitlines()
