"""`batchbench export PROBE... --model M...`"""

import argparse
from pathlib import Path

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, complain, show, show_json

DESCRIPTION = """\
Write requests as files in the provider's own format, instead of sending them: OpenAI's batch lines for openai: and
chat: models, usable by `vllm run-batch` or by hand. Exported requests count as asked, and their worst cost as reserved,
until their results are imported. The same command again rewrites lost files and writes new requests.

  batchbench export isear --model chat:my-model@http://127.0.0.1:8000/v1 -o out
  vllm run-batch -i out/isear-...jsonl -o results.jsonl --model my-model
  batchbench import results.jsonl
  batchbench analyze isear --model chat:my-model@http://127.0.0.1:8000/v1

`batchbench run ... --resolve NONCE=void` discards an export. If you submitted the file yourself, --resolve
NONCE=BATCH_ID names the batch, and batchbench collects it. The nonce is the end of the file's name.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "export", run, help="write requests as files", description=DESCRIPTION)
    parser.add_argument("-o", type=Path, default=Path("export"), metavar="DIR", dest="folder", help="folder (export)")
    options.add_models(parser)
    options.add_purchase(parser)


def run(args: argparse.Namespace) -> int:
    from batchbench.app.export import export
    from batchbench.app.requests import Options, Purchase

    request = options.selection(args), options.struct(Options, args), options.struct(Purchase, args)
    written = export(*request, args.folder, options.store(args), Terminal(quiet=args.quiet))
    if args.json:
        show_json(written.files)
    else:
        for entry in written.files:
            show(f"{entry.probe} {entry.model}: {entry.requests:,} requests in {entry.file}")
        if not written.files and written.error is None:
            show("nothing new to export: see `batchbench status`")
    return complain([written.error])
