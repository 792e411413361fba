"""`batchbench cancel PROBE... --model M...`"""

import argparse

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, show, show_json

DESCRIPTION = """\
Ask the provider to stop every batch of these runs that is still running. Answers that exist already are kept and paid
for; `batchbench run` collects them.
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
            show(f"{entry.probe} {entry.model}: {entry.cancelling} batches are being cancelled")
    return 0
