"""What a user sees: results on stdout; errors, messages and progress on stderr.

Progress is a bar or a live screen on a terminal, elsewhere a line every few seconds.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from batchbench.core import money
from batchbench.core.text import hide, sanitize, sanitize_json
from batchbench.errors import InterruptedRun, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from batchbench.app.requests import Report
    from batchbench.dispatch import Progress
    from batchbench.errors import BatchbenchError

FIRST, INTERVAL = 0.9, 5.0  # seconds until the first progress line, and between lines, where there is no terminal
LONGEST = 2000  # letters of an error message; a part that a provider wrote can be of any length
MARGIN = 4  # lines of the terminal that the table leaves free
WATCHDOG_LIMIT = 30  # checks without a tick, one per second, until a message
WATCHDOG_DEPTH = 6  # innermost calls in the message


def show(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{sanitize(hide(text))}\n")
    sys.stdout.flush()


def show_json(document: object) -> None:
    """Print a result as one JSON document."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    sys.stdout.write(f"{sanitize_json(hide(text))}\n")
    sys.stdout.flush()


def show_result(document: object, text: str, *, json: bool) -> None:
    """Print a result, either as a JSON document or as text."""
    if json:
        show_json(document)
    else:
        show(text)


def format_table(rows: list[list[str]]) -> str:
    """Left-aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def stderr(message: str) -> None:
    """Print a message on stderr."""
    try:
        sys.stderr.write(f"{sanitize(hide(message))}\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)  # the reader has closed the stream; the command continues


def abandon(stream: TextIO) -> None:
    """Redirect a stream to /dev/null after its reader has closed it, so that a later flush raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(errors: Sequence["BatchbenchError | None"]) -> int:
    """Print each different error in one line, also with --quiet; returns the exit code of the first error."""
    raised = [error for error in errors if error is not None]
    for message in dict.fromkeys(map(_one_line, raised)):
        stderr(f"batchbench: {message}")
    for note in dict.fromkeys(note for error in raised for note in getattr(error, "__notes__", [])):
        stderr(note)
    return raised[0].exit_code if raised else 0


def fail(error: "BatchbenchError", *, json: bool) -> int:
    """Print the error that ends the program; its exit code."""
    if json:
        show_json({"error": _one_line(error), "exit_code": error.exit_code})
    return complain([error])


def _one_line(error: "BatchbenchError") -> str:
    message = " ".join(str(error).split())
    return message if len(message) <= LONGEST else f"{message[:LONGEST]} …"


def ask_to_go_on(cost: str, options: str, details: str = "") -> None:
    """Ask whether this may be spent; without a terminal, raise UsageError with the options that allow it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{cost}: {options}")
    sys.stderr.write(f"{details}{cost[0].upper()}{cost[1:]}. Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InterruptedRun("nothing was asked")


class Terminal(msgspec.Struct, frozen=True):
    """Prints messages and progress on stderr, unless `quiet`; the `Voice` of the command line."""

    quiet: bool

    def note(self, message: str) -> None:
        """Print a message."""
        if not self.quiet:
            stderr(message)

    @contextmanager
    def progress(self, what: str, unit: str = "") -> "Iterator[Report]":
        """Show how far a stage is: a bar on a terminal, elsewhere a line every few seconds."""
        if self.quiet:
            yield lambda _done, _total: None
        else:
            with _bar(what, unit) if sys.stderr.isatty() else _lines(what, unit) as report:
                yield report

    def monitor(self, names: Sequence[str], budget: int | None) -> "Screen":
        """Show how far several runs are: one live screen on a terminal, elsewhere a line every few seconds."""
        return Screen(self, names, budget)


@contextmanager
def _bar(what: str, unit: str) -> "Iterator[Report]":
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
def _lines(what: str, unit: str) -> "Iterator[Report]":
    line, printed = f"{what} ...", ""
    ended = threading.Event()

    def report(done: int, total: int) -> None:
        nonlocal line
        line = f"{what}: {done:,} of {total:,} {unit}"

    def print_lines() -> None:
        nonlocal printed
        pause = FIRST
        while not ended.wait(pause):
            pause = INTERVAL
            if line != printed:
                stderr(line)
                printed = line

    # A thread, because the first line must not wait for the first piece of work.
    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield report
    finally:
        ended.set()
        printer.join()


class Screen:
    """How far every run is; the `Monitor` of the command line. A run's number is its place in `names`."""

    def __init__(self, terminal: Terminal, names: Sequence[str], budget: int | None) -> None:
        self._names = [sanitize(name) for name in names]
        self._progress: list[Progress | None] = [None] * len(names)
        self._ended = [False] * len(names)
        self._budget = budget
        self._note = terminal.note
        self._live = sys.stderr.isatty() and not terminal.quiet
        self._began = time.monotonic()
        self._at_first: dict[int, int] = {}  # requests of a run that were done at the start: not counted in the speed
        self._next = self._began + FIRST
        self._last = ""
        self._stack = ExitStack()
        self._height = 24

    def __enter__(self) -> "Screen":
        self._watchdog = self._stack.enter_context(Watchdog(self._note))
        if self._live:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._height = console.height
            # Results go to stdout at the end; other messages on stderr are printed above the screen.
            live = Live(
                get_renderable=self._picture,
                console=console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
            )
            self._stack.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, number: int, progress: "Progress") -> None:
        """Remember how far a run is."""
        self._progress[number] = progress
        self._at_first.setdefault(number, _done(progress))

    def end(self, number: int) -> None:
        """Remember that a run has ended."""
        self._ended[number] = True

    def tick(self) -> None:
        """Print a line where there is no terminal, unless nothing has changed."""
        self._watchdog.tick()
        now = time.monotonic()
        if self._live or now < self._next:
            return
        self._next = now + INTERVAL
        line = self._line()
        if line != self._last:
            self._note(line)
            self._last = line

    def _line(self) -> str:
        known = [progress for progress in self._progress if progress is not None]
        if not known:
            return "starting"
        states: dict[str, int] = {}
        for progress in known:
            for state, count in progress.batches.items():
                states[state] = states.get(state, 0) + count
        batches = ", ".join(f"{count} {state}" for state, count in states.items())
        name = self._names[0] if len(self._names) == 1 else f"{sum(self._ended)} of {len(self._names)} runs done"
        rows, done, missing = (sum(getattr(one, field) for one in known) for field in ("rows", "done", "missing"))
        return (
            f"{name}: {done:,} of {rows:,} done, {missing:,} missing{self._waiting()}; {batches or 'no batch yet'}; "
            f"{self._money(known)}{self._time_left(known)}"
        )

    def _waiting(self) -> str:
        """What the runs wait for, if all of them wait."""
        left = [one for one, ended in zip(self._progress, self._ended, strict=True) if one is not None and not ended]
        return f"; {left[0].waiting}" if left and all(one.waiting for one in left) else ""

    def _money(self, known: "Sequence[Progress]") -> str:
        spent, reserved = sum(one.spent for one in known), sum(one.reserved for one in known)
        limit = "" if self._budget is None else f" of {money.dollars(self._budget)}"
        if not any(one.priced for one in known):
            return "not priced"
        return f"{money.dollars(spent)} spent, {money.dollars(reserved)} reserved{limit}"

    def _time_left(self, known: "Sequence[Progress]") -> str:
        done = sum(map(_done, known))
        left = sum(one.rows - one.missing for one in known) - done
        return time_left(done - sum(self._at_first.values()), left, time.monotonic() - self._began)

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 1), show_header=False)
        order = sorted(range(len(self._names)), key=lambda number: (self._ended[number], number))
        shown = max(1, self._height - MARGIN)
        for number in order[:shown]:
            progress, name = self._progress[number], Text(self._names[number])
            if progress is None:
                table.add_row(name, "", "waiting", "", "")
                continue
            bar = ProgressBar(total=max(1, progress.rows), completed=_done(progress), width=24)
            batches = ", ".join(f"{count} {state}" for state, count in progress.batches.items())
            counts = f"{progress.done:,} of {progress.rows:,}"
            state = Text("done" if self._ended[number] else batches)
            table.add_row(name, bar, counts, state, money.shown(progress.spent, priced=progress.priced))
        if hidden := order[shown:]:
            table.add_row(f"and {len(hidden)} more, {sum(self._ended[number] for number in hidden)} of them done")
        return Group(table, Text(self._line()))


def _done(progress: "Progress") -> int:
    return progress.done + progress.done_at_provider


def time_left(done: int, left: int, seconds: float) -> str:
    """About how long the rest takes at the speed so far; empty as long as nothing is done."""
    if done <= 0 or left <= 0:
        return ""
    rest = round(left * seconds / done)
    hours, minutes = divmod(rest // 60, 60)
    return f"; about {hours} h {minutes} min left" if hours else f"; about {minutes} min {rest % 60} s left"


class Watchdog:
    """Reports when the thread that creates it is blocked. That thread has to call `tick` several times a second."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._watched = threading.get_ident()
        # Checks are counted, not seconds: a machine in standby makes no checks.
        self._checks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def tick(self) -> None:
        """The watched thread is alive."""
        self._checks = 0

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self._checks += 1
            if self._checks % WATCHDOG_LIMIT == 0:
                self._note(f"blocked for {self._checks} s, in {self._stack()}: if this continues, report it")

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched)
        calls = traceback.extract_stack(frame)[-WATCHDOG_DEPTH:] if frame else []
        return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in reversed(calls))
