"""What all commands share: common options, results on stdout, errors on stderr."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from batchbench.core.keys import hide
from batchbench.core.text import sanitize, sanitize_json
from batchbench.errors import UsageError

if TYPE_CHECKING:
    from batchbench.core.store import Store
    from batchbench.errors import BatchbenchError

LONGEST = 2000  # letters of an error message; a part that a provider wrote can be of any length
Subparsers = Any  # argparse does not name the type of what add_subparsers returns


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, with one line."""

    details: Callable[[], str] | None = None  # text at the end of --help that takes time to compute

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def format_help(self) -> str:
        """The help text."""
        if self.details:
            self.epilog = self.details()
        return super().format_help()


def command(
    commands: Subparsers, name: str, run: Callable[[argparse.Namespace], int], *, verb: bool = False, **texts: Any
) -> Parser:
    """Add a command, or a verb of one, with the options that every command has."""
    parser: Parser = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.set_defaults(run=run)
    # A verb has no defaults of its own, so that `data --json list` is `data list --json`.
    absent: dict[str, Any] = {"default": argparse.SUPPRESS} if verb else {}
    parser.add_argument("--home", type=Path, metavar="DIR", help="the folder of manifests/ and cache/", **absent)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout", **absent)
    parser.add_argument("--quiet", action="store_true", help="print no progress and no messages, only errors", **absent)
    return parser


def store(args: argparse.Namespace) -> "Store":
    """The folders this command works in."""
    from batchbench.core.store import Store

    return Store(args.home or Path(os.environ.get("BATCHBENCH_HOME") or "."))


# -- results -----------------------------------------------------------------------------------------------


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


# -- errors ------------------------------------------------------------------------------------------------


def complain(errors: Sequence["BatchbenchError | None"]) -> int:
    """Print each error in one line, equal ones once; the exit code is that of the first. --quiet does not hide them."""
    raised = [error for error in errors if error is not None]
    for message in dict.fromkeys(map(_one_line, raised)):
        stderr(f"batchbench: {message}")
    return raised[0].exit_code if raised else 0


def fail(error: "BatchbenchError", *, json: bool) -> int:
    """Print the error that ends the program; its exit code."""
    if json:
        show_json({"error": _one_line(error), "exit_code": error.exit_code})
    return complain([error])


def _one_line(error: "BatchbenchError") -> str:
    message = " ".join(str(error).split())
    return message if len(message) <= LONGEST else f"{message[:LONGEST]} …"


# -- streams -----------------------------------------------------------------------------------------------


def open_streams() -> None:
    """Make sure that stdin, stdout and stderr are open and take any text.

    A file that gets the number of a closed stream, such as a journal, would receive what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin, sys.stdout, sys.stderr = (
        sys.stdin or os.fdopen(0, closefd=False),
        sys.stdout or os.fdopen(1, "w", closefd=False),
        sys.stderr or os.fdopen(2, "w", closefd=False),
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")


def abandon(stream: TextIO) -> None:
    """Point a stream whose reader has gone to /dev/null, so that a later flush raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def stderr(message: str) -> None:
    """Print a message on stderr."""
    try:
        sys.stderr.write(f"{sanitize(hide(message))}\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)  # the reader has gone; the command continues
