"""`batchbench probes [NAME]`"""

import argparse

from batchbench.cli import output


def add(commands: output.Subparsers) -> None:
    """Declare the command."""
    parser = output.command(
        commands,
        "probes",
        run,
        help="list the probes, or show one's card",
        description="List the probes, or show one's card: what it asks, how answers are read, what the numbers mean.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the probe whose card to show")


def run(args: argparse.Namespace) -> int:
    """Show one card, or a line per probe."""
    from batchbench import probes

    if args.name:
        return _card(args)
    loaded = [probes.load(name) for name in probes.names()]
    if args.json:
        output.show_json([{"name": probe.name, "about": probe.card.splitlines()[0]} for probe in loaded])
    else:
        output.show(output.table([["PROBE", "WHAT IT ASKS"], *([p.name, p.card.splitlines()[0]] for p in loaded)]))
    return 0


def _card(args: argparse.Namespace) -> int:
    from batchbench import probes
    from batchbench.app import params as settings

    probe = probes.load(args.name)
    parameters = settings.describe(probe.params)
    if args.json:
        output.show_json(
            {
                "name": probe.name,
                "version": probe.version,
                "card": probe.card,
                "datasets": probe.datasets,
                "parameters": {name: {"default": default, "values": values} for name, default, values in parameters},
                "labels": probe.labels,
                "strata": probe.strata,
                "readings": probe.key_metrics,
                "sample_k": probe.sample_k,
                "max_tokens": probe.max_tokens,
            }
        )
        return 0
    output.show(probe.card)
    rows = [["PARAMETER", "DEFAULT", "VALUES"], *([name, default, values] for name, default, values in parameters)]
    output.show(output.table(rows))
    return 0
