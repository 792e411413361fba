"""What all commands share: common options, messages, progress, JSON."""

import argparse
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from batchbench.core.keys import hide
from batchbench.core.text import sanitize, sanitize_json

if TYPE_CHECKING:
    from batchbench.core.store import Store
    from batchbench.errors import BatchbenchError

LONGEST = 2000  # letters of an error; some of it may be a provider's, which can be of any length
Subparsers = Any  # argparse does not name the type of what add_subparsers returns


def command(
    commands: Subparsers, name: str, run: Callable[[argparse.Namespace], int], *, verb: bool = False, **texts: Any
) -> argparse.ArgumentParser:
    """A new command, or a verb of one, with the options every command has."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts
    )
    parser.set_defaults(run=run)
    # A verb leaves unset what was said before it, so that `data --json list` is `data list --json`.
    absent: dict[str, Any] = {"default": argparse.SUPPRESS} if verb else {}
    parser.add_argument("--home", type=Path, metavar="DIR", help="where manifests/ and cache/ live", **absent)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else there", **absent)
    parser.add_argument("--quiet", action="store_true", help="no progress and no messages but errors", **absent)
    return parser


def store(args: argparse.Namespace) -> "Store":
    """The folders this command works in."""
    from batchbench.core.store import Store

    return Store(args.home or Path(os.environ.get("BATCHBENCH_HOME") or "."))


def note(args: argparse.Namespace) -> Callable[[str], None]:
    """Where messages about what is going on are written."""
    return (lambda _: None) if args.quiet else (lambda message: _stderr(message))


def show(text: str) -> None:
    """Print a result."""
    _stdout(sanitize(hide(text)))


def show_json(document: object) -> None:
    """Print a result as one JSON document."""
    import msgspec

    _stdout(sanitize_json(hide(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())))


def table(rows: list[list[str]]) -> str:
    """Left-aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def complain(error: "BatchbenchError") -> str:
    """Say what went wrong, in one line; quietness does not extend to errors."""
    message = " ".join(str(error).split())
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
    _stderr(f"batchbench: {message}")
    return message


def fail(error: "BatchbenchError", *, json: bool) -> int:
    """Say what went wrong, in one line, and return the exit code."""
    message = complain(error)
    if json:
        show_json({"error": message, "exit_code": error.exit_code})
    return error.exit_code


SOON, OFTEN = 0.9, 5.0  # seconds until the first line about long work, and between lines, where there is no terminal


@contextmanager
def progress(args: argparse.Namespace, what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far a stage is: a bar on a terminal, elsewhere a line now and then."""
    if args.quiet:
        yield lambda _done, _total: None
    else:
        with _bar(what, unit) if sys.stderr.isatty() else _lines(what, unit) as report:
            yield report


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counted = (MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()) if unit else (TimeElapsedColumn(),)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *counted)
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _lines(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    line, said = f"{what} ...", ""
    over = threading.Event()

    def report(done: int, total: int) -> None:
        nonlocal line
        line = f"{what}: {done:,} of {total:,} {unit}"

    def speak() -> None:
        nonlocal said
        pause = SOON
        while not over.wait(pause):
            pause = OFTEN
            if line != said:
                _stderr(line)
                said = line

    # A thread, because the first word must not wait for the first piece of work to be done.
    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield report
    finally:
        over.set()
        speaker.join()


def _stdout(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _stderr(message: str) -> None:
    try:
        sys.stderr.write(f"{sanitize(hide(message))}\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)  # nobody listens any more, which is no reason to stop


def open_streams() -> None:
    """Make sure that there are three streams, and that they take any text.

    A file that got the number of a closed one, such as a journal, would be what others write their messages to.
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
    """The reader of a stream has gone; a second attempt to flush it must not complain, either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
