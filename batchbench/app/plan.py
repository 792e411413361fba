"""Plan runs: which probe runs with which model and parameters; compile the prompts that do not exist."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import bound
from batchbench.app.requests import Options, Selection, Voice, convert
from batchbench.compile.compiler import compile
from batchbench.compile.data_cache import load_table
from batchbench.compile.manifest import Manifest
from batchbench.core.store import Store
from batchbench.errors import UsageError, unknown
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import load_provider, target
from batchbench.providers.target import Target, changed_options, changed_params
from batchbench.runs.folder import folder_of

DEFAULT_MAX_TOKENS = 300  # of a model without a probe
ONE_TOKEN = {"max_tokens": 1, "top_logprobs": 20}  # 20: the most alternatives that providers give
NOT_PARAMETERS = {
    "sample_k": "a manifest always holds every item; a run asks its first N with --sample-k N",
    "num_repetitions": "a manifest holds every prompt once; a run asks it R times with --repetitions R",
}


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A probe with the manifest that its parameters make."""

    probe: Probe[Params]
    params: Params
    folder: Path
    manifest: Manifest
    seconds: float


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: a probe's prompts, the model, and how it is asked."""

    compiled: Compiled
    target: Target
    options: Options
    weight: float  # its part of the budget, relative to other runs
    items: int  # how many items of the manifest are asked
    rows: int  # their prompts
    settings: str  # parameters and options that are not the defaults
    name: str  # for messages


def plan(selection: Selection, options: Options, store: Store, voice: Voice) -> list[PlannedRun]:
    """Each probe with each model, once, in the form that fits the model's provider; all prompts are compiled."""
    kinds = {name: provider_of(name) for name in selection.models}
    made = {kind: compiled(selection, store, voice, kind) for kind in dict.fromkeys(kinds.values())}
    runs = [
        plan_run(item := made[kinds[name]][number], make_target(name, options, item.probe, item.params), options, store)
        for number in range(len(next(iter(made.values()), [])))
        for name in selection.models
    ]
    return list({(run.compiled.folder, run.target.canonical().slug): run for run in runs}.values())


def plan_run(compiled: Compiled, target: Target, options: Options, store: Store, weight: float = 1.0) -> PlannedRun:
    """The run of compiled prompts with a target."""
    probe, manifest = compiled.probe, compiled.manifest
    if options.max_tokens is None:
        target = _continued(compiled, target, store)
    limit = probe.sample_k if options.sample_k is None else options.sample_k
    items = min(limit, manifest.items) if isinstance(limit, int) else manifest.items
    changed = changed_params(probe, msgspec.structs.asdict(compiled.params)) | changed_options(probe, target)
    settings = " ".join(f"{name}={value}" for name, value in changed.items() if name != "data")
    return PlannedRun(
        compiled=compiled,
        target=target,
        options=options,
        weight=weight,
        items=items,
        rows=items * manifest.variants,
        settings=settings,
        name=" ".join(filter(None, [probe.name, settings, target.name])),
    )


def _continued(compiled: Compiled, target: Target, store: Store) -> Target:
    """The target with the default limit of older versions, if a run with it exists: nothing may be bought again."""
    probe = compiled.probe
    if probe.earlier_max_tokens is None:
        return target
    longer = target.max_tokens - probe.max_tokens + probe.earlier_max_tokens
    older = msgspec.structs.replace(target, max_tokens=longer)
    return older if (store.cache / compiled.folder.name / older.slug).exists() else target


def run_folder(planned: PlannedRun, store: Store) -> Path:
    """The folder of a planned run; it may not exist yet."""
    return folder_of(store, planned.compiled.folder.name, planned.target)


def check_sizes(selection: Selection, options: Options, store: Store, voice: Voice) -> None:
    """Raise UsageError if --sample-k is larger than every selected probe, before anything is compiled."""
    if not isinstance(options.sample_k, int):
        return
    largest = ("", 0)
    for probe, params in chosen(selection, provider_of(selection.models[0]) if selection.models else None):
        sample = params.data == "sample"
        tables = {name: load_table(store, name, sample=sample, note=voice.note)[0] for name in probe.datasets}
        rows: int = probe.design(params, tables).select(pl.len()).collect().item()
        if rows // probe.variants(params) >= options.sample_k:
            return
        largest = max(largest, (probe.name, rows // probe.variants(params)), key=lambda pair: pair[1])
    raise UsageError(
        f"{largest[0]} has {largest[1]:,} items, fewer than --sample-k {options.sample_k}: use --sample-k all"
    )


def compiled(selection: Selection, store: Store, voice: Voice, provider: str | None = None) -> list[Compiled]:
    """The selected probes, compiled, in the form that fits the provider."""
    return [compile_probe(probe, params, store, voice) for probe, params in chosen(selection, provider)]


def chosen(selection: Selection, provider: str | None = None) -> list[tuple[Probe[Params], Params]]:
    """The selected probes and their parameters."""
    names = probe_names() if selection.probes == ["all"] else list(dict.fromkeys(selection.probes))
    loaded = [load_probe(name) for name in names]
    return list(zip(loaded, parameters(loaded, selection.params, provider), strict=True))


def compile_probe(probe: Probe[Params], params: Params, store: Store, voice: Voice) -> Compiled:
    """Write a probe's prompts to disk, unless they exist."""
    started = time.monotonic()
    sample = params.data == "sample"
    loaded = {name: load_table(store, name, sample=sample, note=voice.note) for name in probe.datasets}
    tables = {name: table for name, (table, _) in loaded.items()}
    sources = {name: source for name, (_, source) in loaded.items()}
    with voice.progress(probe.name, "prompts") as report:
        folder, manifest = compile(probe, params, tables, sources, store, report)
    seconds = round(time.monotonic() - started, 3)
    return Compiled(probe=bound(probe, params), params=params, folder=folder, manifest=manifest, seconds=seconds)


def make_target(
    name: str, options: Options, probe: Probe[Params] | None = None, params: Params | None = None
) -> Target:
    """The model called `name`, as it is asked for this probe and in the form that the parameters choose."""
    kind, model, url, emulated = target.parse(name)
    provider = load_provider(kind)
    if emulated and options.base_url:
        raise UsageError(f"{name} is on this machine: --base-url goes with openai: and anthropic: models")
    if not emulated:
        url = url or options.base_url or os.environ.get(provider.url_variable)
    made = Target(
        provider=kind,
        model=model,
        base_url=target.checked_url(url) if url else None,
        emulated=emulated,
        system=options.system,
        max_tokens=options.max_tokens or (probe.max_tokens if probe else DEFAULT_MAX_TOKENS),
        temperature=options.temperature,
        top_p=options.top_p,
        effort=options.effort,
        thinking=options.thinking,
        extra=msgspec.json.encode(options.extra, order="sorted").decode() if options.extra else "",
    )
    thinking = made.resolved_thinking()
    headroom = thinking.headroom if options.max_tokens is None else 0  # thinking counts against the limit
    fields = msgspec.json.encode(thinking.fields, order="sorted").decode() if thinking.fields else ""
    made = msgspec.structs.replace(made, max_tokens=made.max_tokens + headroom, thinking_fields=fields)
    form = getattr(params, "form", None)
    if form == "logprob":
        made = msgspec.structs.replace(made, **ONE_TOKEN)
    provider.check(made)
    if form and probe and probe.forms and form not in probe.forms(kind):
        fitting = " or ".join(f"form={form}" for form in probe.forms(kind))
        raise UsageError(f"{probe.name} cannot be asked of {name} with form={form}: use --set {fitting}")
    return made


def provider_of(model: str) -> str:
    """The provider in the name of a model."""
    return target.parse(model)[0]


def parameters(loaded: list[Probe[Params]], params: Mapping[str, str], provider: str | None = None) -> list[Params]:
    """The parameters of each probe. A parameter goes to every probe that has it; at least one must have it.

    A form that is not chosen is the one that fits the provider best.
    """
    fields = {probe.name: probe.params.__struct_fields__ for probe in loaded}
    for key in params:
        owner, dot, name = key.rpartition(".")
        if dot and owner not in fields:
            raise unknown("probe", owner, fields)
        known = {field for probe in ([owner] if dot else fields) for field in fields[probe]}
        if name in NOT_PARAMETERS and name not in known:
            raise UsageError(f"{name} is not a parameter: {NOT_PARAMETERS[name]}")
        if name not in known:
            raise unknown(f"parameter of {', '.join([owner] if dot else fields)}", name, known)
    return [_parameters(probe, params, provider) for probe in loaded]


def _parameters(probe: Probe[Params], params: Mapping[str, str], provider: str | None) -> Params:
    values = {"form": probe.forms(provider)[0]} if probe.forms and provider else {}
    for key, value in params.items():
        owner, _, name = key.rpartition(".")
        if name in probe.params.__struct_fields__ and owner in ("", probe.name):
            values[name] = value
    made = convert(probe.params, values, lambda name: f"{probe.name}: {name}")
    probe.check(made)
    return made
