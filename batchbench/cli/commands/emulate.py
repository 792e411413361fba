"""`batchbench emulate`: run the emulator in the foreground."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add(commands: "Commands") -> None:
    """Add the command to the parser."""
    from batchbench.emulator import options

    parser = commands.add_parser("emulate", help="serve the providers' batch APIs on this machine, without a key")
    options.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from batchbench.emulator import options

    return options.run(args)
