"""`batchbench sweep [FILE.toml]`"""

import argparse
from pathlib import Path

from batchbench.cli import options, output

DESCRIPTION = """\
The main job in one command: compile probes, ask models, analyze, and write one report. Probes, models, parameters and
one budget over all of them stand in FILE.toml; without a file, every probe is asked of three simulated models on this
machine, which needs no key and takes a few minutes.

  batchbench sweep                                 every probe, simulated models
  batchbench sweep --example > sweep.toml          a file to start from
  batchbench sweep sweep.toml                      shows what it would cost, asks, and goes on
  batchbench sweep sweep.toml --yes --detach       submit and leave; the same command later collects

The same command again resumes, on this machine or on another with a copy of the folder: what was answered is kept, what
was bought is looked up, and only what is missing is asked.
"""


def add(commands: output.Subparsers) -> None:
    """Declare the command."""
    parser = output.command(
        commands, "sweep", run, help="the main job: probes x models, from nothing to a report", description=DESCRIPTION
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="what to ask whom; see --example")
    parser.add_argument("--example", action="store_true", help="print a commented sweep.toml and end")
    parser.add_argument("--yes", action="store_true", help="go on without asking, whatever it would cost")
    options.add_buying(parser)
    parser.add_argument("-o", type=Path, metavar="FILE", dest="report", help="where the report goes (report.html)")


def run(args: argparse.Namespace) -> int:
    """Do it all."""
    from batchbench.app import sweep as sweeping
    from batchbench.app import sweep_file as sweepfile

    if args.example:
        output.show_json({"example": sweepfile.EXAMPLE}) if args.json else output.show(sweepfile.EXAMPLE.rstrip())
        return 0
    return sweeping.run(args)
