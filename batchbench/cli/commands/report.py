"""`batchbench report [PROBE...]`"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import output
from batchbench.runs.folder import read_run

if TYPE_CHECKING:
    from batchbench.core.store import Store

DESCRIPTION = """\
One HTML file that shows what analyses found: marks, intervals, groups, missing answers, costs, sample answers. It needs
no network and can be mailed. Beside it, in a folder, the same for papers and programs: CSV, Markdown, LaTeX, SVG, JSON;
PNG too where the extra `png` is installed (pip install 'batchbench[png]').

  batchbench report                                          every analysed run of this home
  batchbench report hiring_an gest --model sim:random        these probes and models only
  batchbench report --model results/ --out paper.html        a folder that `batchbench analyze -o` wrote
"""


def add(commands: output.Subparsers) -> None:
    """Declare the command."""
    parser = output.command(commands, "report", run, help="a page that shows analyses", description=DESCRIPTION)
    parser.add_argument("probes", nargs="*", metavar="PROBE", help="only these (default: every one)")
    parser.add_argument(
        "--model", action="append", default=[], metavar="M", dest="models", help="only these, or a run's folder"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="where to (default: report.html in the home)")
    parser.add_argument("--title", metavar="TEXT", help="the heading of the page")


def run(args: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    from batchbench import report
    from batchbench.report.files import files_folder, png_converter

    store = output.store(args)
    chosen = _chosen(store, list(dict.fromkeys(args.probes)), list(dict.fromkeys(args.models)))
    out = args.out or store.home / "report.html"
    page = report.build(store, chosen, out, title=args.title or report.TITLE)
    if not png_converter():
        output.note(args)("figures are SVG only: for PNG too, pip install 'batchbench[png]'")
    if args.json:
        runs = [str(folder) for folder in chosen]
        output.show_json({"report": str(page), "files": str(files_folder(page)), "runs": runs})
    else:
        output.show(f"{page}: {len(chosen)} runs; tables and figures in {files_folder(page)}")
    return 0


def _chosen(store: "Store", names: list[str], models: list[str]) -> list[Path]:
    """The analysed runs that were asked for."""
    from batchbench import probes
    from batchbench.errors import UsageError, unknown
    from batchbench.report import gather

    for name in names:
        probes.load(name)  # complains about a misspelt one
    folders = [Path(model) for model in models if (Path(model) / "metrics.json").is_file()]
    wanted = [model for model in models if Path(model) not in folders]
    there = {folder: read_run(folder / "run.json").target.name for folder in gather.analysed(store)}
    for model in wanted:
        if model not in there.values():
            raise unknown("analysed model", model, there.values())
    if wanted or not folders:
        folders += [folder for folder, model in there.items() if not wanted or model in wanted]
    chosen = [folder for folder in folders if not names or _probe(folder) in names]
    if not chosen:
        raise UsageError("none of these has been analysed yet: `batchbench run`, then `batchbench analyze`")
    return chosen


def _probe(folder: Path) -> str:
    from batchbench.report import gather

    return gather.read_analysis(folder / "metrics.json").probe
