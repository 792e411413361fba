"""`batchbench analyze PROBE...`"""

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, complain, format_table, show, show_json
from batchbench.errors import DataError

if TYPE_CHECKING:
    from batchbench.analyze.analysis import Analysis
    from batchbench.analyze.compare import Comparison
    from batchbench.analyze.human_check import HumanCheck

DESCRIPTION = """\
Read the answers of runs, or of a file, and print every metric of the probe with its 95 % interval, its mark and
what is missing. Two or more models, or files, are also compared item by item. An unfinished run can be analyzed:
its answers are a fair sample.

Answers are read twice. The reference reading equals the published code of the probe. The careful reading leaves out
reasoning, and reads nothing where it is in doubt; its metrics begin with careful_. Where the marks of the readings
differ, both are shown, as in `A / D` (reference / careful). A reading gives no mark if fewer than 90 % of the answers
are readable, or fewer than 80 % in one of the compared groups.

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
`outcome` may say refused, filtered, truncated, empty or failed; a failed request, or an answer of null, is no
attempt. For probes with masked words, an answer may be a list of predictions ({"token_str", "score"}), and a line
with `text` may have `logprobs` ({"token", "logprob"}).
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
    from batchbench.analyze.human_check import sentences
    from batchbench.app.analyze import analyze
    from batchbench.app.requests import AnalysisRequest

    request = options.struct(AnalysisRequest, args, params=options.params(args.params))
    analyses, comparisons, checks, broken = analyze(request, options.store(args), Terminal(quiet=args.quiet))
    damage = [DataError(f"not analyzed: {one.run}: {one.error}") for one in broken]
    if args.json:
        documents = [_document(analysis, check) for analysis, check in zip(analyses, checks, strict=True)] + broken
        show_json(documents[0] if len(documents) == 1 else {"analyses": documents, "comparisons": comparisons})
        return complain(damage)
    for analysis, check in zip(analyses, checks, strict=True):
        show(_analysis(analysis, every=args.all))
        if check:
            show("\n".join([*sentences(check, analysis.origin.rereads), ""]))
    for comparison in comparisons:
        show(_comparison(comparison))
    return complain(damage)


def _document(analysis: "Analysis", check: "HumanCheck | None") -> object:
    import msgspec

    return {**msgspec.to_builtins(analysis), "human_check": check} if check else analysis


def _analysis(analysis: "Analysis", *, every: bool) -> str:
    coverage = analysis.coverage
    names = _ordered(analysis)
    rows = [["METRIC", "READING", "ESTIMATE", "95 % INTERVAL", "MARK", "COVERAGE"]]
    for name in names if every else names[:FIRST]:
        value, reading = analysis.metrics[name], analysis.reading(name)
        interval = NOTHING if value.low is None else f"{_number(value.low)} … {_number(value.high)}"
        mark = analysis.marks.get(name) or value.mark or NOTHING
        share = _percent(analysis.readable(name), coverage.asked)
        rows.append([name, reading.kind if reading else "", _number(value.estimate), interval, mark, share])
    lines = [f"{analysis.probe}, {analysis.origin.model}", *(f"  {stamp}" for stamp in analysis.stamps)]
    lines += [f"  {reading.kind} reading: {reading.name}" for reading in analysis.readings]
    lines += ["", format_table(rows)]
    if not every and len(names) > FIRST:
        lines.append(f"and {len(names) - FIRST} more: --all, or --json")
    agreed = analysis.reading_agreement
    lines += [
        "",
        f"{coverage.asked:,} asked, {coverage.attempts:,} came back, {coverage.detected:,} readable; "
        f"{coverage.items_detected:,} of {coverage.items:,} items have a readable answer",
        *([f"the two readings agree on {_percent(agreed.agreeing, agreed.answers)} of the answers"] if agreed else []),
        *([f"repeated answers agree in {analysis.agreement:.1%} of pairs"] if analysis.agreement is not None else []),
        "",
        format_table(_missing(analysis, every=every)),
        *(f"note: {note}" for note in analysis.notes),
        "",
    ]
    return "\n".join(lines)


def _ordered(analysis: "Analysis") -> list[str]:
    """The metrics in the order of the table: headline metrics by both readings, then the others."""
    first = [name for metric in analysis.headline for name in (metric, f"careful_{metric}") if name in analysis.metrics]
    return list(dict.fromkeys([*first, *(name for name in analysis.metrics if name not in analysis.aliases)]))


def _missing(analysis: "Analysis", *, every: bool) -> list[list[str]]:
    kinds = ["refused", "filtered", "truncated", "empty", "failed", "absent", "undetected"]
    kinds += ["careful_undetected"] if analysis.reading_agreement else []
    rows = [["GROUP", "ASKED", *(kind.upper().replace("_", " ") for kind in kinds)]]
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
