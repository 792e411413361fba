"""`batchbench answers PROBE --model M`"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, format_table, show_result

if TYPE_CHECKING:
    from batchbench.analyze.human_check import Accuracy, HumanCheck
    from batchbench.app.answers import ListedAnswer, Listing

DESCRIPTION = """\
List the answers of a run, each with its custom id, and how it was read. Two readings are shown: the reference reading,
and the careful reading, which reads nothing in doubt. Or let people check both readings.

  batchbench answers gest --model sim:random --unreadable      answers that a reading cannot read
  batchbench answers gest --model sim:random --label male      answers read as male
  batchbench answers gest --model sim:random --check 50        write 50 answers for a person to label
  batchbench answers gest --model sim:random --checked check.csv --checked second.csv

--check draws answers at random; those that the readings do not agree on, or do not read, more often. The file is CSV
for a spreadsheet, or JSON lines if its name ends in .jsonl. It does not show how the answers were read. A text file
beside it has the instructions. --checked reads the labels of one or two people. It prints how often each reading is
right, with 95 % intervals for the whole run, and for two people how far they agree. The run's folder keeps the result
as human_check.json.
"""
NOTHING = "–"
LONGEST = 300  # characters of a prompt or an answer on a terminal


def add(commands: options.Subparsers) -> None:
    parser = options.command(
        commands, "answers", run, help="list answers; let people check how they are read", description=DESCRIPTION
    )
    parser.add_argument("probe", metavar="PROBE", help="see `batchbench probes`")
    parser.add_argument("--model", required=True, metavar="M", help="the model of the run, or the run's folder")
    options.add_params(parser)
    parser.add_argument("--unreadable", action="store_true", help="only answers that a reading cannot read")
    parser.add_argument("--label", metavar="L", help="only answers that a reading gives this label")
    parser.add_argument("--limit", metavar="N", help="list at most N answers, or all (20)")
    parser.add_argument("--check", metavar="N", help="write N answers for a person to label")
    parser.add_argument("--seed", metavar="N", help="of the random draw (0)")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the file to label, .csv or .jsonl")
    parser.add_argument(
        "--checked", action="append", default=[], type=Path, metavar="FILE", help="a file with labels; at most two"
    )


def run(args: argparse.Namespace) -> int:
    """List answers, write a file to label, or read labels."""
    from batchbench.app.answers import list_answers, read_check, write_check
    from batchbench.app.requests import AnswersRequest

    request = options.struct(AnswersRequest, args, params=options.params(args.params))
    context = options.store(args), Terminal(quiet=args.quiet)
    if request.checked:
        check = read_check(request, *context)
        show_result(check, _checked(check), json=args.json)
    elif request.check is not None:
        written = write_check(request, *context)
        text = (
            f"{written.file}: {written.drawn:,} of {written.population:,} answers to label; see {written.instructions}"
        )
        show_result(written, text, json=args.json)
    else:
        listing = list_answers(request, *context)
        show_result(listing, _listing(listing), json=args.json)
    return 0


def _listing(listing: "Listing") -> str:
    blocks = [_answer(answer) for answer in listing.answers]
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in listing.outcomes.items())
    of = f" of {listing.stored:,}" if listing.stored != listing.matching else ""
    total = f"{listing.matching:,}{of} answers" + (f": {outcomes}" if outcomes else "")
    hidden = listing.matching - len(blocks)
    more = f"; {hidden:,} more: --limit N, or --json for whole texts" if hidden else ""
    return "\n\n".join([*listing.stamps, *blocks, f"{total}{more}"])


def _answer(answer: "ListedAnswer") -> str:
    texts = {"prompt": answer.prompt, "answer": answer.text, "error": answer.error}
    reading = f"reference {answer.label or NOTHING}  careful {answer.careful or NOTHING}"
    lines = [f"{answer.id}  {answer.outcome}  {reading}"]
    return "\n".join(lines + [f"  {name}  {_cut(text)}" for name, text in texts.items() if text])


def _cut(text: str) -> str:
    """A text in one line, without its end if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"


def _checked(check: "HumanCheck") -> str:
    from batchbench.analyze.human_check import percent

    rows = [["READING", "LABELS", "ANSWERS", "RIGHT", "MISSED", "MISREAD"]]
    for one in check.accuracies:
        shares = [percent(value) for value in (one.right, one.missed, one.misread)]
        rows.append([one.reading, one.truth, f"{one.answers:,}", *shares])
    lines = [
        *check.stamps,
        f"{check.probe}, {check.model}: {check.drawn:,} of {check.population:,} answers were drawn",
        "the shares are estimates for all of them, with 95 % intervals",
        "",
        format_table(rows),
    ]
    if agreement := check.agreement:
        value = agreement.kappa
        kappa = f"{value.estimate:.2f} ({value.low:.2f} … {value.high:.2f})" if value else NOTHING
        lines += [
            "",
            f"the two people agree on {agreement.equal:,} of {agreement.answers:,} answers, for the whole run "
            f"{percent(agreement.agreement)}; Cohen's kappa {kappa}",
        ]
    for one in check.best:
        lines += ["", f"{one.reading} reading (columns) and {one.truth} (rows), answers of the sample", "", _table(one)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in check.notes), f"method: {check.method}"])


def _table(accuracy: "Accuracy") -> str:
    counts = {(count.truth, count.read): count.answers for count in accuracy.table}
    truths = sorted({truth for truth, _ in counts})
    reads = sorted({read for _, read in counts}, key=lambda read: read or "~")
    rows = [["", *(read or "nothing" for read in reads)]]
    return format_table(
        [*rows, *([truth, *(f"{counts.get((truth, read), 0):,}" for read in reads)] for truth in truths)]
    )
