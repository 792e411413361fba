"""What people see while models are being asked: one live screen for all runs, or a line now and then."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from batchbench.cli import output
from batchbench.core import money
from batchbench.core.text import sanitize
from batchbench.dispatch import Standing

if TYPE_CHECKING:
    from rich.console import RenderableType

MARGIN = 4  # lines of a terminal that are left to other things


class Screen:
    """How far every run is. Use it as a context; call `show` with news and `tick` now and then."""

    def __init__(self, args: argparse.Namespace, names: Sequence[str], budget: int | None) -> None:
        self._names = [sanitize(name) for name in names]
        self._standings: list[Standing | None] = [None] * len(names)
        self._ended = [False] * len(names)
        self._budget = budget
        self._say: Callable[[str], None] = output.note(args)
        self._live = sys.stderr.isatty() and not args.quiet
        self._began = time.monotonic()
        self._at_first: dict[int, int] = {}  # what was done when we first looked: no measure of the pace
        self._next = self._began + output.SOON
        self._last = ""
        self._stack = ExitStack()
        self._height = 24

    def __enter__(self) -> "Screen":
        if self._live:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._height = console.height
            # Results go to stdout when all is over; what other parts say on stderr is printed above the screen.
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

    def show(self, place: int, standing: Standing) -> None:
        """Take note of how far a run is."""
        self._standings[place] = standing
        self._at_first.setdefault(place, _done(standing))

    def end(self, place: int) -> None:
        """A run has come to its end."""
        self._ended[place] = True

    def tick(self) -> None:
        """Say something where there is no terminal, unless nothing has changed."""
        now = time.monotonic()
        if self._live or now < self._next:
            return
        self._next = now + output.OFTEN
        line = self.line()
        if line != self._last:
            self._say(line)
            self._last = line

    def line(self) -> str:
        """All runs in one line."""
        known = [standing for standing in self._standings if standing is not None]
        if not known:
            return "starting"
        states: dict[str, int] = {}
        for standing in known:
            for state, count in standing.batches.items():
                states[state] = states.get(state, 0) + count
        batches = ", ".join(f"{count} {state}" for state, count in states.items())
        who = self._names[0] if len(self._names) == 1 else f"{sum(self._ended)} of {len(self._names)} runs done"
        rows, done, missing = (
            sum(getattr(standing, name) for standing in known) for name in ("rows", "done", "missing")
        )
        return (
            f"{who}: {done:,} of {rows:,} done, {missing:,} missing{self._waiting()}; {batches or 'no batch yet'}; "
            f"{self._money(known)}{self._eta(known)}"
        )

    def _waiting(self) -> str:
        """For what, if that is all that is being done."""
        left = [one for one, ended in zip(self._standings, self._ended, strict=True) if one is not None and not ended]
        return f"; {left[0].waiting}" if left and all(one.waiting for one in left) else ""

    def _money(self, known: Sequence[Standing]) -> str:
        spent, reserved = sum(one.spent for one in known), sum(one.reserved for one in known)
        limit = "" if self._budget is None else f" of {money.dollars(self._budget)}"
        return f"{money.dollars(spent)} spent, {money.dollars(reserved)} reserved{limit}"

    def _eta(self, known: Sequence[Standing]) -> str:
        done = sum(map(_done, known))
        left = sum(standing.rows - standing.missing for standing in known) - done
        return eta(done - sum(self._at_first.values()), left, time.monotonic() - self._began)

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 1), show_header=False)
        order = sorted(range(len(self._names)), key=lambda place: (self._ended[place], place))
        most = max(1, self._height - MARGIN)
        for place in order[:most]:
            standing, name = self._standings[place], Text(self._names[place])
            if standing is None:
                table.add_row(name, "", "waiting", "", "")
                continue
            bar = ProgressBar(total=max(1, standing.rows), completed=_done(standing), width=24)
            batches = (
                "done" if self._ended[place] else ", ".join(f"{n} {state}" for state, n in standing.batches.items())
            )
            counts = f"{standing.done:,} of {standing.rows:,}"
            table.add_row(name, bar, counts, Text(batches), money.dollars(standing.spent))
        hidden = order[most:]
        if hidden:
            table.add_row(f"and {len(hidden)} more, {sum(self._ended[place] for place in hidden)} of them done")
        return Group(table, Text(self.line()))


def _done(standing: Standing) -> int:
    return standing.done + standing.progress


def eta(done: int, left: int, seconds: float) -> str:
    """About how long the rest takes at the pace so far; nothing until there is a pace."""
    if done <= 0 or left <= 0:
        return ""
    rest = round(left * seconds / done)
    hours, minutes = divmod(rest // 60, 60)
    return f"; about {hours} h {minutes} min left" if hours else f"; about {minutes} min {rest % 60} s left"
