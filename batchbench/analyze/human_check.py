"""How good the readings are: a sample of answers for people to label, and each reading compared with their labels.

A reading is right if it gives the label of a person. It misses an answer that a person can read if it gives no label,
and misreads it if it gives another label. Where a person says `none` or `ambiguous`, it is right without a label.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import polars as pl

from batchbench.core.store import Store, content
from batchbench.errors import DataError
from batchbench.probes import load_probe
from batchbench.probes.kit.templates import hashed
from batchbench.stats.stratified import Share, allocate, kappa, share
from batchbench.stats.stratified import Stratum as Drawn

FORMAT = 1  # of human_check.json and of the files in checks/
NOTHING_CHOSEN = ("none", "ambiguous")  # labels of people for an answer that must not be read
READINGS: tuple["Reading", ...] = ("reference", "careful")
PER_STRATUM = 4  # drawn answers on average, at least
EXTRA = 2.0  # how much more often answers are drawn that the readings do not agree on or do not read
BOTH = "both annotators"
METHOD = (
    "stratified sample without replacement; shares are weighted to the run; 95 % intervals of a score test with the "
    "most likely shares of the strata; interval of kappa: that of the agreement, at the estimated chance agreement"
)
Reading = Literal["reference", "careful"]
Pair = tuple[str | None, str | None]  # the reference label and the careful label of an answer
CustomId = Annotated[str, msgspec.Meta(pattern=r"\A[^-\s]+-\d{1,9}-\d{1,5}\Z")]
Labels = Mapping[str, str]  # custom id -> label of a person
T = TypeVar("T", "Sample", "HumanCheck")


class Stratum(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of the run with the same two labels, or with one of several pairs of labels."""

    pairs: list[Pair]
    answers: int
    drawn: list[CustomId]

    def __post_init__(self) -> None:
        if not 0 < len(set(self.drawn)) == len(self.drawn) <= self.answers:
            raise ValueError("a stratum has fewer answers than were drawn from it")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that people are asked to label; in the run's folder as checks/DIGEST.json.

    It is kept because later answers and later versions of the readings change the strata, but not this sample.
    """

    format: int = FORMAT
    probe: str
    run: str  # the id in the run's journal
    size: int  # as asked for
    seed: int
    stored: int  # answers in the run at that time
    rereads: int = 0  # how often its lines had been read again by then
    without_text: int  # answers that are not in the population, because there is nothing to read
    strata: list[Stratum]

    @property
    def population(self) -> int:
        """How many answers the sample represents."""
        return sum(stratum.answers for stratum in self.strata)

    @property
    def ids(self) -> list[str]:
        """The custom ids of the drawn answers, by stratum."""
        return [custom_id for stratum in self.strata for custom_id in stratum.drawn]


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How often two labels occur together; None: no label."""

    truth: str
    read: str | None
    answers: int  # in the sample
    share: float  # in the run, estimated


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One reading compared with people's labels."""

    reading: Reading
    truth: str  # the file with the labels, or BOTH: answers that both annotators label alike
    answers: int
    right: Share
    missed: Share
    misread: Share
    table: list[Count]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two annotators agree."""

    answers: int  # that both have labelled
    equal: int
    agreement: Share  # in the run, estimated
    chance: float  # agreement of independent annotators with the same frequencies of labels
    kappa: Share | None  # Cohen's; None if every label is the same
    table: list[Count]  # `truth` is the first annotator, `read` the second


class CheckedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with labels of one person."""

    file: str
    sha256: str
    labelled: int


class HumanCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Human labels compared with both readings; in the run's folder as human_check.json."""

    format: int = FORMAT
    probe: str
    model: str
    stamps: list[str] = []
    version: int  # of the probe
    careful_version: int
    run: str
    rereads: int = 0  # how often the lines of the run had been read again by then
    population: int
    drawn: int
    seed: int
    files: list[CheckedFile]
    accuracies: list[Accuracy]
    agreement: Agreement | None = None
    notes: list[str] = []
    method: str = METHOD

    @property
    def best(self) -> list[Accuracy]:
        """The accuracy of each reading to show first: on answers that both annotators label alike, if there are two."""
        return self.accuracies[-len(READINGS) :]


def draw(answers: pl.DataFrame, size: int, seed: int) -> list[tuple[list[Pair], int, pl.DataFrame]]:
    """Draw answers by stratum: its pairs of labels, its number of answers, and `id` and `rep` of the drawn ones.

    `answers` has id, rep, label and careful. The drawn ones depend on this set and the seed, not on the order of rows.
    """
    pairs = answers.group_by("label", "careful").len().sort("label", "careful", nulls_last=True)
    strata = merge([([(label, careful)], count) for label, careful, count in pairs.rows()], max(1, size // PER_STRATUM))
    numbers = allocate([count for _, count in strata], [_factor(own) for own, _ in strata], size)
    keyed = answers.with_columns(key=_key(seed))
    drawn = []
    for (own, count), number in zip(strata, numbers, strict=True):
        inside = pl.any_horizontal(
            pl.col("label").eq_missing(pl.lit(label)) & pl.col("careful").eq_missing(pl.lit(careful))
            for label, careful in own
        )
        drawn.append((own, count, keyed.filter(inside).bottom_k(number, by="key").sort("key").select("id", "rep")))
    return drawn


def _key(seed: int) -> pl.Expr:
    """A random number for each answer; those with the smallest numbers are drawn."""
    packed = pl.col("id").cast(pl.UInt64) * (1 << 16) + pl.col("rep").cast(pl.UInt64)
    return hashed(hashed(pl.lit(seed, pl.UInt64)) ^ packed)


def shuffled(drawn: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Drawn answers in an order that does not depend on their strata."""
    return drawn.sort(hashed(_key(seed)))


def merge(strata: list[tuple[list[Pair], int]], most: int) -> list[tuple[list[Pair], int]]:
    """Merge small strata until there are at most `most`: the smallest with the smallest of its kind, if possible."""
    strata = sorted(strata, key=lambda stratum: stratum[1])
    while len(strata) > most:
        (pairs, count), *others = strata
        alike = next((other for other in others if _kind(other[0][0]) == _kind(pairs[0])), others[0])
        others.remove(alike)
        strata = sorted([*others, (pairs + alike[0], count + alike[1])], key=lambda stratum: stratum[1])
    return strata


def _kind(pair: Pair) -> str:
    match pair:
        case None, None:
            return "neither reads it"
        case (None, _) | (_, None):
            return "one reads it"
        case reference, careful:
            return "agree" if reference == careful else "differ"


def _factor(pairs: list[Pair]) -> float:
    return 1.0 if all(_kind(pair) == "agree" for pair in pairs) else EXTRA


def evaluate(
    sample: Sample, read: Mapping[str, Pair], checked: Sequence[tuple[CheckedFile, Labels]]
) -> tuple[list[Accuracy], Agreement | None]:
    """The accuracy of both readings by each file of labels; for two files, their agreement and what both agree on."""
    accuracies = []
    for file, labels in checked:
        drawn = [[custom_id for custom_id in stratum.drawn if custom_id in labels] for stratum in sample.strata]
        accuracies += _accuracies(sample, drawn, labels, read, file.file)
    if len(checked) == 1:
        return accuracies, None
    (_, first), (_, second) = checked
    drawn = [[one for one in stratum.drawn if one in first and one in second] for stratum in sample.strata]
    alike = {one: label for one, label in first.items() if second.get(one) == label}
    agreement = _agreement(sample, drawn, first, second)
    return accuracies + _accuracies(sample, drawn, alike, read, BOTH), agreement


def _accuracies(
    sample: Sample, drawn: list[list[str]], truth: Labels, read: Mapping[str, Pair], name: str
) -> list[Accuracy]:
    found = []
    for place, reading in enumerate(READINGS):
        labels = {one: read[one][place] for one in truth}
        verdicts = {one: verdict(truth[one], labels[one]) for one in truth}
        shares = {
            kind: share(
                [_stratum(stratum, own, verdicts, kind) for stratum, own in zip(sample.strata, drawn, strict=True)]
            )
            for kind in ("right", "missed", "misread")
        }
        known = {kind: value for kind, value in shares.items() if value is not None}
        if len(known) == len(shares):
            table = _table(sample, drawn, truth, labels)
            found.append(Accuracy(reading=reading, truth=name, answers=len(truth), table=table, **known))
    return found


def verdict(truth: str, read: str | None) -> str:
    """Whether a reading is right, given the label of a person."""
    if read is None:
        return "right" if truth in NOTHING_CHOSEN else "missed"
    return "right" if read == truth else "misread"


def _stratum(stratum: Stratum, drawn: list[str], found: Mapping[str, str], hit: str) -> Drawn:
    counted = [found[one] for one in drawn if one in found]
    return Drawn(stratum.answers, len(drawn), len(counted), counted.count(hit))


def _agreement(sample: Sample, drawn: list[list[str]], first: Labels, second: Labels) -> Agreement | None:
    equal = {one: str(first[one] == second[one]) for own in drawn for one in own}
    agreement = share(
        [_stratum(stratum, own, equal, "True") for stratum, own in zip(sample.strata, drawn, strict=True)]
    )
    if agreement is None:
        return None
    table = _table(sample, drawn, first, second)
    chance = sum(one.share * other.share for one in table for other in table if one.truth == other.read)
    return Agreement(
        answers=len(equal),
        equal=list(equal.values()).count("True"),
        agreement=agreement,
        chance=chance,
        kappa=kappa(agreement, chance),
        table=table,
    )


def _table(sample: Sample, drawn: list[list[str]], truth: Labels, read: Mapping[str, str | None]) -> list[Count]:
    """How often each pair of labels occurs; answers without a label of both are left out."""
    weights: dict[tuple[str, str | None], list[float]] = {}
    for stratum, own in zip(sample.strata, drawn, strict=True):
        for one in own:
            if one in truth and one in read:
                weights.setdefault((truth[one], read[one]), []).append(stratum.answers / len(own))
    total = sum(map(sum, weights.values()))
    order = sorted(weights, key=lambda pair: (pair[0], pair[1] or "~"))
    return [
        Count(truth=pair[0], read=pair[1], answers=len(weights[pair]), share=sum(weights[pair]) / total)
        for pair in order
    ]


def write_sample(sample: Sample, folder: Path, store: Store) -> Path:
    """Keep a sample in the folder of its run, under its digest."""
    text = msgspec.json.format(msgspec.json.encode(sample), indent=1)
    path = folder / "checks" / f"{hashlib.sha256(text).hexdigest()[:8]}.json"
    store.write(path, text)
    return path


def read_samples(folder: Path) -> list[Sample]:
    """The samples that were drawn from the run in a folder."""
    return [_read(path, Sample) for path in sorted((folder / "checks").glob("*.json"))]


def write_human_check(check: HumanCheck, folder: Path, store: Store) -> Path:
    """Keep the result in the folder of the run, in place of an earlier one."""
    path = folder / "human_check.json"
    store.write(path, msgspec.json.format(msgspec.json.encode(check), indent=1))
    return path


def read_human_check(folder: Path) -> HumanCheck | None:
    """The result in the folder of a run; None if its readings were not checked."""
    path = folder / "human_check.json"
    return _read(path, HumanCheck) if path.is_file() else None


def _read(path: Path, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(content(path), type=kind)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): restore it from a backup, or delete it") from None
    if found.format != FORMAT:
        raise DataError(f"{path} does not have format {FORMAT}: use the version of batchbench that wrote it")
    return found


def sentences(check: HumanCheck, rereads: int) -> list[str]:
    """The result in a few sentences, for other outputs about the run, whose lines were read again `rereads` times."""
    if check.rereads != rereads:
        return ["answers were read again since the human check: pass the same files to --checked again"]
    versions = load_probe(check.probe)
    if (check.version, check.careful_version) != (versions.version, versions.careful_version):
        return ["a human check was made of another version of the readings: pass the same files to --checked again"]
    found = [
        f"human check, {one.answers:,} answers ({one.truth}): the {one.reading} reading is right on "
        f"{percent(one.right)} of the answers, misses {percent(one.missed)}, misreads {percent(one.misread)}"
        for one in check.best
    ]
    if check.agreement and check.agreement.kappa:
        value = check.agreement.kappa
        found.append(f"two annotators: Cohen's kappa {value.estimate:.2f} ({value.low:.2f} … {value.high:.2f})")
    return found


def percent(value: Share) -> str:
    """A share with its interval, as text."""
    return f"{value.estimate:.1%} ({value.low:.1%} … {value.high:.1%})"
