"""Pure: expressions that probes share: prompts from templates, and the fixed shuffle."""

import string
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from batchbench.errors import UsageError

Slot = tuple[pl.Expr, Sequence[str]]  # for each row an index, and the values that it refers to


def fill(template: str, slots: Mapping[str, pl.Expr]) -> pl.Expr:
    """`template` with each `{slot}` replaced; braces inside the values have no meaning."""
    parts: list[pl.Expr] = []
    for text, slot in _parsed(template):
        parts += [pl.lit(text)] if text else []
        parts += [slots[slot]] if slot else []
    return pl.concat_str(parts)


def fill_each(choice: pl.Expr, templates: Sequence[str], slots: Mapping[str, Slot]) -> list[pl.Expr]:
    """`fill` with template number `choice` in each row; returns parts to be concatenated.

    All non-empty templates use the same slots, at least one, in the same order. An empty template gives an empty text.
    A slot has few values, so each value is joined with the text around it in advance, and rows look the result up: this
    takes a third of the time of concatenating everything in each row.
    """
    split = [_split(template) if template else None for template in templates]
    parts: list[pl.Expr] = []
    for number, (_, slot, _) in enumerate(next(filter(None, split))):
        index, values = slots[slot]
        texts = [
            pieces[number][0] + value + pieces[number][2] if pieces else "" for value in values for pieces in split
        ]
        parts.append(pick(index.cast(pl.UInt32) * len(templates) + choice, texts))
    return parts


def _split(template: str) -> list[tuple[str, str, str]]:
    """For each slot: the text before it, its name, and, for the last slot, the text after it."""
    before, found = "", []
    for text, slot in _parsed(template):
        before += text
        if slot:
            found.append((before, slot))
            before = ""
    ends = ["" for _ in found[1:]] + [before]
    return [(text, slot, end) for (text, slot), end in zip(found, ends, strict=True)]


def pick(choice: pl.Expr, values: Sequence[str]) -> pl.Expr:
    """In each row, `values[choice]`."""
    return pl.lit(pl.Series(values, dtype=pl.String)).gather(choice)


def check_template(template: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Raise UsageError if the template lacks a required slot, has an unknown slot, or cannot be parsed."""
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


def hashed(index: pl.Expr) -> pl.Expr:
    """A 64-bit hash of each index by splitmix64; sorting by it is a fixed shuffle.

    The hash is a bijection, so there are no ties. It is written out here, so the order does not depend on a library's
    random numbers. Polars' integers wrap on overflow, as splitmix64 needs.
    """
    golden = pl.lit(0x9E3779B97F4A7C15, pl.UInt64)
    z = (index.cast(pl.UInt64) + pl.lit(1, pl.UInt64)) * golden
    z = (z ^ _shifted(z, 30)) * pl.lit(0xBF58476D1CE4E5B9, pl.UInt64)
    z = (z ^ _shifted(z, 27)) * pl.lit(0x94D049BB133111EB, pl.UInt64)
    return z ^ _shifted(z, 31)


def _shifted(z: pl.Expr, bits: int) -> pl.Expr:
    return z // pl.lit(1 << bits, pl.UInt64)
