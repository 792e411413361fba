"""`batchbench analyze PROBE...`"""

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, format_table, show, show_json

if TYPE_CHECKING:
    from batchbench.analyze.analysis import Analysis
    from batchbench.analyze.compare import Comparison

DESCRIPTION = """\
Read the answers of runs, or of a file, and print every metric of the probe with its 95 % interval, its mark and
what is missing. Two or more models, or files, are also compared item by item. An unfinished run can be analyzed:
its answers are a fair sample.

  batchbench analyze hiring_an --model sim:random
  batchbench analyze gest --model sim:unbiased --model sim:stereotyping      and the differences between them
  batchbench analyze isear --answers answers.jsonl --json                    answers obtained elsewhere

A run's metrics.json, metrics.parquet and cells.parquet are written into its folder, or with -o into DIR.

A file of answers holds JSON lines or parquet, in one of three shapes:

  a line per prompt    {"probe": "isear", "item_id": "7", "metadata": {"gender": "a man"}, "answers": ["joy"]}
                       `answers` has one text for each repetition
  by custom id         {"custom_id": "x1f-120-0", "text": "joy"}      or "id": 120, "rep": 0; the manifest's row
  by the item          {"item_id": "7", "gender": "a man", "text": "joy"}

Lines with one item_id are one item, the unit that is resampled; it may be left out where an item has one prompt.
`outcome` may say refused, filtered, truncated or failed; a failed request, or an answer of null, is no attempt. For
probes with masked words, an answer may be a list of predictions ({"token_str", "score"}), and a line with `text` may
have `logprobs` ({"token", "logprob"}).
"""
NOTHING = "–"
FIRST = 12  # metrics shown without --all


def add(commands: options.Subparsers) -> None:
    parser = options.command(
        commands, "analyze", run, help="metrics, intervals and marks from answers", description=DESCRIPTION
    )
    parser.add_argument("probes", nargs="+", metavar="PROBE", help="see `batchbench probes`")
    parser.add_argument(
        "--model", action="append", default=[], metavar="M", dest="models", help="the model of a run, or its folder"
    )
    parser.add_argument(
        "--answers", action="append", default=[], metavar="FILE", type=Path, help="a file of answers instead of a run"
    )
    parser.add_argument("--replicates", metavar="N", help="bootstrap drawings (1000)")
    parser.add_argument("--seed", metavar="N", help="of the drawings (0)")
    options.add_params(parser)
    parser.add_argument("--all", action="store_true", help="print every metric, not only the first ones")
    parser.add_argument("-o", type=Path, metavar="DIR", dest="folder", help="write metrics.json and the tables here")
    parser.details = _columns


def _columns() -> str:
    from batchbench.app.analyze import columns
    from batchbench.probes import load_probe, probe_names

    texts = [f"  {name:12} {columns(load_probe(name))}" for name in probe_names()]
    lines = [textwrap.fill(text, 110, subsequent_indent=" " * 15) for text in texts]
    return "\n".join(["columns of each probe, by the item:", *lines])


def run(args: argparse.Namespace) -> int:
    from batchbench.app.analyze import analyze
    from batchbench.app.requests import AnalysisRequest

    request = options.struct(AnalysisRequest, args, params=options.params(args.params))
    analyses, comparisons = analyze(request, options.store(args), Terminal(quiet=args.quiet))
    if args.json:
        show_json(analyses[0] if len(analyses) == 1 else {"analyses": analyses, "comparisons": comparisons})
        return 0
    for analysis in analyses:
        show(_analysis(analysis, every=args.all))
    for comparison in comparisons:
        show(_comparison(comparison))
    return 0


def _analysis(analysis: "Analysis", *, every: bool) -> str:
    coverage = analysis.coverage
    share = f"{_percent(coverage.detected, coverage.asked)}"
    shown = [name for name in analysis.metrics if name not in analysis.aliases]
    names = [*analysis.headline, *(name for name in shown if name not in analysis.headline)]
    rows = [["METRIC", "ESTIMATE", "95 % INTERVAL", "MARK", "COVERAGE"]]
    for name in names if every else names[:FIRST]:
        value = analysis.metrics.get(name)
        if value is None:
            continue
        interval = NOTHING if value.low is None else f"{_number(value.low)} … {_number(value.high)}"
        rows.append([name, _number(value.estimate), interval, value.mark or NOTHING, share])
    lines = [f"{analysis.probe}, {analysis.origin.model}", *(f"  {stamp}" for stamp in analysis.stamps)]
    lines += ["", format_table(rows)]
    if not every and len(names) > FIRST:
        lines.append(f"and {len(names) - FIRST} more: --all, or --json")
    lines += [
        "",
        f"{coverage.asked:,} asked, {coverage.attempts:,} came back, {coverage.detected:,} readable; "
        f"{coverage.items_detected:,} of {coverage.items:,} items have a readable answer",
        *([f"repeated answers agree in {analysis.agreement:.1%} of pairs"] if analysis.agreement is not None else []),
        "",
        format_table(_missing(analysis, every=every)),
        *(f"note: {note}" for note in analysis.notes),
        "",
    ]
    return "\n".join(lines)


def _missing(analysis: "Analysis", *, every: bool) -> list[list[str]]:
    kinds = ("refused", "filtered", "truncated", "failed", "absent", "undetected")
    rows = [["GROUP", "ASKED", *(kind.upper() for kind in kinds)]]
    for group in analysis.missing if every else analysis.missing[:FIRST]:
        shares = [_percent(getattr(group, kind), group.asked) for kind in kinds]
        rows.append([f"{group.stratum} = {group.group}", f"{group.asked:,}", *shares])
    if not every and len(analysis.missing) > FIRST:
        rows.append([f"and {len(analysis.missing) - FIRST} more", *[""] * (len(rows[0]) - 1)])
    return rows


def _comparison(comparison: "Comparison") -> str:
    rows = [["DIFFERENCE", "ESTIMATE", "95 % INTERVAL", "P", "P (HOLM)"]]
    for name, value in comparison.differences.items():
        if value.p is not None:
            interval = NOTHING if value.low is None else f"{_number(value.low)} … {_number(value.high)}"
            rows.append([name, _number(value.estimate), interval, f"{value.p:.2g}", f"{value.p_holm:.2g}"])
    agreement = NOTHING if comparison.agreement is None else f"{comparison.agreement:.1%}"
    runs = f"{comparison.probe}, {comparison.first} minus {comparison.second}"
    title = f"{runs}: {comparison.items:,} common items, {agreement} of common answers agree"
    return "\n".join([title, *(f"  {stamp}" for stamp in comparison.stamps), "", format_table(rows), ""])


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4f}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else NOTHING
