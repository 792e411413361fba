"""`batchbench check [PROBE...] [--model M...]`"""

import argparse

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, format_table, show_result, stderr

DESCRIPTION = """\
Check what a run needs, before anything is bought: the home and its disk, and for each model its name, price, key and
address, whether the provider knows it and until when, whether it takes batches, how it thinks, open batches, and the
difference between the clocks. With probes, also what a run would cost. All calls are free; --pay asks one question.

  batchbench check --model openai:gpt-6-luna
  batchbench check hiring_an --model anthropic:claude-haiku-5-5 --pay

The exit code is 0 if nothing is wrong (warnings are allowed), else that of the first error.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "check", run, help="check model, key, price and home", description=DESCRIPTION)
    options.add_models(parser, optional=True)
    parser.add_argument("--pay", action="store_true", help="ask one question, which costs money")


def run(args: argparse.Namespace) -> int:
    """Show one line for each check."""
    from batchbench.app.check import check, exit_code
    from batchbench.app.requests import Options

    request = options.selection(args), options.struct(Options, args), options.store(args)
    found = check(*request, Terminal(quiet=args.quiet), pay=args.pay)
    rows = [[one.level.upper() if one.level != "ok" else "ok", one.subject, one.check, one.text] for one in found]
    show_result(found, format_table(rows), json=args.json)
    if failed := sum(one.level == "error" for one in found):
        stderr(f"batchbench: {failed} of {len(found)} checks failed")
    return exit_code(found)
