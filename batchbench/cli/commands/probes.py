"""`batchbench probes [NAME]`"""

import argparse
import types
import typing

from batchbench.cli import options
from batchbench.cli.terminal import format_table, show_result

if typing.TYPE_CHECKING:
    from batchbench.probes.kit.probe import Params


def add(commands: options.Subparsers) -> None:
    parser = options.command(
        commands,
        "probes",
        run,
        help="list the probes, or show one's card",
        description="List the probes, or show one's card: what it asks, how answers are read, what the numbers mean.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the card of this probe")


def run(args: argparse.Namespace) -> int:
    """Show one card, or a line for each probe."""
    from batchbench.probes import load_probe, probe_names

    if args.name:
        return _card(args)
    loaded = [load_probe(name) for name in probe_names()]
    about = {probe.name: probe.card.splitlines()[0] for probe in loaded}
    table = format_table([["PROBE", "WHAT IT ASKS"], *map(list, about.items())])
    show_result([{"name": name, "about": text} for name, text in about.items()], table, json=args.json)
    return 0


def _card(args: argparse.Namespace) -> int:
    from batchbench.probes import load_probe

    probe = load_probe(args.name)
    parameters = _parameters(probe.params)
    document = {
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
    table = format_table([["PARAMETER", "DEFAULT", "VALUES"], *map(list, parameters)])
    show_result(document, f"{probe.card}\n{table}", json=args.json)
    return 0


def _parameters(kind: "type[Params]") -> list[tuple[str, str, str]]:
    """Name, default and possible values of each parameter."""
    hints = typing.get_type_hints(kind, include_extras=True)
    defaults = kind()
    return [(name, str(getattr(defaults, name)), _values(hints[name])) for name in kind.__struct_fields__]


def _values(hint: object) -> str:
    import msgspec

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is typing.Annotated:
        meta = next(argument for argument in arguments if isinstance(argument, msgspec.Meta))
        return f"{meta.ge} … {meta.le}"
    if origin is types.UnionType:
        return "text"
    return {str: "text", int: "whole number"}.get(typing.cast("type", hint), str(hint))
