"""What every command that needs prompts does first: compile the probes named on the command line."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from batchbench import probes
from batchbench.app import params as settings
from batchbench.cli import output
from batchbench.compile.compiler import compile
from batchbench.compile.data_cache import load_table
from batchbench.compile.manifest import Manifest
from batchbench.core.store import Store
from batchbench.errors import DataError
from batchbench.probes.kit.probe import Params, Probe


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A probe with the manifest that its parameters make."""

    probe: Probe[Params]
    params: Params
    folder: Path
    manifest: Manifest
    seconds: float


def compiled(args: argparse.Namespace, store: Store, provider: str | None = None) -> list[Compiled]:
    """The probes on the command line, compiled if they are not yet, in the form that fits the provider."""
    return [one(args, store, probe, params) for probe, params in _chosen(args, provider)]


def compiled_or_not(
    args: argparse.Namespace, store: Store, provider: str | None = None
) -> Iterator[tuple[str, "Compiled | DataError"]]:
    """The same, one by one; where a probe's data cannot be had, the reason stands in its place."""
    for probe, params in _chosen(args, provider):
        try:
            yield probe.name, one(args, store, probe, params)
        except DataError as error:
            yield probe.name, error


def _chosen(args: argparse.Namespace, provider: str | None) -> list[tuple[Probe[Params], Params]]:
    names = probes.names() if args.probes == ["all"] else list(dict.fromkeys(args.probes))
    chosen = [probes.load(name) for name in names]
    return list(zip(chosen, settings.params(chosen, settings.parse(args.settings), provider), strict=True))


def one(args: argparse.Namespace, store: Store, probe: Probe[Params], params: Params) -> Compiled:
    """A probe with these parameters, compiled if it is not yet."""
    started = time.monotonic()
    sample, note = params.data == "sample", output.note(args)
    loaded = {name: load_table(store, name, sample=sample, note=note) for name in probe.datasets}
    tables = {name: table for name, (table, _) in loaded.items()}
    sources = {name: source for name, (_, source) in loaded.items()}
    with output.progress(args, probe.name, "prompts") as report:
        folder, manifest = compile(probe, params, tables, sources, store, report)
    return Compiled(
        probe=probe, params=params, folder=folder, manifest=manifest, seconds=round(time.monotonic() - started, 3)
    )
