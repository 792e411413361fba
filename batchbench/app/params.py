"""`--set K=V`: turning words into a probe's parameters."""

import types
import typing

import msgspec

from batchbench.errors import UsageError, unknown
from batchbench.probes.kit.probe import Params, Probe

ELSEWHERE = {
    "sample_k": "a manifest always holds every item; a run asks its first N with --sample-k N",
    "num_repetitions": "a manifest holds every prompt once; a run asks it R times with --repetitions R",
}


def parse(words: list[str]) -> dict[str, str]:
    """The settings in `words`, each K=V or PROBE.K=V."""
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word!r} is not of the form K=V")
        settings[key] = value
    return settings


def params(probes: list[Probe[Params]], settings: dict[str, str], provider: str | None = None) -> list[Params]:
    """The parameters of each probe; a setting goes to every probe that has it, and at least one must.

    A form that nobody chose is the one that fits the provider best.
    """
    fields = {probe.name: probe.params.__struct_fields__ for probe in probes}
    for key in settings:
        owner, dot, name = key.rpartition(".")
        if dot and owner not in fields:
            raise unknown("probe", owner, fields)
        known = {field for probe in ([owner] if dot else fields) for field in fields[probe]}
        if name in ELSEWHERE and name not in known:
            raise UsageError(f"{name} is not set here: {ELSEWHERE[name]}")
        if name not in known:
            raise unknown(f"parameter of {', '.join([owner] if dot else fields)}", name, known)
    return [_params(probe, settings, provider) for probe in probes]


def _params(probe: Probe[Params], settings: dict[str, str], provider: str | None) -> Params:
    values = {"form": probe.forms(provider)[0]} if probe.forms and provider else {}
    for key, value in settings.items():
        owner, _, name = key.rpartition(".")
        if name in probe.params.__struct_fields__ and owner in ("", probe.name):
            values[name] = value
    try:
        params = msgspec.convert(values, probe.params, strict=False)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        raise UsageError(f"{probe.name}: {name}={values.get(name, '')}: {reason[:1].lower()}{reason[1:]}") from None
    probe.check(params)
    return params


def describe(kind: type[Params]) -> list[tuple[str, str, str]]:
    """Name, default and possible values of each parameter, for people."""
    hints = typing.get_type_hints(kind, include_extras=True)
    defaults = msgspec.structs.asdict(kind())
    return [(name, str(default), _values(hints[name])) for name, default in defaults.items()]


def _values(hint: object) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is typing.Annotated:
        meta = next(argument for argument in arguments if isinstance(argument, msgspec.Meta))
        return f"{meta.ge} … {meta.le}"
    if origin is types.UnionType:
        return "text"
    return {str: "text", int: "whole number"}.get(typing.cast("type", hint), str(hint))
