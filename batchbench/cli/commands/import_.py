"""`batchbench import FILE...`"""

import argparse
from pathlib import Path

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, complain, show, show_json
from batchbench.errors import MissingAnswers

DESCRIPTION = """\
Import the results of exported requests. Every line is attributed by its custom id, checked and priced like answers that
batchbench fetched itself; lines that belong to no request are set aside. A batch is imported as a whole, from all files
that contain a part of it: name both files that OpenAI returns, output and errors.

  batchbench import results.jsonl
  batchbench import batch_abc_output.jsonl batch_abc_error.jsonl
  batchbench import interrupted.jsonl --partial      the rest is missing: import it later, or use --rebuy-missing

A file without a readable result is refused, and nothing is stored.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "import", run, help="import files of results", description=DESCRIPTION)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results, in the provider's format")
    parser.add_argument(
        "--partial", action="store_true", help="import a batch although some of its results are missing"
    )


def run(args: argparse.Namespace) -> int:
    from batchbench.app.import_ import import_results

    terminal = Terminal(quiet=args.quiet)
    imported = import_results(args.files, options.store(args), terminal, partial=args.partial)
    if args.json:
        show_json(imported)
    else:
        for entry in imported:
            cost = f"${entry.cost_usd:,.4f}" if entry.priced else "not priced,"
            show(
                f"{entry.file}: {entry.answered:,} answers, {entry.missing:,} missing, {entry.again:,} to ask again, "
                f"{entry.quarantined:,} lines set aside, {cost} in {entry.run}"
            )
    missing = sum(entry.missing for entry in imported)
    error = MissingAnswers(f"{missing:,} answers are missing: import them, or ask again with `--rebuy-missing`")
    return complain([error if missing else None])
