"""`batchbench data list|pull|add|verify`"""

import argparse
from pathlib import Path

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, format_table, show, show_json, show_result

DESCRIPTION = """\
The data sets that probes are built from. They are fetched on first use, kept in cache/data/, and
checked against a pinned sha256.

  batchbench data list                     name, licence, source, and whether it is on this machine
  batchbench data pull [NAME...]           fetch now (default: all of them)
  batchbench data add gest gest.csv        use a file that you already have; its digest is checked
  batchbench data verify                   check every local file byte for byte
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(
        commands, "data", run_list, help="list, fetch and check data sets", description=DESCRIPTION
    )
    verbs = parser.add_subparsers(metavar="VERB")
    options.command(verbs, "list", run_list, verb=True, help="name, licence, source, and whether it is here")
    pull = options.command(verbs, "pull", run_pull, verb=True, help="fetch data sets")
    pull.add_argument("names", nargs="*", metavar="NAME")
    adding = options.command(verbs, "add", run_add, verb=True, help="use a file from disk")
    adding.add_argument("name", metavar="NAME", help="the data set it belongs to")
    adding.add_argument("file", metavar="FILE", type=Path, help="the file, or the package that contains it")
    adding.add_argument("--trust", action="store_true", help="use the file although its digest is not a known one")
    verify = options.command(verbs, "verify", run_verify, verb=True, help="check every local file byte for byte")
    verify.add_argument("names", nargs="*", metavar="NAME")


def run_list(args: argparse.Namespace) -> int:
    from batchbench.compile.catalogue import CATALOGUE
    from batchbench.compile.data_cache import missing_files

    store = options.store(args)
    rows = [
        {
            "name": dataset.name,
            "about": dataset.about,
            "licence": dataset.licence,
            "source": str(dataset.source),
            "here": not missing_files(store, dataset),
        }
        for dataset in CATALOGUE.values()
    ]
    if args.json:
        show_json(rows)
    else:
        cells = [
            [str(row["name"]), "yes" if row["here"] else "no", str(row["licence"]), str(row["about"])] for row in rows
        ]
        show(format_table([["DATA SET", "HERE", "LICENCE", "WHAT IT IS"], *cells]))
        sources = dict.fromkeys(str(dataset.source) for dataset in CATALOGUE.values())
        for source in sources:
            names = [row["name"] for row in rows if row["source"] == source]
            show(f"\nfrom {source}: {', '.join(map(str, names))}")
    return 0


def run_pull(args: argparse.Namespace) -> int:
    """Fetch what is missing."""
    from batchbench.compile.catalogue import CATALOGUE, find_dataset
    from batchbench.compile.data_cache import missing_files, pull_dataset

    store = options.store(args)
    pulled = []
    for name in args.names or CATALOGUE:
        dataset = find_dataset(name)
        if missing_files(store, dataset):
            pull_dataset(store, dataset, Terminal(quiet=args.quiet).note)
            pulled.append(name)
    text = f"fetched {', '.join(pulled)}" if pulled else "all data sets are here already"
    show_result({"pulled": pulled}, text, json=args.json)
    return 0


def run_add(args: argparse.Namespace) -> int:
    from batchbench.compile.catalogue import find_dataset
    from batchbench.compile.data_cache import add_file

    added = add_file(options.store(args), find_dataset(args.name), args.file, trust=args.trust)
    show_result({"dataset": args.name, "added": added}, f"{args.name}: added {', '.join(added)}", json=args.json)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    from batchbench.compile.catalogue import CATALOGUE, find_dataset
    from batchbench.compile.data_cache import verify_dataset

    store = options.store(args)
    verified: list[str] = []
    missing: list[str] = []
    for name in args.names or CATALOGUE:
        (verified if verify_dataset(store, find_dataset(name)) else missing).append(name)
    text = f"verified: {', '.join(verified) or 'none'}\nnot here: {', '.join(missing) or 'none'}"
    show_result({"verified": verified, "missing": missing}, text, json=args.json)
    return 0
