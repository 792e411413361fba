"""Pure: expressions that probes share."""

import string
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from batchbench.errors import UsageError

Slot = tuple[pl.Expr, Sequence[str]]  # an index in each row, and the values it is an index into


def hashed(index: pl.Expr) -> pl.Expr:
    """Spread indices over 64 bits by splitmix64: a fixed shuffle when sorted by.

    The mixer is a bijection, so there are no ties, and it is spelt out here, so the order never depends
    on a library's random numbers. Polars' integers wrap on overflow, as the mixer needs.
    """
    golden = pl.lit(0x9E3779B97F4A7C15, pl.UInt64)
    z = (index.cast(pl.UInt64) + pl.lit(1, pl.UInt64)) * golden
    z = (z ^ _shifted(z, 30)) * pl.lit(0xBF58476D1CE4E5B9, pl.UInt64)
    z = (z ^ _shifted(z, 27)) * pl.lit(0x94D049BB133111EB, pl.UInt64)
    return z ^ _shifted(z, 31)


def _shifted(z: pl.Expr, bits: int) -> pl.Expr:
    return z // pl.lit(1 << bits, pl.UInt64)


def fill(template: str, slots: Mapping[str, pl.Expr]) -> pl.Expr:
    """The text of `template` with each `{slot}` replaced; values are never read as templates themselves."""
    parts: list[pl.Expr] = []
    for text, slot in _parsed(template):
        parts += [pl.lit(text)] if text else []
        parts += [slots[slot]] if slot else []
    return pl.concat_str(parts)


def fill_each(choice: pl.Expr, templates: Sequence[str], slots: Mapping[str, Slot]) -> list[pl.Expr]:
    """`fill` with the template that `choice` (an index) names in each row, as parts to be joined.

    All templates use the same slots, at least one, in the same order; an empty one stays empty. A slot takes few
    values, so the text around it is glued to every value beforehand and looked up: a third of the time of joining all.
    """
    glued = [_glued(template) if template else None for template in templates]
    parts: list[pl.Expr] = []
    for place, (_, slot, _) in enumerate(next(filter(None, glued))):
        index, values = slots[slot]
        texts = [each[place][0] + value + each[place][2] if each else "" for value in values for each in glued]
        parts.append(pick(index.cast(pl.UInt32) * len(templates) + choice, texts))
    return parts


def _glued(template: str) -> list[tuple[str, str, str]]:
    """Each slot with the text before it, and the last one also with the text after it."""
    before, found = "", []
    for text, slot in _parsed(template):
        before += text
        if slot:
            found.append((before, slot))
            before = ""
    ends = ["" for _ in found[1:]] + [before]
    return [(text, slot, end) for (text, slot), end in zip(found, ends, strict=True)]


def pick(choice: pl.Expr, values: Sequence[str]) -> pl.Expr:
    """The value at the index that `choice` holds in each row."""
    return pl.lit(pl.Series(values, dtype=pl.String)).gather(choice)


def check_template(template: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Refuse a template that lacks a slot, names an unknown one, or is not a template at all."""
    required, optional = list(required), list(optional)
    try:
        found = {slot for _, slot in _parsed(template) if slot is not None}
    except ValueError as error:
        raise UsageError(f"template {template!r}: {error}") from None
    if extra := sorted(found - {*required, *optional}):
        known = ", ".join(f"{{{slot}}}" for slot in [*required, *optional])
        raise UsageError(f"template has an unknown slot {{{extra[0]}}}: it may use {known}; write {{{{ for a brace")
    if missing := [slot for slot in required if slot not in found]:
        raise UsageError(f"template lacks the slot {{{missing[0]}}}, so every prompt would be the same without it")
    if "\0" in template:
        raise UsageError("template holds a NUL character, which no prompt may")


def _parsed(template: str) -> list[tuple[str, str | None]]:
    parts: list[tuple[str, str | None]] = []
    for text, slot, form, conversion in string.Formatter().parse(template):
        if form or conversion:
            raise ValueError(f"{{{slot}}} takes no format or conversion")
        parts.append((text, slot))
    return parts
