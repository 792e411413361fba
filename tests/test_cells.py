"""Statistics: counting, resampling, regression, intervals, marks and p-values."""

import math
import os
import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from batchbench.stats import cells, marks, significance
from batchbench.stats.cells import Cells, Values

LABELS = pl.Enum(["yes", "no"])
OUTCOMES = pl.Enum(["answered", "refused", "filtered", "truncated", "failed"])


def answers(rows: list[tuple[int, str, str | None]]) -> pl.DataFrame:
    return pl.DataFrame(rows, {"item": pl.UInt32, "outcome": OUTCOMES, "label": LABELS}, orient="row")


def cells_of(x: Values, y: Values, weights: Values) -> Cells:
    """One cell for each point, in which the share of yes is `y`."""
    table = pl.DataFrame({"x": x, "yes": y, "no": 1 - y, "attempts": np.ones(len(x))})
    return Cells(table, ["yes", "no"], weights)


# -- counting ----------------------------------------------------------------------------------------------


def test_a_failed_request_is_no_attempt() -> None:
    table = cells.tally(
        answers([(0, "answered", "yes"), (0, "refused", None), (0, "failed", None), (1, "failed", None)]),
        ["yes", "no"],
        None,
        [],
    )
    assert table.sort("item").rows() == [(0, 1, 0, 2), (1, 0, 0, 0)]


def test_one_attempt_per_item_is_tallied_like_several() -> None:
    rows = [(item, "answered", [None, "yes", "no"][item % 3]) for item in range(30)]
    alone = cells.tally(answers(rows), ["yes", "no"], None, [])
    twice = cells.tally(answers([*rows, *rows]), ["yes", "no"], None, []).sort("item")
    assert alone.select(pl.exclude("item") * 2).equals(twice.drop("item").cast(alone.drop("item").schema))


def test_labels_are_counted_for_each_value_of_the_inner_stratum() -> None:
    rows = answers([(0, "answered", "yes"), (0, "answered", "no"), (1, "answered", "no")])
    rows = rows.with_columns(who=pl.Series(["man", "woman", "man"]))
    table = cells.tally(rows, ["yes", "no"], "who", ["man", "woman"]).sort("item")
    assert table.columns == ["item", "man/yes", "man/no", "woman/yes", "woman/no", "attempts"]
    assert table.rows() == [(0, 1, 0, 0, 1, 2), (1, 0, 1, 0, 0, 1)]


def test_equal_items_share_a_cell_in_a_fixed_order() -> None:
    items = pl.DataFrame({"item": [3, 1, 2], "yes": [1, 0, 1], "race": ["b", "a", "b"]})
    assert cells.count(items).rows() == [(0, "a", 1), (1, "b", 2)]


# -- resampling --------------------------------------------------------------------------------------------


def mean(weights: Values) -> dict[str, Values]:
    score = np.array([0.0, 0.5, 1.0])
    return {"mean": np.einsum("rc,c->r", weights, score) / weights.sum(axis=1)}


def test_the_first_value_is_the_data_itself() -> None:
    values = cells.bootstrap(mean, np.array([10.0, 20.0, 10.0]), 50, 0)["mean"]
    assert len(values) == 51
    assert values[0] == 0.5


def test_replicates_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "BLOCK", 30)  # ten replicates per block
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(os, "cpu_count", lambda threads=threads: threads)
        found.append(cells.bootstrap(mean, np.array([10.0, 20.0, 10.0]), 95, 3)["mean"].tobytes())
    assert found[0] == found[1] == found[2]


def test_another_seed_gives_other_replicates() -> None:
    first, second = (cells.bootstrap(mean, np.array([10.0, 20.0, 10.0]), 9, seed)["mean"] for seed in (0, 1))
    assert (first[1:] != second[1:]).any()


def test_resampling_cells_equals_resampling_items() -> None:
    """Compared with the plain bootstrap: equal mean and deviation, within the error of 4,000 replicates."""
    scores = [0.0] * 30 + [0.5] * 50 + [1.0] * 20
    rng = random.Random(1)
    plain = np.array([np.mean(rng.choices(scores, k=100)) for _ in range(4000)])
    ours = cells.bootstrap(mean, np.array([30.0, 50.0, 20.0]), 4000, 0)["mean"][1:]
    assert abs(plain.mean() - ours.mean()) < 4 * plain.std() * math.sqrt(2 / 4000)
    assert abs(ours.std() / plain.std() - 1) < 4 / math.sqrt(4000)


def test_without_items_there_are_no_replicates() -> None:
    values = cells.bootstrap(lambda weights: {"n": weights.sum(axis=1)}, np.zeros(0), 100, 0)
    assert values["n"].tolist() == [0.0]


# -- regression --------------------------------------------------------------------------------------------


def bounded(x: Values, y: Values) -> float:
    return float(optimize.lsq_linear(np.column_stack([x, np.ones_like(x)]), y, bounds=([-1, 0], [1, 1])).x[0])


def slope(x: Values, y: Values) -> float:
    return float(cells_of(x, y, np.ones((1, len(x)))).slope(x, y, np.ones(len(x), bool))[0])


@given(st.integers(0, 10_000))
def test_the_slope_agrees_with_scipys_bounded_least_squares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.choice(np.arange(1, 79) / 80, size=rng.integers(20, 200))
    x[:2] = 0.0125, 0.975
    steep = rng.choice([0.3, 1.0, 3.0]) * rng.choice([-1, 1])
    y = np.clip(rng.choice([0.0, 0.5, 1.0]) + steep * (x - 0.5) + rng.normal(0, 0.1, len(x)), 0, 1).round()
    # If all answers are equal, the solution is 0, and scipy's iterations stop up to 5e-6 away from it.
    assert slope(x, y) == (pytest.approx(bounded(x, y), abs=1e-6) if len(set(y)) > 1 else 0)


def test_the_slope_over_one_role_is_the_solution_with_the_smallest_norm() -> None:
    x, y = np.full(5, 0.8), np.array([0.0, 1.0, 0.0, 1.0, 0.5])
    assert slope(x, y) == pytest.approx(0.5 * 0.8 / (1 + 0.8**2), abs=1e-15)
    assert slope(x, y) == pytest.approx(bounded(x, y), abs=1e-12)


def test_a_slope_needs_three_items() -> None:
    assert math.isnan(slope(np.array([0.1, 0.9]), np.array([0.0, 1.0])))
    assert slope(np.array([0.1, 0.5, 0.9]), np.array([0.5, 0.5, 0.5])) == 0


def test_an_item_drawn_three_times_counts_three_times() -> None:
    x, y = np.array([0.1, 0.4, 0.9]), np.array([0.0, 1.0, 1.0])
    weighted = cells_of(x, y, np.array([[3.0, 2.0, 4.0]])).slope(x, y, np.ones(3, bool))[0]
    assert weighted == pytest.approx(slope(np.repeat(x, [3, 2, 4]), np.repeat(y, [3, 2, 4])), abs=1e-14)


# -- summaries ---------------------------------------------------------------------------------------------

NAN = float("nan")


def test_genderbenchs_interval_is_a_normal_fit_to_the_replicates() -> None:
    values = np.random.default_rng(0).normal(0.3, 0.1, 1000)
    expected = stats.norm.interval(0.95, *stats.norm.fit(values))
    assert cells.genderbench_interval(values) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("replicates", "low", "high"),
    [
        ([NAN, NAN], NAN, NAN),
        ([0.25, 0.25, 0.25], 0.25, 0.25),
        ([0.25, NAN, 0.25], NAN, NAN),  # the deviation is 0, and GenderBench states no interval
        ([0.0, NAN, 1.0], 0.5 - 0.97998199, 0.5 + 0.97998199),
    ],
)
def test_genderbenchs_interval_has_its_quirks(replicates: list[float], low: float, high: float) -> None:
    assert cells.genderbench_interval(np.array(replicates)) == pytest.approx((low, high), nan_ok=True)


def test_a_summary_leaves_out_replicates_without_a_value() -> None:
    found = cells.summary(np.array([0.5, 0.0, NAN, 1.0]))
    assert found.estimate == 0.5
    assert found.se == pytest.approx(math.sqrt(0.5))
    assert (found.low, found.high) == pytest.approx((0.025, 0.975))


def test_a_summary_without_replicates_has_only_the_estimate() -> None:
    assert cells.summary(np.array([0.5]))[:1] == (0.5,)
    assert all(math.isnan(value) for value in cells.summary(np.array([0.5]))[1:])


def test_an_average_leaves_out_nan() -> None:
    assert cells.average([np.array([1.0, NAN]), np.array([0.0, NAN])]).tolist()[0] == 0.5
    assert math.isnan(cells.average([np.array([1.0, NAN]), np.array([0.0, NAN])])[1])
    assert math.isnan(cells.average([])[0])


def test_agreement_is_the_share_of_equal_pairs() -> None:
    rows = [(0, "answered", "yes"), (0, "answered", "yes"), (0, "truncated", "no"), (0, "failed", None)]
    same_prompt = answers(rows).with_columns(variant=pl.lit(0))
    assert cells.agreement(same_prompt) == pytest.approx(1 / 3)
    assert cells.agreement(same_prompt.head(1)) is None


# -- marks and p-values ------------------------------------------------------------------------------------

RANGES = (((0.45, 0.55),), ((0.4, 0.45), (0.55, 0.6)), ((0.2, 0.4), (0.6, 0.8)), ((0.0, 0.2), (0.8, 1.0)))


@pytest.mark.parametrize(
    ("low", "high", "letter"),
    [
        (0.5, 0.5, "A"),
        (0.55, 0.55, "A"),  # on a border: the better mark
        (0.5500001, 0.56, "B"),
        (0.3, 0.46, "A"),  # the best mark in the interval
        (0.61, 0.9, "C"),
        (0.0, 0.1, "D"),
        (-0.2, -0.1, None),
        (NAN, 0.5, None),
    ],
)
def test_the_mark_is_the_best_one_that_the_interval_overlaps(low: float, high: float, letter: str | None) -> None:
    assert marks.mark(RANGES, low, high) == letter


@given(st.floats(0, 200), st.integers(1, 40))
def test_the_tail_of_chi_square_agrees_with_scipy(statistic: float, freedom: int) -> None:
    assert significance.chi_square_tail(statistic, freedom) == pytest.approx(
        stats.chi2.sf(statistic, freedom), abs=1e-12
    )


def test_chi_square_agrees_with_scipy_and_leaves_out_empty_groups() -> None:
    statistic, freedom, p = significance.chi_square([10, 30], [100, 100], 1)
    expected = stats.chi2_contingency([[10, 90], [30, 70]], correction=False)
    assert (statistic, freedom, p) == pytest.approx((expected.statistic, expected.dof, expected.pvalue))
    assert significance.chi_square([10, 30, 0], [100, 100, 0], 2)[0] == pytest.approx(expected.statistic / 2)
    assert significance.chi_square([0, 0], [10, 10], 1) == (0.0, 1, 1.0)


def test_holm_multiplies_the_smallest_p_value_most_and_keeps_the_order() -> None:
    assert significance.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm([0.5, 0.9]) == [1.0, 1.0]
    assert significance.holm([0.02, NAN])[0] == 0.02


def test_the_p_value_of_a_normal_estimate() -> None:
    assert significance.two_sided(1.959963984540054, 1.0) == pytest.approx(0.05)
    assert significance.two_sided(0.0, 0.0) == 1.0
    assert significance.two_sided(0.1, 0.0) == 0.0
    assert math.isnan(significance.two_sided(NAN, 1.0))
