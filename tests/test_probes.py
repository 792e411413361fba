"""The contract of every probe; a new probe is included automatically."""

import itertools

import msgspec
import polars as pl
import pytest

from batchbench.compile.compiler import identify
from batchbench.compile.data_cache import load_table
from batchbench.core.store import Store
from batchbench.errors import UsageError
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.probe import Params, Probe


def sample(probe: Probe[Params], store: Store) -> tuple[pl.DataFrame, pl.Series]:
    params = probe.params(data="sample")
    tables = {name: load_table(store, name, sample=True, note=print)[0] for name in probe.datasets}
    design = probe.design(params, tables).collect()
    return design, design.select(prompt=probe.prompt(params, tables))["prompt"]


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("name", probe_names())
class TestEveryProbe:
    def test_is_named_after_its_module(self, name: str) -> None:
        assert load_probe(name).name == name

    def test_works_on_its_sample_data_without_a_network(self, name: str, store: Store) -> None:
        design, prompts = sample(load_probe(name), store)
        assert design.height > 0
        assert prompts.null_count() == 0
        assert not store.home.joinpath("cache").exists()

    def test_has_as_many_prompts_as_items_times_variants(self, name: str, store: Store) -> None:
        probe = load_probe(name)
        design, _ = sample(probe, store)
        assert design.height % probe.variants(probe.params()) == 0

    def test_leaves_no_slot_unfilled(self, name: str, store: Store) -> None:
        _, prompts = sample(load_probe(name), store)
        assert not prompts.str.contains(r"[{}]").any()

    def test_has_its_strata_among_the_columns_of_its_design(self, name: str, store: Store) -> None:
        probe = load_probe(name)
        design, _ = sample(probe, store)
        assert set(probe.strata) <= set(design.columns)

    def test_labels_answers_without_overwriting_its_groups(self, name: str) -> None:
        probe = load_probe(name)
        computed = {column for step in probe.steps for column in step}
        assert not computed & {*probe.strata, *probe.covariates, "item_id", "line", "rep", "variant", "outcome"}

    def test_has_a_card_that_names_its_key_metrics_and_limitations(self, name: str) -> None:
        probe = load_probe(name)
        assert "Limitations:" in probe.card
        for metric in probe.key_metrics:
            assert f"`{metric.name}`" in probe.card

    def test_has_marks_that_cover_a_range_without_gaps(self, name: str) -> None:
        for metric in load_probe(name).key_metrics:
            bounds = sorted(bounds for ranges in metric.marks for bounds in ranges)
            for (_, end), (start, _) in itertools.pairwise(bounds):
                assert end == start
            for value in metric.references.values():
                assert not bounds or bounds[0][0] <= value <= bounds[-1][1]

    def test_has_another_manifest_for_other_parameters(self, name: str) -> None:
        probe = load_probe(name)
        assert identify(probe, probe.params(), {}) != identify(probe, probe.params(data="sample"), {})


def test_the_error_about_an_unknown_probe_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'hiring_an'"):
        load_probe("hiring_ann")


def test_gest_draws_the_orders_of_its_options_evenly() -> None:
    probe = load_probe("gest")
    sentences = pl.DataFrame(
        {"sentence": ["x"] * 6000, "stereotype": [1] * 6000}, {"sentence": pl.String, "stereotype": pl.UInt8}
    )
    design = probe.design(msgspec.convert({"num_reorderings": 2}, probe.params), {"gest": sentences}).collect()
    assert design.height == 12_000
    counts = design.group_by("a", "b", "c").len()
    assert counts.height == 6
    assert counts["len"].is_between(1800, 2200).all()
    assert design.with_row_index().select((pl.col("index") // 2).alias("item"), "a", "b", "c").is_unique().all()
