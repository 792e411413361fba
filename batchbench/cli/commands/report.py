"""`batchbench report [PROBE...]`"""

import argparse
from pathlib import Path

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, complain, show_result
from batchbench.errors import DataError

DESCRIPTION = """\
One HTML file that shows what analyses found: marks, intervals, groups, missing answers, costs, sample answers. It needs
no network and can be mailed. A folder beside it has the same for papers and programs: CSV, Markdown, LaTeX, SVG, JSON;
PNG too where the extra `png` is installed (pip install 'batchbench[png]').

  batchbench report                                          every analysed run of this home
  batchbench report hiring_an gest --model sim:random        these probes and models only
  batchbench report --model results/ --out paper.html        a folder that `batchbench analyze -o` wrote
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "report", run, help="a page that shows analyses", description=DESCRIPTION)
    parser.add_argument("probes", nargs="*", metavar="PROBE", help="only these (default: every one)")
    parser.add_argument(
        "--model", action="append", default=[], metavar="M", dest="models", help="only these, or a run's folder"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the file (default: report.html in the home)")
    parser.add_argument("--title", metavar="TEXT", help="the heading of the page")


def run(args: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    from batchbench.app.report import write_report
    from batchbench.report.files import png_converter

    written = write_report(args.probes, args.models, options.store(args), out=args.out, title=args.title)
    if png_converter() is None:
        Terminal(quiet=args.quiet).note("figures are SVG only: for PNG too, pip install 'batchbench[png]'")
    document = {
        "report": str(written.report),
        "files": str(written.files),
        "runs": [*map(str, written.runs), *written.broken],
    }
    text = f"{written.report}: {len(written.runs)} runs; tables and figures in {written.files}"
    show_result(document, text, json=args.json)
    return complain([DataError(f"not in the report: {broken.run}: {broken.error}") for broken in written.broken])
