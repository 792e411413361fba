"""`batchbench export` and `batchbench import`: requests out as files, results in as files."""

import argparse
from pathlib import Path

from batchbench.cli import options, output

EXPORT = """\
Write what is to be asked as files of requests in the provider's own format, instead of sending it: OpenAI's batch lines
for openai: and chat: models, usable by `vllm run-batch` or by hand. What is exported counts as asked, and its worst
cost as reserved, until its results are imported. The same command again writes files that got lost, and what is new.

  batchbench export isear --model chat:my-model@http://127.0.0.1:8000/v1 -o out
  vllm run-batch -i out/isear-...jsonl -o results.jsonl --model my-model
  batchbench import results.jsonl
  batchbench analyze isear --model chat:my-model@http://127.0.0.1:8000/v1

`batchbench run ... --resolve NONCE=void` gives an export up; NONCE=BATCH_ID says that it was submitted by hand as that
batch, which is then collected like any other. The nonce is the end of the file's name.
"""
IMPORT = """\
Take in the results of exported requests. Every line is attributed by its custom id, checked and priced like answers
that batchbench fetched itself; lines that fit nothing are set aside. A batch is taken in whole, from all files that
hold some of it; what OpenAI returns as two files, output and errors, is named together.

  batchbench import results.jsonl
  batchbench import batch_abc_output.jsonl batch_abc_error.jsonl
  batchbench import interrupted.jsonl --partial      what is not there is missing, and asked again with --rebuy-missing
"""


def add(commands: output.Subparsers) -> None:
    """Declare the commands."""
    export = output.command(commands, "export", run_export, help="write requests as files", description=EXPORT)
    export.add_argument("-o", type=Path, default=Path("export"), metavar="DIR", dest="folder", help="where (export)")
    options.add(export)
    options.add_buying(export)
    taking = output.command(commands, "import", run_import, help="take in files of results", description=IMPORT)
    taking.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results, in the provider's format")
    taking.add_argument("--partial", action="store_true", help="take what is there, although not all is")


def run_export(args: argparse.Namespace) -> int:
    """Write requests."""
    from batchbench.app import export as exporting

    return exporting.export(args)


def run_import(args: argparse.Namespace) -> int:
    """Take in results."""
    from batchbench.app import export as exporting

    return exporting.bring(args)
