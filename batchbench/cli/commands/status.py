"""`batchbench status`"""

import argparse
import time
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import format_table, show, show_json
from batchbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from batchbench.app.status import RunStatus
    from batchbench.runs.view import BrokenRun

DESCRIPTION = """\
How far every run is, read from its files. Nothing is locked and no provider is called, so it works while
`batchbench run` is running. A damaged run is shown as one line that begins with BROKEN, with exit code 65.
"""
INTERVAL = 2.0  # seconds, with --watch


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "status", run, help="how far every run is", description=DESCRIPTION)
    parser.add_argument("--watch", action="store_true", help="show it again every two seconds, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Show a line for each run."""
    from batchbench.app.status import status
    from batchbench.runs.view import BrokenRun

    if args.watch and args.json:
        raise UsageError("--json is one document, and --watch never ends: use one of them")
    store = options.store(args)
    while True:
        found = status(store)
        if args.json:
            show_json(found)
        elif not found:
            show("no runs yet: start one with `batchbench run PROBE --model M`")
        else:
            show(_table(found))
        if not args.watch:
            return DataError.exit_code if any(isinstance(entry, BrokenRun) for entry in found) else 0
        time.sleep(INTERVAL)


def _table(found: "list[RunStatus | BrokenRun]") -> str:
    from batchbench.app.status import RunStatus

    sound = [entry for entry in found if isinstance(entry, RunStatus)]
    names = ["ASKED", "ANSWERED", "REFUSED", "FAILED", "MISSING", "LEFT"]
    rows = [["RUN", "MODEL", *names, "BATCHES", "SPENT", "RESERVED", "BUDGET", ""]]
    for entry in sound:
        batches = " ".join(f"{count} {state}" for state, count in entry.batches.items())
        notes = ["EMULATED"] * entry.emulated + ([f"live: {entry.live}"] if entry.live else [])
        notes += [f"{entry.empty:,} empty"] if entry.empty else []
        rows.append(
            [
                entry.manifest,
                entry.model,
                *(f"{count:,}" for count in (entry.asked, entry.answered, entry.refused, entry.failed, entry.missing)),
                f"{entry.todo + entry.in_flight:,}",
                batches or "none",
                *(_dollars(usd) if entry.priced else "not priced" for usd in (entry.spent_usd, entry.reserved_usd)),
                _dollars(entry.budget_usd),
                " ".join(notes),
            ]
        )
    lines = [format_table(rows)] if sound else []
    lines += [f"UNRESOLVED {entry.run} {text}" for entry in sound for text in entry.unresolved]
    lines += [f"BROKEN {entry.run}: {entry.error}" for entry in found if not isinstance(entry, RunStatus)]
    return "\n".join(lines)


def _dollars(amount: float | None) -> str:
    from batchbench.core.money import MILLION, dollars

    return "none" if amount is None else dollars(round(amount * MILLION))
