"""Pure: outcome counts for each group of each stratum, and tests whether the groups differ."""

from typing import Literal, get_args

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import LabelledAnswers, gather_columns
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.results import OUTCOMES
from batchbench.stats.significance import chi_square

Kind = Literal["refused", "filtered", "truncated", "failed", "undetected", "absent"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome counts for the requests of one group; all counts except `undetected` add up to `asked`."""

    stratum: str
    group: str
    asked: int
    answered: int
    refused: int
    filtered: int
    truncated: int
    failed: int
    absent: int  # not received
    undetected: int  # received, but without a label


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """A chi-square test: does this kind of missing answer differ between the groups of a stratum?"""

    stratum: str
    kind: Kind
    chi_square: float
    freedom: int
    p: float


def count_missing(probe: Probe[Params], labelled: LabelledAnswers) -> tuple[list[Group], list[Imbalance]]:
    """Outcome counts of every group, and a test for every stratum and kind of missing answer."""
    strata = [name for name in probe.strata if name != probe.inner]
    inner = [probe.inner] if probe.inner else []
    undetected = pl.col("label").is_null() & (pl.col("outcome") != "failed")
    rows = labelled.answers.select("item", "outcome", *inner, undetected=undetected)
    counts = (
        rows.hstack(gather_columns(labelled.design.select(strata), rows["item"]))
        .group_by(*probe.strata, "outcome", "undetected")
        .len()
    )
    items = max(1, labelled.answers["item"].n_unique())
    groups: list[Group] = []
    imbalances: list[Imbalance] = []
    for stratum in probe.strata:
        own = _groups(stratum, counts, labelled.asked)
        groups += own
        values = len(own) if stratum == probe.inner else 1
        repeats = max(1.0, labelled.answers.height / (items * max(1, values)))
        for kind in KINDS:
            hits = [getattr(group, kind) for group in own]
            totals = [group.asked for group in own]
            if kind == "undetected":  # only a received answer can be undetected
                totals = [group.asked - group.absent - group.failed for group in own]
            statistic, freedom, p = chi_square(hits, totals, repeats)
            imbalances.append(Imbalance(stratum=stratum, kind=kind, chi_square=statistic, freedom=freedom, p=p))
    return groups, imbalances


def _groups(stratum: str, counts: pl.DataFrame, asked: pl.DataFrame) -> list[Group]:
    received = counts.group_by(stratum).agg(
        *(pl.col("len").filter(pl.col("outcome") == outcome).sum().alias(outcome) for outcome in OUTCOMES),
        pl.col("len").filter("undetected").sum().alias("undetected"),
    )
    table = asked.group_by(stratum).agg(pl.col("asked").sum()).join(received, on=stratum, how="left").sort(stratum)
    rows = table.with_columns(pl.col(stratum).cast(pl.String), pl.exclude(stratum).fill_null(0)).rows(named=True)
    return [
        Group(stratum=stratum, group=row.pop(stratum), absent=row["asked"] - sum(row[name] for name in OUTCOMES), **row)
        for row in rows
    ]
