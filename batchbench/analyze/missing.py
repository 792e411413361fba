"""Pure: counts of answers, outcome counts for each group of each stratum, and tests whether the groups differ."""

from typing import Literal, get_args

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import LabelledAnswers, gather_columns
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.results import OUTCOMES
from batchbench.stats.significance import chi_square

Kind = Literal["refused", "filtered", "truncated", "empty", "failed", "undetected", "absent", "careful_undetected"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome counts for the requests of one group; all counts except the undetected ones add up to `asked`."""

    stratum: str
    group: str
    asked: int
    answered: int
    refused: int
    filtered: int
    truncated: int
    failed: int
    empty: int = 0  # a reply without text
    absent: int  # not received
    undetected: int  # received, but without a label
    careful_undetected: int = 0  # the same, by the careful reading


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """A chi-square test: does this kind of missing answer differ between the groups of a stratum?"""

    stratum: str
    kind: Kind
    chi_square: float
    freedom: int
    p: float


def count_answers(probe: Probe[Params], labelled: LabelledAnswers) -> pl.DataFrame:
    """The number of answers (`len`) with equal groups, outcome, labels and reasoning."""
    strata = [name for name in probe.strata if name != probe.inner]
    inner = [probe.inner] if probe.inner else []
    rows = labelled.answers.select("item", "outcome", "label", "careful", "reasoning", *inner)
    grouped = rows.hstack(gather_columns(labelled.design.select(strata), rows["item"]))
    counts = grouped.group_by(*probe.strata, "outcome", "label", "careful", "reasoning").len()
    return counts.with_columns(pl.col("label", "careful", "reasoning").cast(pl.String))


def count_missing(
    probe: Probe[Params], labelled: LabelledAnswers, counts: pl.DataFrame
) -> tuple[list[Group], list[Imbalance]]:
    """Outcome counts of every group, and a test for every stratum and kind of missing answer.

    `counts` is the table of `count_answers`.
    """
    tested = [kind for kind in KINDS if kind != "careful_undetected" or probe.careful is not None]
    items = max(1, labelled.answers["item"].n_unique())
    groups: list[Group] = []
    imbalances: list[Imbalance] = []
    for stratum in probe.strata:
        own = _groups(stratum, counts, labelled.asked)
        groups += own
        values = len(own) if stratum == probe.inner else 1
        repeats = max(1.0, labelled.answers.height / (items * max(1, values)))
        for kind in tested:
            hits = [getattr(group, kind) for group in own]
            totals = [group.asked for group in own]
            if kind.endswith("undetected"):  # only a received answer can be undetected
                totals = [group.asked - group.absent - group.failed for group in own]
            statistic, freedom, p = chi_square(hits, totals, repeats)
            imbalances.append(Imbalance(stratum=stratum, kind=kind, chi_square=statistic, freedom=freedom, p=p))
    return groups, imbalances


def _groups(stratum: str, counts: pl.DataFrame, asked: pl.DataFrame) -> list[Group]:
    attempt = pl.col("outcome") != "failed"
    received = counts.group_by(stratum).agg(
        *(pl.col("len").filter(pl.col("outcome") == outcome).sum().alias(outcome) for outcome in OUTCOMES),
        undetected=pl.col("len").filter(attempt & pl.col("label").is_null()).sum(),
        careful_undetected=pl.col("len").filter(attempt & pl.col("careful").is_null()).sum(),
    )
    table = asked.group_by(stratum).agg(pl.col("asked").sum()).join(received, on=stratum, how="left").sort(stratum)
    rows = table.with_columns(pl.col(stratum).cast(pl.String), pl.exclude(stratum).fill_null(0)).rows(named=True)
    return [
        Group(stratum=stratum, group=row.pop(stratum), absent=row["asked"] - sum(row[name] for name in OUTCOMES), **row)
        for row in rows
    ]
