"""`batchbench cancel PROBE... --model M...`"""

import argparse

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, show, show_json

DESCRIPTION = """\
Ask the provider to stop every batch of these runs that is still running, also one whose create got no reply. Answers
that exist already are kept and paid for: `batchbench run ... --collect` collects them and buys nothing. Requests that
were cancelled are asked again only with `batchbench run ... --again`.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "cancel", run, help="stop the batches of a run", description=DESCRIPTION)
    options.add_models(parser)


def run(args: argparse.Namespace) -> int:
    from batchbench.app.cancel import cancel
    from batchbench.app.requests import Options

    terminal = Terminal(quiet=args.quiet)
    cancelled = cancel(options.selection(args), options.struct(Options, args), options.store(args), terminal)
    if args.json:
        show_json(cancelled)
    elif not cancelled:
        show("nothing to cancel: see `batchbench status`")
    else:
        for entry in cancelled:
            batches = "1 batch is" if entry.cancelling == 1 else f"{entry.cancelling} batches are"
            show(
                f"{entry.probe} {entry.model}: {batches} being cancelled; collect their answers with `batchbench run "
                f"{entry.probe} --model {entry.model} --collect` and the other options of the run"
            )
            if entry.unanswered:
                show(f"  {entry.unanswered} more may exist: their creates got no reply; cancel again in a while")
    return 0
