"""`batchbench prices [refresh]`"""

import argparse
import datetime

from batchbench.cli import options
from batchbench.cli.terminal import format_table, show, show_json

DESCRIPTION = """\
The prices that estimates and budgets use: dollars per million tokens, with their source and date. Every
run keeps the prices it was charged at.

  batchbench prices                the table
  batchbench prices refresh        take the prices of the installed genai-prices (pip install -U genai-prices)
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "prices", run, help="what models charge", description=DESCRIPTION)
    parser.add_argument("verb", nargs="?", choices=["refresh"], metavar="refresh", help="take current prices")


def run(args: argparse.Namespace) -> int:
    """Show the table; refresh it first on request."""
    import msgspec

    from batchbench.providers import prices

    store = options.store(args)
    if args.verb == "refresh":
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        fresh = prices.generate(today, prices.snapshot(store.prices))
        store.write(store.prices, msgspec.json.format(msgspec.json.encode(fresh), indent=1))
    table = prices.snapshot(store.prices)
    if args.json:
        show_json(table)
        return 0
    rows = [["MODEL", "IN", "OUT", "BATCH IN", "BATCH OUT"]]
    for name, row in table.models.items():
        amounts = (row.input, row.output, row.batch_input, row.batch_output)
        rows.append([name, *("none" if amount is None else f"{amount / 1_000_000:g}" for amount in amounts)])
    show(format_table(rows))
    show(f"\ndollars per million tokens; {table.source}, read {table.date}")
    return 0
