"""Pure: the two readings of answers: what each could read, where they agree, and whether marks can be given.

The reference reading equals the published code of a probe. The careful reading removes reasoning first and gives no
label in doubt. Each has its own metrics and marks; the names of the careful metrics begin with `careful_`.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import LabelledAnswers, label_expression
from batchbench.analyze.missing import Group
from batchbench.probes.kit.probe import Params, Probe

CAREFUL = "careful_"  # prefix of the careful metrics
MIN_READABLE = 0.90  # a smaller share of readable answers gives no marks
MIN_READABLE_IN_GROUP = 0.80  # the same, in any compared group
MAX_SILENT = 0.05  # a larger share of answers that are unreadable, cut off, or read in two ways gives a note
NO_MARK = "–"

Kind = Literal["reference", "careful"]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One way to read answers, and how many answers it could read."""

    kind: Kind
    name: str  # of the published code and its version, or of the careful reading's version
    sha256: str  # of its expressions; the same for the same code and version of polars
    attempts: int
    readable: int
    no_mark: str | None = None  # why its metrics have no marks; None if enough answers are readable


class GroupAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """The number of answers in one group, and how many of them both readings label alike."""

    stratum: str
    group: str
    answers: int
    agreeing: int


class LabelPair(msgspec.Struct, frozen=True, kw_only=True):
    """The number of answers in one group with these two labels; None means unreadable."""

    stratum: str
    group: str
    reference: str | None
    careful: str | None
    answers: int


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that both readings label alike: overall, by group, and by pair of labels."""

    answers: int
    agreeing: int
    groups: list[GroupAgreement]
    pairs: list[LabelPair]

    @property
    def low(self) -> bool:
        """Whether the readings differ on so many answers that a person has to look at both."""
        return self.answers - self.agreeing > MAX_SILENT * self.answers


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """Answers whose text contains the model's reasoning."""

    closed: int = 0
    unclosed: int = 0  # the text ends within the reasoning
    differing: int | None = None  # those that the readings label differently; None if there is only one reading


def kinds(probe: Probe[Params]) -> tuple[Kind, ...]:
    """The readings of a probe; a probe without careful expressions has only one."""
    return ("reference",) if probe.careful is None else ("reference", "careful")


def prefix(kind: Kind) -> str:
    """What the names of a reading's metrics begin with."""
    return CAREFUL if kind == "careful" else ""


def read_by(kind: Kind, probe: Probe[Params], labelled: LabelledAnswers) -> tuple[Probe[Params], LabelledAnswers]:
    """The probe and the answers as one reading has them: its labels in `label`, its metrics in `metrics`."""
    if kind == "reference":
        return probe, labelled
    answers = labelled.answers.with_columns(label="careful")
    careful = msgspec.structs.replace(probe, metrics=probe.careful_metrics or probe.metrics)
    return careful, msgspec.structs.replace(labelled, answers=answers)


def describe(kind: Kind, probe: Probe[Params], counts: pl.DataFrame, groups: Sequence[Group]) -> Reading:
    """The identity of a reading, what it could read, and whether that is enough for marks."""
    column = "label" if kind == "reference" else "careful"
    received = counts.filter(pl.col("outcome") != "failed")
    attempts = int(received["len"].sum())
    readable = int(received.filter(pl.col(column).is_not_null())["len"].sum())
    name = probe.reference if kind == "reference" else f"version {probe.careful_version}"
    reference = (*probe.steps, {"label": label_expression(probe)})
    reason = _too_few("", readable, attempts, MIN_READABLE)
    for group in groups:
        within = group.asked - group.absent - group.failed
        unreadable = group.undetected if kind == "reference" else group.careful_undetected
        where = f" for {group.stratum} = {group.group}"
        reason = reason or _too_few(where, within - unreadable, within, MIN_READABLE_IN_GROUP)
    return Reading(
        kind=kind,
        name=name,
        sha256=_digest(reference if kind == "reference" else probe.careful_reading(probe.params())),
        attempts=attempts,
        readable=readable,
        no_mark=reason,
    )


def _digest(steps: Sequence[Mapping[str, pl.Expr]]) -> str:
    digest = hashlib.sha256()
    for step in steps:
        for name, expression in step.items():
            digest.update(name.encode() + b"\0" + expression.meta.serialize())
    return digest.hexdigest()


def _too_few(where: str, readable: int, attempts: int, needed: float) -> str | None:
    if readable >= needed * attempts:
        return None
    return f"{percent(readable, attempts)} of the answers{where} are readable, {percent(needed)} are needed"


def percent(part: float, whole: float = 1.0) -> str:
    """A share with one decimal, rounded down, so that a share below a limit never looks equal to it."""
    return f"{math.floor(1000 * part / whole + 1e-9) / 10:g} %"


def agreement(probe: Probe[Params], counts: pl.DataFrame) -> Agreement | None:
    """Where the two readings agree; None if there is only one."""
    if probe.careful is None:
        return None
    received = counts.filter(pl.col("outcome") != "failed").with_columns(
        same=pl.col("label").eq_missing(pl.col("careful"))
    )
    number, agreeing = pl.col("len").sum(), pl.col("len").filter("same").sum()
    groups: list[GroupAgreement] = []
    pairs: list[LabelPair] = []
    for stratum in probe.strata:
        own = received.group_by(stratum).agg(number.alias("answers"), agreeing=agreeing).sort(stratum)
        groups += [
            GroupAgreement(stratum=stratum, group=str(row[0]), answers=row[1], agreeing=row[2]) for row in own.rows()
        ]
        cross = received.group_by(stratum, "label", "careful").agg(number).sort(stratum, "label", "careful")
        pairs += [
            LabelPair(stratum=stratum, group=str(row[0]), reference=row[1], careful=row[2], answers=row[3])
            for row in cross.rows()
        ]
    return Agreement(
        answers=int(received["len"].sum()),
        agreeing=int(received.filter("same")["len"].sum()),
        groups=groups,
        pairs=pairs,
    )


def count_reasoning(probe: Probe[Params], counts: pl.DataFrame) -> Reasoning:
    """How many answers contain reasoning, and how many of them the readings label differently."""
    found = {kind: counts.filter(pl.col("reasoning") == kind) for kind in ("closed", "unclosed")}
    differing = pl.concat(found.values()).filter(pl.col("label").ne_missing(pl.col("careful")))
    return Reasoning(
        **{kind: int(rows["len"].sum()) for kind, rows in found.items()},
        differing=None if probe.careful is None else int(differing["len"].sum()),
    )


def shown_marks(marked: Sequence[str], marks: Mapping[str, str | None], readings: Sequence[Reading]) -> dict[str, str]:
    """The marks of the metrics `marked` as every output shows them: `A`, or `A / D` if the readings differ."""
    shown: dict[str, str] = {}
    for metric in marked:
        names = [name for reading in readings if (name := f"{prefix(reading.kind)}{metric}") in marks]
        letters = [marks[name] or NO_MARK for name in names]
        text = " / ".join(letters if len(set(letters)) > 1 else letters[:1])
        shown |= dict.fromkeys(names, text)
    return shown


def notes(
    readings: Sequence[Reading], agreed: Agreement | None, shown: Mapping[str, str], reasoning: Reasoning
) -> list[str]:
    """What a person must know before using the marks."""
    found = []
    for reading in readings:
        whose = f"{reading.kind} reading: " if len(readings) > 1 else ""
        unread = reading.attempts - reading.readable
        if reading.no_mark and shown:
            found.append(f"{whose}no mark: {reading.no_mark}")
        elif unread > MAX_SILENT * reading.attempts:
            found.append(f"{whose}{percent(unread, reading.attempts)} of the answers are not readable")
    differing = [f"{name} {text}" for name, text in shown.items() if "/" in text and not name.startswith(CAREFUL)]
    if differing:
        found.append(f"the marks of the two readings differ (reference / careful): {', '.join(differing)}")
    if agreed and agreed.low:
        found.append(
            f"the two readings agree on {percent(agreed.agreeing, agreed.answers)} of the answers: compare each "
            f"metric with its {CAREFUL} form, and look at the sample answers"
        )
    if number := reasoning.closed + reasoning.unclosed:
        parts = f"{reasoning.closed:,} closed, {reasoning.unclosed:,} unclosed"
        differ = "" if reasoning.differing is None else f"; the readings differ on {reasoning.differing:,} of them"
        found.append(f"{number:,} answers contain reasoning ({parts}){differ}")
    return found


def cut_off_notes(counts: pl.DataFrame) -> list[str]:
    """A note if many answers are cut off or empty; an answer that ends within its reasoning is cut off."""
    received = counts.filter(pl.col("outcome") != "failed")
    cut = received.filter(pl.col("outcome").is_in(["truncated", "empty"]) | (pl.col("reasoning") == "unclosed"))
    number, attempts = int(cut["len"].sum()), int(received["len"].sum())
    if number <= MAX_SILENT * attempts:
        return []
    return [f"{percent(number, attempts)} of the answers are cut off or empty: ask with a larger --max-tokens"]
