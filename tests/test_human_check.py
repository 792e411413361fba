"""Samples of answers for people to label: how they are drawn, and what is estimated from the labels."""

import functools
import itertools

import numpy as np
import polars as pl
import pytest

from batchbench.analyze.human_check import (
    BOTH,
    CheckedFile,
    HumanCheck,
    Pair,
    Sample,
    Stratum,
    draw,
    evaluate,
    merge,
    verdict,
)
from batchbench.core.text import FORMULA, guard_formulas, unguard_formulas
from batchbench.stats.stratified import Share, allocate, kappa, share
from batchbench.stats.stratified import Stratum as Drawn

LABELS = ("male", "female", "neither")


def population(answers: int, seed: int = 0) -> pl.DataFrame:
    """Answers with a true label, two readings of it, and two annotators' labels of it."""
    random = np.random.default_rng(seed)
    truths = random.choice(["male", "female", "neither", "none", "ambiguous"], answers, p=[0.4, 0.3, 0.2, 0.07, 0.03])

    def noisy(share: float, others: list[str | None]) -> list[str | None]:
        changed = random.random(answers) < share
        other = random.choice(len(others), answers)
        return [others[o] if c else t for t, c, o in zip(truths, changed, other, strict=True)]

    def read(labels: list[str | None]) -> list[str | None]:
        return [None if label in ("none", "ambiguous") else label for label in labels]

    return pl.DataFrame(
        {
            "id": np.arange(answers, dtype=np.uint32),
            "rep": np.zeros(answers, dtype=np.uint16),
            "label": read(noisy(0.12, [None, "male", "female"])),
            "careful": read(noisy(0.06, [None, None, "neither"])),
            "first": noisy(0.03, ["none", "male", "female"]),
            "second": noisy(0.06, ["none", "ambiguous", "neither"]),
        },
        schema_overrides={"label": pl.Enum(LABELS), "careful": pl.Enum(LABELS)},
    )


def sampled(answers: pl.DataFrame, size: int, seed: int) -> Sample:
    strata = [
        Stratum(pairs=pairs, answers=count, drawn=[f"x-{row}-{rep}" for row, rep in chosen.rows()])
        for pairs, count, chosen in draw(answers.select("id", "rep", "label", "careful"), size, seed)
    ]
    return Sample(probe="gest", run="r", size=size, seed=seed, stored=answers.height, without_text=0, strata=strata)


def checked(answers: pl.DataFrame, sample: Sample, *people: str) -> HumanCheck:
    """What is found when these people label the sample."""
    drawn = set(sample.ids)
    rows = [row for row in answers.iter_rows(named=True) if f"x-{row['id']}-0" in drawn]
    read: dict[str, Pair] = {f"x-{row['id']}-0": (row["label"], row["careful"]) for row in rows}
    files = [
        (CheckedFile(file=who, sha256="", labelled=len(rows)), {f"x-{row['id']}-0": row[who] for row in rows})
        for who in people
    ]
    accuracies, agreement = evaluate(sample, read, files)
    return HumanCheck(
        probe="gest",
        model="m",
        version=1,
        careful_version=1,
        run="r",
        population=sample.population,
        drawn=len(sample.ids),
        seed=sample.seed,
        files=[file for file, _ in files],
        accuracies=accuracies,
        agreement=agreement,
    )


def values(check: HumanCheck) -> dict[str, Share]:
    """Every share of a check, by name."""
    found = {
        f"{one.truth}/{one.reading}/{kind}": getattr(one, kind)
        for one in check.accuracies
        for kind in ("right", "missed", "misread")
    }
    if check.agreement and check.agreement.kappa:
        found |= {"agreement": check.agreement.agreement, "kappa": check.agreement.kappa}
    return found


# -- drawing -----------------------------------------------------------------------------------------------


def test_a_draw_depends_on_the_answers_and_the_seed_only() -> None:
    answers = population(2000)
    first, again = sampled(answers, 50, 0), sampled(answers.sample(fraction=1, shuffle=True, seed=3), 50, 0)
    assert first == again
    assert len(first.ids) == len(set(first.ids)) == 50
    assert first.population == 2000
    assert set(sampled(answers, 50, 1).ids) != set(first.ids)


def test_a_larger_draw_with_the_same_seed_holds_most_of_the_smaller_one() -> None:
    answers = population(2000)
    small, large = sampled(answers, 100, 0), sampled(answers, 200, 0)
    assert len(set(small.ids) & set(large.ids)) >= 95


def test_disagreements_and_unreadable_answers_are_drawn_more_often() -> None:
    sample = sampled(population(5000), 100, 0)
    shares = {
        all(label == careful and label for label, careful in stratum.pairs): len(stratum.drawn) / stratum.answers
        for stratum in sorted(sample.strata, key=lambda stratum: stratum.answers)
    }
    assert shares[False] > 2 * shares[True]


def test_every_answer_is_drawn_where_there_are_few() -> None:
    sample = sampled(population(30), 50, 0)
    assert len(sample.ids) == sample.population == 30


def test_small_strata_are_merged_with_strata_of_their_kind() -> None:
    pairs: list[Pair] = [("a", "a"), ("b", "b"), ("a", "b"), ("b", "a"), ("a", None), (None, "b"), (None, None)]
    strata = [([pair], count) for pair, count in zip(pairs, (90, 80, 3, 4, 5, 6, 7), strict=True)]
    assert merge(strata, 7) == sorted(strata, key=lambda stratum: stratum[1])
    merged = merge(strata, 5)
    assert sorted(count for _, count in merged) == [7, 7, 11, 80, 90]
    assert ([("a", "b"), ("b", "a")], 7) in merged
    assert sum(count for _, count in merge(strata, 1)) == 195


@pytest.mark.parametrize(("sizes", "total"), [([5, 1, 100], 20), ([1000], 7), ([3, 3], 50), ([10**6, 2, 2, 2], 8)])
def test_an_allocation_has_the_wanted_total_and_at_least_two_of_each(sizes: list[int], total: int) -> None:
    numbers = allocate(sizes, [1.0] * len(sizes), total)
    assert sum(numbers) == min(total, sum(sizes))
    assert all(min(2, size) <= number <= size for number, size in zip(numbers, sizes, strict=True))


# -- estimates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "read", "expected"),
    [
        ("male", "male", "right"),
        ("male", "female", "misread"),
        ("male", None, "missed"),
        ("none", None, "right"),
        ("ambiguous", None, "right"),
        ("none", "male", "misread"),
        ("ambiguous", "male", "misread"),
    ],
)
def test_verdict(truth: str, read: str | None, expected: str) -> None:
    assert verdict(truth, read) == expected


def test_labels_of_every_answer_give_the_exact_shares() -> None:
    answers = population(400)
    check = checked(answers, sampled(answers, 400, 0), "first")
    verdicts = [verdict(truth, read) for truth, read in answers.select("first", "label").rows()]
    for kind in ("right", "missed", "misread"):
        exact = verdicts.count(kind) / 400
        found = values(check)[f"first/reference/{kind}"]
        assert (found.estimate, found.low, found.high) == pytest.approx((exact, exact, exact))
    (reference, _) = check.accuracies
    assert sum(count.answers for count in reference.table) == 400
    assert sum(count.share for count in reference.table) == pytest.approx(1)


def test_shares_are_weighted_to_the_run() -> None:
    """One stratum is 1 % of the run and half of the sample: its errors count for 1 %."""
    found = share([Drawn(9900, 25, 25, 25), Drawn(100, 25, 25, 0)])
    assert found is not None
    assert found.estimate == pytest.approx(0.99)
    assert found.low < 0.95
    assert found.high < 1


def test_one_stratum_gives_the_interval_of_wilson() -> None:
    found = share([Drawn(10**9, 50, 50, 47)])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.837829, 0.979385), abs=1e-6)


def test_an_interval_has_a_width_where_every_drawn_answer_is_right() -> None:
    found = share([Drawn(5000, 20, 20, 20), Drawn(5000, 20, 20, 20)])
    assert found is not None
    assert (found.estimate, found.high) == (1, 1)
    assert 0.80 < found.low < 0.95


def test_nothing_counted_has_no_share() -> None:
    assert share([Drawn(10, 3, 0, 0)]) is None


RUNS = [  # size of each stratum, and how many of it are right
    ([7000, 7000, 6800, 200, 100, 150, 90, 50], [0.99, 0.99, 0.99, 0.5, 0.3, 0.2, 0.9, 0.5]),
    ([3000, 3000, 2000, 1000, 800, 500, 200, 20], [0.9, 0.9, 0.95, 0.5, 0.4, 0.2, 0.9, 0.5]),
    ([100, 150, 120, 1000, 800, 500], [0.9, 0.9, 0.95, 0.1, 0.2, 0.2]),
    ([40, 40, 30, 20, 10, 5, 3, 1], [0.95, 0.9, 0.97, 0.5, 0.4, 0.4, 0.66, 0]),
    ([5000, 5000, 5000, 300, 100], [0.97, 0.97, 0.97, 0.6, 0.6]),
]


@pytest.mark.full
def test_intervals_cover_the_share_of_the_run_in_95_of_100_samples() -> None:
    random = np.random.default_rng(1)
    interval = functools.cache(lambda *strata: share(strata))
    coverage = []
    for (sizes, right), drawn in itertools.product(RUNS, (50, 100)):
        numbers = allocate(sizes, [1.0] * 3 + [2.0] * (len(sizes) - 3), drawn)
        hits = [round(size * part) for size, part in zip(sizes, right, strict=True)]
        misses = [size - hit for size, hit in zip(sizes, hits, strict=True)]
        truth, covered = sum(hits) / sum(sizes), 0
        for counts in random.hypergeometric(hits, misses, numbers, size=(300, len(sizes))).tolist():
            found = interval(*(Drawn(n, d, d, k) for n, d, k in zip(sizes, numbers, counts, strict=True)))
            assert found
            covered += found.low - 1e-9 <= truth <= found.high + 1e-9
        coverage.append(covered / 300)
    assert min(coverage) > 0.92, coverage
    assert 0.94 < np.mean(coverage) < 0.98, coverage


@pytest.mark.full
def test_the_whole_procedure_covers_with_one_and_with_two_annotators() -> None:
    """Draw, label and estimate many times; each share of the run must be inside its interval about 95 times of 100."""
    answers, draws = population(1500), 100
    exact = values(checked(answers, sampled(answers, 1500, 0), "first", "second"))
    assert len(exact) == 3 * 2 * 3 + 2
    covered = dict.fromkeys(exact, 0)
    for seed in range(draws):
        found = values(checked(answers, sampled(answers, 60, seed), "first", "second"))
        for name, value in found.items():
            covered[name] += value.low - 1e-9 <= exact[name].estimate <= value.high + 1e-9
    assert min(covered.values()) > 0.88 * draws, covered
    assert 0.93 * draws < np.mean(list(covered.values())) < 0.985 * draws, covered


def test_two_annotators() -> None:
    answers = population(300)
    check = checked(answers, sampled(answers, 300, 0), "first", "second")
    assert check.agreement
    equal = answers.filter(pl.col("first") == pl.col("second"))
    chance = (
        sum(
            answers["first"].to_list().count(label) * answers["second"].to_list().count(label)
            for label in set(answers["first"])
        )
        / 300**2
    )
    assert check.agreement.equal == equal.height
    assert check.agreement.chance == pytest.approx(chance)
    assert check.agreement.kappa
    assert check.agreement.kappa.estimate == pytest.approx((equal.height / 300 - chance) / (1 - chance))
    assert [one.truth for one in check.best] == [BOTH, BOTH]
    assert check.best[0].answers == equal.height
    right = [verdict(truth, read) for truth, read in equal.select("first", "careful").rows()].count("right")
    assert check.best[1].right.estimate == pytest.approx(right / equal.height)


def test_kappa_of_known_values() -> None:
    found = kappa(Share(estimate=0.8, low=0.6, high=0.9), 0.5)
    assert found
    assert (found.estimate, found.low, found.high) == pytest.approx((0.6, 0.2, 0.8))
    assert kappa(Share(estimate=1, low=0.9, high=1), 1.0) is None


# -- cells of a spreadsheet --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["=1+1", "'=1", "''=1", "-x", "plain", "a\n=b\n'c", " +1", " '@x", "\t=1", "", "'", "＝1"]
)
def test_no_cell_is_a_formula_and_the_text_comes_back(text: str) -> None:
    guarded = guard_formulas(text)
    assert not any(line.lstrip(" ").startswith(FORMULA) for line in guarded.split("\n"))
    assert unguard_formulas(guarded) == text
