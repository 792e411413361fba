"""Pure: answers that are missing, as data: how many of which kind in every compared group."""

from typing import Literal, get_args

import msgspec
import polars as pl

from batchbench.analyze.sample import Sample, at
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.answers import OUTCOMES
from batchbench.stats import marks

Kind = Literal["refused", "filtered", "truncated", "failed", "undetected", "absent"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the attempts of one group; all but `undetected` add up to `asked`."""

    stratum: str
    group: str
    asked: int
    answered: int
    refused: int
    filtered: int
    truncated: int
    failed: int
    absent: int  # has not come back
    undetected: int  # came back, but nothing could be read from it


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a kind of missing answer differs between the groups of a stratum more than chance would have it."""

    stratum: str
    kind: Kind
    chi_square: float
    freedom: int
    p: float


def missing(probe: Probe[Params], sample: Sample) -> tuple[list[Group], list[Imbalance]]:
    """What became of each group's attempts, and whether that differs between groups by more than chance."""
    strata = [name for name in probe.strata if name != probe.inner]
    inner = [probe.inner] if probe.inner else []
    rows = sample.attempts.select("item", "outcome", *inner, undetected=_undetected())
    counts = (
        rows.hstack(at(sample.design.select(strata), rows["item"]))
        .group_by(*probe.strata, "outcome", "undetected")
        .len()
    )
    items = max(1, sample.attempts["item"].n_unique())
    groups: list[Group] = []
    imbalances: list[Imbalance] = []
    for stratum in probe.strata:
        found = _groups(stratum, counts, sample.asked)
        groups += found
        values = len(found) if stratum == probe.inner else 1
        repeats = max(1.0, sample.attempts.height / (items * max(1, values)))
        for kind in KINDS:
            hits = [getattr(group, kind) for group in found]
            totals = [group.asked for group in found]
            if kind == "undetected":  # can only be seen on what has come back
                totals = [group.asked - group.absent - group.failed for group in found]
            statistic, freedom, p = marks.chi_square(hits, totals, repeats)
            imbalances.append(Imbalance(stratum=stratum, kind=kind, chi_square=statistic, freedom=freedom, p=p))
    return groups, imbalances


def _undetected() -> pl.Expr:
    return pl.col("label").is_null() & (pl.col("outcome") != "failed")


def _groups(stratum: str, counts: pl.DataFrame, asked: pl.DataFrame) -> list[Group]:
    back = counts.group_by(stratum).agg(
        *(pl.col("len").filter(pl.col("outcome") == outcome).sum().alias(outcome) for outcome in OUTCOMES),
        pl.col("len").filter("undetected").sum().alias("undetected"),
    )
    table = asked.group_by(stratum).agg(pl.col("asked").sum()).join(back, on=stratum, how="left").sort(stratum)
    rows = table.with_columns(pl.col(stratum).cast(pl.String), pl.exclude(stratum).fill_null(0)).rows(named=True)
    return [
        Group(
            stratum=stratum,
            group=row.pop(stratum),
            absent=row["asked"] - sum(row[outcome] for outcome in OUTCOMES),
            **row,
        )
        for row in rows
    ]
