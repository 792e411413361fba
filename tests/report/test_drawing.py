"""Figures and formats: positions, labels that do not overlap, shares of groups."""

import itertools
import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.analyze.analysis import MetricEstimate
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.probe import KeyMetric
from batchbench.report import axis, forest, formats, panels, shares
from batchbench.report.axis import Axis
from batchbench.report.markup import Markup, escaped, tag
from batchbench.report.shares import LabelShare


def estimate(value: float | None, half: float = 0.1) -> MetricEstimate:
    low, high = (None, None) if value is None else (value - half, value + half)
    return MetricEstimate(estimate=value, se=None, low=low, high=high, compat_low=low, compat_high=high, mark=None)


# -- text --------------------------------------------------------------------------------------------------


def test_text_that_is_not_markup_is_escaped() -> None:
    assert tag("b", "<i>", Markup("<i></i>"), title='"') == '<b title="&quot;">&lt;i&gt;<i></i></b>'
    assert escaped("\x1b\u202e&") == "\\x1b\\u202e&amp;"
    assert tag("input", hidden=True, value=None) == "<input hidden>"


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (formats.number(-0.0004), "0.000"),
        (formats.number(-0.25), "−0.250"),
        (formats.number(None), "–"),
        (formats.percent(1, 3000), "<1%"),
        (formats.percent(2999, 3000, 1), ">99.9%"),
        (formats.percent(0, 10, 1), "0%"),
        (formats.percent(10, 10, 1), "100%"),
        (formats.percent(1, 0), "–"),
        (formats.points(-0.234), "−23"),
        (formats.points(0.004), "0"),
        (formats.listed(["a", "b", "c"]), "a, b and c"),
        (formats.counted(1, "model"), "1 model"),
    ],
)
def test_numbers_are_formatted_for_people(found: str, shown: str) -> None:
    assert found == shown


# -- axes --------------------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside_the_axis(low: float, span: float) -> None:
    found = axis.ticks(low, low + span)
    assert 1 <= len(found) <= 8
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in found)


@given(st.lists(st.tuples(st.floats(0, 100), st.text("abcdefgh", min_size=1, max_size=20)), max_size=6))
def test_labels_on_one_line_never_overlap(labels: list[tuple[float, str]]) -> None:
    labels.sort()
    lines: dict[int, list[tuple[float, float]]] = {}
    for (position, text), line in zip(labels, axis.line_numbers(labels), strict=True):
        lines.setdefault(line, []).append(axis.span(position, text))
    for several in lines.values():
        assert all(one[1] < other[0] for one, other in itertools.pairwise(sorted(several)))


def test_labels_at_the_ends_are_anchored_inwards() -> None:
    assert [axis.anchor(place, "stereotyping") for place in (4.5, 50, 95.5)] == ["start", "middle", "end"]
    near = [(4.5, "stereotyping and anti-stereotyping"), (90.0, "unbiased")]
    assert axis.line_numbers(near) == [0, 1]


def test_an_axis_contains_its_data_and_stays_within_the_limits() -> None:
    assert axis.around([0.1, 0.4], (0.0, 1.0)).low == pytest.approx(0.082)
    assert axis.around([0.0, 1.0], (0.0, 1.0)) == Axis(low=0.0, high=1.0)
    assert axis.around([0.3], (0.0, 1.0)).high > 0.3
    assert Axis(low=-1, high=1, margin=0).at(0) == 50
    assert Axis(low=-1, high=1, margin=0).at(7) == 100


# -- forests -----------------------------------------------------------------------------------------------

ACCEPTANCE = next(m for m in load_probe("hiring_an").key_metrics if m.name == "diff_acceptance_rate")


def test_a_forest_orders_models_and_puts_those_without_a_value_last() -> None:
    found = forest.forest(ACCEPTANCE, [("c", estimate(None)), ("b", estimate(0.2)), ("a", estimate(-0.3))])
    order = [found.inside.index(f">{name}<") for name in "abc"]
    assert order == sorted(order)
    assert found.label.endswith("a −0.300, 95 % interval −0.400 to −0.200; b 0.200, 95 % interval 0.100 to 0.300; c –.")
    assert "no value" in found.inside


@pytest.mark.parametrize("name", probe_names())
def test_every_key_metric_of_every_probe_can_be_drawn(name: str) -> None:
    for metric in load_probe(name).key_metrics:
        for values in ([], [estimate(None)], [estimate(0.0, 0.0)], [estimate(0.01, 0.001), estimate(0.99, 0.02)]):
            figure = forest.forest(metric, [(f"model {n}", value) for n, value in enumerate(values)])
            assert figure.height > 0
            assert "nan" not in figure.inside
            assert "inf" not in figure.inside


def test_a_metric_without_marks_and_references_can_be_drawn() -> None:
    bare = KeyMetric(name="m", harm="h", meaning="what it means", references={})
    assert "<circle" in forest.forest(bare, [("a", estimate(3.0))]).inside


# -- groups ------------------------------------------------------------------------------------------------


def test_shares_of_groups_are_means_over_items_with_a_readable_answer() -> None:
    probe = load_probe("hiring_an")
    cells = pl.DataFrame(
        {
            "yes": [1, 0, 0, 2],
            "no": [0, 1, 0, 2],
            "attempts": [1, 1, 1, 4],
            "gender": ["male", "male", "male", "female"],
            "race": ["white"] * 4,
            "qualification": ["low"] * 4,
            "role_score": [0.1, 0.2, 0.3, 0.4],
            "items": [3, 1, 5, 2],
        }
    )
    found = {(s.row, s.series): (s.share, s.items) for s in shares.shares(probe, cells, probe.views[0])}
    assert found == {("white", "male"): (0.75, 4), ("white", "female"): (0.5, 2)}


def test_shares_of_prompts_within_an_item_are_pooled() -> None:
    probe = load_probe("isear")
    tallies = {f"{gender}/{emotion}": [0, 0] for gender in probe.values["gender"] for emotion in probe.labels}
    tallies["a man/joy"], tallies["a man/anger"], tallies["a woman/anger"] = [1, 0], [0, 3], [0, 1]
    cells = pl.DataFrame({**tallies, "attempts": [3, 9], "items": [1, 1]})
    found = {(s.row, s.series): s.share for s in shares.shares(probe, cells, probe.views[0])}
    assert found["joy", "a man"] == 0.25
    assert found["anger", "a man"] == 0.75
    assert found["anger", "a woman"] == 1.0
    assert ("joy", "a non-binary person") not in found


def test_the_line_through_a_scatter_has_the_slope_of_the_metric() -> None:
    probe = load_probe("hiring_an")
    scores = [place / 10 for place in range(11)]
    cells = pl.DataFrame(
        {
            "yes": [1] * 22,
            "no": [0] * 11 + [1] * 11,
            "attempts": [1] * 11 + [2] * 11,
            "gender": ["male"] * 11 + ["female"] * 11,
            "race": ["white"] * 22,
            "qualification": ["low"] * 22,
            "role_score": scores * 2,
            "items": [1] * 22,
        }
    )
    view = next(view for view in probe.views if view.rows == "role_score")
    points, lines = shares.scatter(probe, cells, view)
    found = {line.series: (round(line.slope, 9), round(line.intercept, 9)) for line in lines}
    assert found == {"male": (0.0, 1.0), "female": (0.0, 0.5)}
    assert sum(point.items for point in points) == 22


@given(st.floats(0, 1), st.integers(1, 10**6))
def test_wilsons_interval_contains_the_share_and_stays_between_0_and_1(share: float, items: int) -> None:
    low, high = shares.wilson(share, items)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
    assert high > low


@pytest.mark.parametrize("name", probe_names())
def test_every_probe_has_views_of_its_groups(name: str) -> None:
    probe = load_probe(name)
    known = {*probe.strata, *probe.covariates, "label"}
    for view in shares.views(probe):
        assert {view.rows, view.series} <= known
        assert view.label is None or view.label in probe.labels


def test_dots_of_all_series_are_drawn_and_described() -> None:
    several = [
        LabelShare(row="high", series=series, share=share, low=share - 0.1, high=share + 0.1, items=9)
        for series, share in {"male": 0.6, "female": 0.4}.items()
    ]
    figure = panels.dots("a model", ["high"], ["male", "female"], several, 1.0, {"male": "men"})
    assert figure.inside.count('class="dot ') == 2
    assert figure.label == "a model. high: men 60%, female 40%."
    assert panels.scale_end(several) == 0.8
    assert math.isclose(panels.combined([figure] * 4, None).height, 2 * (figure.height + 12))
