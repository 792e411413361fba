"""`batchbench estimate PROBE... --model M...`"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, complain, format_table, show_result

if TYPE_CHECKING:
    from batchbench.app.estimate import CostEstimate, Unavailable

DESCRIPTION = """\
Estimate a run: requests, tokens, the batch price, the price of the same requests as single calls, and the worst case,
which is compared with --budget. No model is asked.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "estimate", run, help="what a run would cost", description=DESCRIPTION)
    options.add_models(parser)


def run(args: argparse.Namespace) -> int:
    """Show the estimated cost of each run, and an error for each probe without available data."""
    from batchbench.app.estimate import estimate
    from batchbench.app.requests import Options

    terminal = Terminal(quiet=args.quiet)
    entries, errors = estimate(options.selection(args), options.struct(Options, args), options.store(args), terminal)
    code = complain(errors)
    show_result(entries, table(entries), json=args.json)
    return code


def table(entries: "Sequence[CostEstimate | Unavailable]") -> str:
    """Estimates, their sum, and the sources of the prices."""
    from batchbench.app.estimate import CostEstimate

    known = [entry for entry in entries if isinstance(entry, CostEstimate)]
    rows = [["PROBE", "MODEL", "REQUESTS", "TOKENS IN", "TOKENS OUT", "BATCH", "SYNC", "WORST CASE"]]
    for entry in entries:
        if isinstance(entry, CostEstimate):
            rows.append([f"{entry.probe} {entry.settings}".rstrip(), entry.model, *_figures([entry])])
        else:
            rows.append([entry.probe, entry.model, "unavailable", *[""] * 5])
    if len(known) > 1:
        rows.append(["all", "", *_figures(known)])
    models: dict[str, dict[str, None]] = {}  # source of the prices -> models
    for entry in known:
        models.setdefault(entry.prices, {})[entry.model] = None
    sources = [f"prices of {', '.join(names)}: {source}" for source, names in models.items()]
    return "\n".join([format_table(rows), "", *sources])


def _figures(entries: "Sequence[CostEstimate]") -> list[str]:
    counts = [sum(getattr(one, name) for one in entries) for name in ("requests", "input_tokens", "output_tokens")]
    amounts = [[getattr(one, name) for one in entries] for name in ("batch_usd", "sync_usd", "worst_usd")]
    shown = ["unknown" if None in column else f"${sum(column):,.4f}" for column in amounts]
    if not any(one.priced for one in entries):
        shown = ["not priced", shown[1], "not priced"]
    return [*(f"{count:,}" for count in counts), *shown]
