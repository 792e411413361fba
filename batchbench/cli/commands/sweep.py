"""`batchbench sweep [FILE.toml]`"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.commands import estimate
from batchbench.cli.terminal import Terminal, ask_to_go_on, complain, format_table, show, show_json, show_result

if TYPE_CHECKING:
    from batchbench.analyze.analysis import Analysis
    from batchbench.app.sweep import PreparedSweep, SweepResult

DESCRIPTION = """\
The main job in one command: compile probes, ask models, analyze, and write one report. FILE.toml names probes, models,
parameters and one budget for all of them. Without a file, every probe is run with three simulated models on this
machine, which needs no key and takes a few minutes.

  batchbench sweep                                 every probe, simulated models
  batchbench sweep --example > sweep.toml          a file to start from
  batchbench sweep sweep.toml                      shows what it would cost, and asks before it begins
  batchbench sweep sweep.toml --yes --detach       submits and ends; the same command later collects

The same command again resumes, on this machine or on another with a copy of the folder: answers are kept, submitted
batches are looked up, and only what is missing is asked.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(
        commands, "sweep", run, help="the main job: probes x models, from nothing to a report", description=DESCRIPTION
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="probes and models; see --example")
    parser.add_argument("--example", action="store_true", help="print a commented sweep.toml and end")
    parser.add_argument("--yes", action="store_true", help="do not ask before spending money")
    options.add_purchase(parser)
    parser.add_argument("-o", type=Path, metavar="FILE", dest="report", help="the file of the report (report.html)")


def run(args: argparse.Namespace) -> int:
    """Compile, estimate, ask, analyze, report."""
    from batchbench.app.requests import Purchase
    from batchbench.app.sweep import carry_out, prepare
    from batchbench.app.sweep_file import EXAMPLE

    if args.example:
        show_result({"example": EXAMPLE}, EXAMPLE.rstrip(), json=args.json)
        return 0
    store, terminal = options.store(args), Terminal(quiet=args.quiet)
    sweep = prepare(args.file, options.struct(Purchase, args), store, terminal, args.report)
    _confirm(sweep, terminal, yes=args.yes)
    done = carry_out(sweep, store, terminal)
    if args.json:
        show_json(_document(sweep, done))
    elif not args.quiet:
        show(_table(done))
        if done.report:
            show(f"\nreport: {done.report}")
    return complain([error for _, error in done.finished])


def _confirm(sweep: "PreparedSweep", terminal: Terminal, *, yes: bool) -> None:
    """Show what the sweep would cost; ask before it costs real money."""
    from batchbench.core.money import dollars

    budget = sweep.purchase.limit
    limit = "" if budget is None else f"\nbudget: {dollars(budget)} for all runs together, never exceeded"
    terminal.note(f"{estimate.table(sweep.estimates)}{limit}\n")
    if sweep.worst_usd == 0 or yes:
        return
    ask_to_go_on(f"this may cost up to ${sweep.worst_usd:,.2f}", "allow it with --yes")


def _document(sweep: "PreparedSweep", done: "SweepResult") -> dict[str, object]:
    from batchbench.core.money import MILLION

    results = [result for result, _ in done.finished]
    return {
        "report": str(done.report) if done.report else None,
        "runs": results,
        "spent_usd": sum(result.spent_usd for result in results),
        "budget_usd": None if sweep.purchase.limit is None else sweep.purchase.limit / MILLION,
    }


def _table(done: "SweepResult") -> str:
    """A line for each run: its progress, and its first headline metric. Stamps that all runs have are printed once."""
    results = [result for result, _ in done.finished]
    stamps = [" ".join(["EMULATED"] * one.emulated + ["SAMPLE DATA"] * one.sample_data) for one in results]
    alike = len(set(stamps)) <= 1
    rows = [["PROBE", "MODEL", "ANSWERED", "SPENT", "METRIC", "ESTIMATE", "95 % INTERVAL", "MARK"]]
    for result, stamp in zip(results, stamps, strict=True):
        counts = [
            f"{result.answered + result.refused:,} of {result.asked:,}",
            f"${result.spent_usd:,.4f}" if result.priced else "not priced",
        ]
        probe = f"{result.probe} {result.settings}".rstrip()
        *metric, mark = _headline(done.analyses.get(Path(result.run)))
        rows.append([probe, result.model, *counts, *metric, mark if alike else f"{mark}  {stamp}"])
    return "\n".join([*([stamps[0]] if alike and stamps and stamps[0] else []), format_table(rows), *_notes(done)])


def _headline(found: "Analysis | None") -> list[str]:
    name = next((name for name in found.headline if name in found.metrics), None) if found else None
    value = found.metrics[name] if found and name else None
    if found is None or name is None or value is None or value.estimate is None:
        return ["–", "–", "–", "–"]
    interval = "–" if value.low is None else f"{value.low:.4f} … {value.high:.4f}"
    return [name, f"{value.estimate:.4f}", interval, found.marks.get(name) or value.mark or "–"]


def _notes(done: "SweepResult") -> list[str]:
    """Which reading the table shows, and what a person must know before using its marks."""
    found = list(done.analyses.values())
    names = sorted({analysis.readings[0].name for analysis in found if analysis.readings})
    lines = [f"Estimates are by the reference reading ({', '.join(names)})."] if names else []
    if any("/" in mark for analysis in found for mark in analysis.marks.values()):
        lines.append("A mark such as A / D is by the reference reading / by the careful reading.")
    for analysis in found:
        run, agreed = f"{analysis.probe}, {analysis.origin.model}", analysis.reading_agreement
        if agreed and agreed.low:
            lines.append(f"{run}: the two readings agree on {agreed.agreeing:,} of {agreed.answers:,} answers")
        withheld = [reading for reading in analysis.readings if reading.no_mark and analysis.marks]
        lines += [f"{run}, {reading.kind} reading: no mark: {reading.no_mark}" for reading in withheld]
    return lines
