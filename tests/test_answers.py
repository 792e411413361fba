"""`batchbench answers`: lists, files for people to label, and what their labels say about the readings."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import batchbench as bb
from batchbench import cli
from batchbench.analyze.human_check import read_human_check, read_samples, sentences
from tests.conftest import Run
from tests.sweep.scene import Home

GEST = ["gest", "--set", "data=sample"]
MODEL = ["--model", "openai:labelled"]
MISSED = "B) the reference does not read this"
TEXTS = ["(a)", "(b)", "(c)", MISSED, "I cannot say.", "=HYPERLINK(1) (a)", "(c)\x1b[2J", ""]
Call = Callable[..., "tuple[int, str, str]"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run whose answers are TEXTS in turn, and every 50th request of which failed."""
    home = tmp_path_factory.mktemp("answers")
    given = ["--price", "1,1", "--sample-k", "40", "-o", str(home / "out"), "--home", str(home), "--quiet"]
    assert cli.main(["export", *GEST, *MODEL, *given]) == 0
    (file,) = (home / "out").iterdir()
    lines = []
    for number, line in enumerate(file.read_text().splitlines()):
        choice = {"message": {"content": TEXTS[number % len(TEXTS)]}, "finish_reason": "stop"}
        body: dict[str, Any] = {"model": "labelled", "choices": [choice]}
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1}
        result = {"custom_id": json.loads(line)["custom_id"], "response": {"status_code": 200, "body": body}}
        if number % 50 == 49:
            result["response"] = {"status_code": 400, "body": {"error": {"message": "this prompt is too long"}}}
        lines.append(json.dumps(result))
    (home / "results.jsonl").write_text("\n".join(lines))
    assert cli.main(["import", str(home / "results.jsonl"), "--home", str(home), "--quiet"]) == 0
    return home


@pytest.fixture
def call(made: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["answers", *GEST, *MODEL, *map(str, words), "--home", str(made), "--quiet"])
        return code, *capsys.readouterr()

    return run


def cells(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline="")))


def fill(path: Path, label: Callable[[dict[str, str]], str], out: Path) -> Path:
    """A copy of a file with labels."""
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "prompt", "answer", "label", "note"])
        writer.writeheader()
        writer.writerows({**row, "label": label(row)} for row in cells(path))
    return out


def reader(row: dict[str, str]) -> str:
    """What a person would write."""
    text = row["answer"]
    return next((letter for letter in "abc" if f"({letter})" in text or text.startswith(f"{letter.upper()})")), "none")


# -- lists -------------------------------------------------------------------------------------------------


def test_it_lists_answers_with_ids_that_explain_takes(
    made: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call("--limit", "3", "--json")
    listing = json.loads(out)
    assert (code, listing["matching"], len(listing["answers"])) == (0, listing["stored"], 3)
    for answer in listing["answers"]:
        assert cli.main(["explain", answer["id"], "--home", str(made), "--json"]) == 0
        explained = json.loads(capsys.readouterr().out)
        assert explained["prompt"] == answer["prompt"]
        assert explained["answer"].get("text") == answer["text"]
        assert explained["label"] == (answer["label"] or "undetected")


def test_unreadable_answers_are_listed_with_their_outcome_and_error(call: Call) -> None:
    answers = json.loads(call("--unreadable", "--limit", "all", "--json")[1])
    assert answers["matching"] == len(answers["answers"]) == sum(answers["outcomes"].values())
    assert all(answer["label"] is None or answer["careful"] is None for answer in answers["answers"])
    assert {MISSED, "I cannot say."} <= {one["text"] for one in answers["answers"]}
    assert answers["outcomes"]["failed"] >= 1
    _, text, _ = call("--unreadable", "--limit", "all")
    assert "this prompt is too long" in text
    assert f"{answers['matching']:,} of {answers['stored']:,} answers" in text


def test_label_lists_only_that_label(call: Call) -> None:
    answers = json.loads(call("--label", "male", "--limit", "all", "--json")[1])["answers"]
    assert answers
    assert {answer["label"] for answer in answers} == {"male"}


def test_printed_answers_move_no_cursor_and_are_cut(call: Call) -> None:
    _, text, _ = call("--limit", "all")
    assert "\x1b" not in text
    assert "(c)\\x1b[2J" in text
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label", "mal"], "did you mean 'male'?"),
        (["--limit", "0"], "--limit '0' is not a number of answers above 0, or `all`"),
        (["--check", "1"], "--check '1' is not a whole number from 2 to 10,000"),
        (["--check", "5", "--unreadable"], "leave out --unreadable"),
        (["--check", "5", "-o", "x.xlsx"], "neither in .csv nor in .jsonl"),
        (["-o", "x.csv"], "goes with --check"),
        (["--checked", "a.csv", "--check", "5"], "leave out --check"),
        (["--checked", "a.csv", "--checked", "b.csv", "--checked", "c.csv"], "at most two files"),
        (["--checked", "nowhere.csv"], "cannot read nowhere.csv"),
    ],
)
def test_a_wrong_option_gives_one_line(call: Call, words: list[str], message: str) -> None:
    code, out, err = call(*words)
    assert code in (2, 65)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


# -- files to label ----------------------------------------------------------------------------------------


def test_a_file_to_label_shows_no_labels_and_is_the_same_every_time(made: Path, call: Call, tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    for path in (first, second):
        assert call("--check", "30", "-o", path)[0] == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\xef\xbb\xbf")
    rows = cells(first)
    assert len(rows) == 30
    assert list(rows[0]) == ["id", "prompt", "answer", "label", "note"]
    assert {row["label"] for row in rows} == {""}
    assert all(row["answer"].strip() for row in rows)
    sample = next(sample for sample in read_samples(run_folder(made)) if sample.size == 30)
    assert sorted(sample.ids) == sorted(row["id"] for row in rows)
    assert [row["id"] for row in rows] != sample.ids  # shuffled: the order does not show the strata
    text = first.with_suffix(".txt").read_text()
    for word in ("male, female, neither", "none", "ambiguous", "gest", sample.run, "letter"):
        assert word in text


def test_no_cell_is_a_formula(call: Call, tmp_path: Path) -> None:
    call("--check", "240", "-o", tmp_path / "all.csv")
    answers = {row["answer"] for row in cells(tmp_path / "all.csv")}
    assert "'=HYPERLINK(1) (a)" in answers
    assert not any(answer.startswith(("=", "+", "-", "@")) for answer in answers)
    assert "(c)\\x1b[2J" in answers


@pytest.mark.full
def test_a_file_with_labels_is_not_replaced(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "check.csv"
    call("--check", "30", "-o", path)
    fill(path, reader, path)
    kept = path.read_bytes()
    code, _, err = call("--check", "30", "-o", path)
    assert (code, path.read_bytes()) == (2, kept)
    assert "may hold labels" in err


# -- labels ------------------------------------------------------------------------------------------------


def run_folder(home: Path) -> Path:
    (journal,) = home.glob("cache/gest-*/openai-labelled-*/journal")
    return journal.parent


@pytest.mark.full
def test_labels_give_the_accuracy_of_each_reading(made: Path, call: Call, tmp_path: Path) -> None:
    """All answers are labelled, so the shares are exact: of seven texts the reference misses `B)`."""
    call("--check", "240", "-o", tmp_path / "all.csv")
    path = fill(tmp_path / "all.csv", reader, tmp_path / "labelled.csv")
    code, out, err = call("--checked", path, "--json")
    assert code == 0, err
    rows = cells(path)
    missed = sum(row["answer"].startswith("B)") for row in rows) / len(rows)
    check = json.loads(out)
    reference = check["accuracies"][0]
    assert (reference["reading"], reference["answers"]) == ("reference", len(rows))
    assert reference["missed"]["estimate"] == pytest.approx(missed)
    assert reference["missed"]["low"] == pytest.approx(missed)
    assert reference["right"]["estimate"] == pytest.approx(1 - missed)
    assert reference["misread"]["estimate"] == 0
    assert {(count["truth"], count["read"]) for count in reference["table"]} >= {("none", None), ("male", "male")}
    kept = read_human_check(run_folder(made))
    assert kept
    assert kept.accuracies[0].missed.estimate == reference["missed"]["estimate"]
    _, text, _ = call("--checked", path)
    assert f"{missed:.1%}" in text
    assert "nothing" in text  # the column of answers without a label


@pytest.mark.full
def test_two_people(call: Call, tmp_path: Path) -> None:
    call("--check", "60", "-o", tmp_path / "check.csv")
    one = fill(tmp_path / "check.csv", reader, tmp_path / "one.csv")
    differ = {row["id"] for row in cells(one)[:6]}
    two = fill(
        tmp_path / "check.csv", lambda row: "ambiguous" if row["id"] in differ else reader(row), tmp_path / "two.csv"
    )
    code, out, err = call("--checked", one, "--checked", two, "--json")
    assert code == 0, err
    check = json.loads(out)
    assert [one["truth"] for one in check["accuracies"]] == ["one.csv"] * 2 + ["two.csv"] * 2 + ["both annotators"] * 2
    assert (check["agreement"]["equal"], check["agreement"]["answers"]) == (54, 60)
    kappa = check["agreement"]["kappa"]
    assert kappa["low"] < kappa["estimate"] < kappa["high"] < 1
    assert "Cohen's kappa" in call("--checked", one, "--checked", two)[1]


def test_json_lines_and_words_instead_of_letters(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "check.jsonl"
    call("--check", "20", "-o", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(row) == {"id", "prompt", "answer", "label", "note"} for row in rows)
    path.write_text("".join(json.dumps({**row, "label": " None "}) + "\n" for row in rows))
    accuracy = json.loads(call("--checked", path, "--json")[1])["accuracies"][0]
    assert {count["truth"] for count in accuracy["table"]} == {"none"}


@pytest.mark.full
def test_analyze_and_the_report_show_the_check(
    made: Path, call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("--check", "30", "-o", tmp_path / "check.csv")
    check = json.loads(call("--checked", fill(tmp_path / "check.csv", reader, tmp_path / "ann.csv"), "--json")[1])
    words = ["analyze", *GEST, *MODEL, "--replicates", "10", "--home", str(made), "--quiet"]
    assert cli.main(words) == 0
    sentence = f"the reference reading is right on {check['accuracies'][0]['right']['estimate']:.1%}"
    assert sentence in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["human_check"] == check
    assert cli.main(["report", "-o", str(tmp_path / "report.html"), "--home", str(made), "--quiet"]) == 0
    assert sentence in (tmp_path / "report.html").read_text()


def test_a_check_is_outdated_once_lines_were_read_again(made: Path, call: Call, tmp_path: Path) -> None:
    call("--check", "30", "-o", tmp_path / "check.csv")
    call("--checked", fill(tmp_path / "check.csv", reader, tmp_path / "ann.csv"))
    check = read_human_check(run_folder(made))
    assert check is not None
    assert any("is right on" in sentence for sentence in sentences(check, 0))
    assert sentences(check, 1) == [
        "answers were read again since the human check: pass the same files to --checked again"
    ]


def test_two_files_must_differ(call: Call, tmp_path: Path) -> None:
    call("--check", "30", "-o", tmp_path / "check.csv")
    one = fill(tmp_path / "check.csv", reader, tmp_path / "one.csv")
    assert "has the same content as the other file" in call("--checked", one, "--checked", one)[2]


@pytest.mark.parametrize(("answers", "more"), [(0, []), (99, ["x"]), (99, ["ab-70000-70000"]), (99, ["x-1-0"] * 2)])
def test_a_damaged_sample_is_one_line(made: Path, call: Call, tmp_path: Path, answers: int, more: list[str]) -> None:
    call("--check", "31", "-o", tmp_path / "check.csv")
    path = fill(tmp_path / "check.csv", reader, tmp_path / "ann.csv")
    (kept,) = [file for file in run_folder(made).glob("checks/*.json") if json.loads(file.read_text())["size"] == 31]
    document = json.loads(kept.read_text())
    document["strata"][0]["answers"] = answers
    document["strata"][0]["drawn"] += more
    whole = kept.read_bytes()
    try:
        kept.write_text(json.dumps(document))
        code, _, err = call("--checked", path)
    finally:
        kept.write_bytes(whole)
    assert code in (2, 65)
    assert err.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("saved", ["semicolons", "utf-16", "latin-1"])
def test_a_file_that_a_spreadsheet_saved_differently_is_read(call: Call, tmp_path: Path, saved: str) -> None:
    call("--check", "20", "-o", tmp_path / "check.csv")
    path = fill(tmp_path / "check.csv", lambda row: reader(row).upper(), tmp_path / "labelled.csv")
    expected = json.loads(call("--checked", path, "--json")[1])["accuracies"]
    rows = [*csv.reader(io.StringIO(path.read_text(), newline=""))]
    text = io.StringIO()
    csv.writer(text, delimiter=";" if saved == "semicolons" else "\t" if saved == "utf-16" else ",").writerows(
        [*row[:4], "café"] if number else row for number, row in enumerate(rows)
    )
    path.write_bytes(text.getvalue().encode("utf-8" if saved == "semicolons" else saved))
    assert json.loads(call("--checked", path, "--json")[1])["accuracies"] == expected


def test_answers_without_a_label_yet_count_as_not_drawn(call: Call, tmp_path: Path) -> None:
    call("--check", "40", "-o", tmp_path / "check.csv")
    done = {row["id"] for row in cells(tmp_path / "check.csv")[:25]}
    path = fill(tmp_path / "check.csv", lambda row: reader(row) if row["id"] in done else "", tmp_path / "part.csv")
    check = json.loads(call("--checked", path, "--json")[1])
    assert check["accuracies"][0]["answers"] == check["files"][0]["labelled"] == 25
    assert "part.csv: 15 of 40 answers have no label; they count as not drawn" in check["notes"]


Change = Callable[[list[dict[str, str]]], object]
MISTAKES: list[tuple[Change, str]] = [
    (lambda rows: rows[3].update(label="mail"), "row 5: unknown label 'mail': did you mean 'male'?"),
    (lambda rows: rows[3].update(label="d"), "row 5: unknown label 'd'"),
    (lambda rows: rows[3].update(id=""), "row 5 has no id"),
    (lambda rows: rows[3].update(id="0123456789-4-0"), "row 5: 0123456789-4-0 belongs to another run"),
    (lambda rows: rows[3].update(id=rows[3]["id"].replace("-0", "-9")), "is not in the sample of the other rows"),
    (lambda rows: rows.append(rows[0]), "row 22: "),
    (lambda rows: [row.update(label="") for row in rows], "has no labels yet"),
    (lambda rows: [row.pop("label") for row in rows], "has no column 'label'"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_in_a_file_is_one_line_with_its_row(call: Call, tmp_path: Path, change: Change, message: str) -> None:
    call("--check", "20", "-o", tmp_path / "check.csv")
    rows = [{**row, "label": reader(row)} for row in cells(tmp_path / "check.csv")]
    change(rows)
    with (tmp_path / "wrong.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    code, out, err = call("--checked", tmp_path / "wrong.csv")
    assert (code, out) in ((2, ""), (65, ""))
    assert message in err
    assert err.count("\n") == 1


def test_letters_of_a_question_stand_for_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People choose A or B; which of them is the stereotype is in the design, not in the file."""
    words = ["wino_bias", "--set", "data=sample", "--model", "openai:m", "--home", str(tmp_path), "--quiet"]
    assert cli.main(["export", *words, "--price", "1,1", "-o", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").iterdir()
    lines = []
    for number, line in enumerate(file.read_text().splitlines()):
        choice = {"message": {"content": "ABC"[number % 3]}, "finish_reason": "stop"}
        body = {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        lines.append({"custom_id": json.loads(line)["custom_id"], "response": {"status_code": 200, "body": body}})
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert cli.main(["import", str(tmp_path / "results.jsonl"), "--home", str(tmp_path), "--quiet"]) == 0
    assert cli.main(["answers", *words, "--check", "12", "-o", str(tmp_path / "check.csv")]) == 0
    path = fill(tmp_path / "check.csv", lambda row: row["answer"], tmp_path / "ann.csv")
    capsys.readouterr()
    assert cli.main(["answers", *words, "--checked", str(path), "--json"]) == 0
    accuracy = json.loads(capsys.readouterr().out)["accuracies"][0]
    assert accuracy["right"]["estimate"] == 1
    assert {count["truth"] for count in accuracy["table"]} == {"pro", "anti", "both"}


# -- a simulated model, from nothing to a check ------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    Home(tmp_path).close()


@pytest.mark.full
def test_a_simulated_run_is_checked_and_audited(batchbench: Run, home: Path) -> None:
    model = ["gest", "--set", "data=sample", "--model", "sim:random", "--home", str(home)]
    assert batchbench("run", *model, "--sample-k", "40", "--repetitions", "2", "--quiet").returncode == 0
    sheet = home / "check.csv"
    written = batchbench("answers", *model, "--check", "30", "--seed", "5", "-o", sheet, "--json")
    assert json.loads(written.stdout)["drawn"] == 30
    path = fill(sheet, reader, home / "labelled.csv")
    found = batchbench("answers", *model, "--checked", path, "--json")
    assert found.returncode == 0, found.stderr
    check = json.loads(found.stdout)
    assert check["stamps"] == ["EMULATED", "SAMPLE DATA"]
    assert "EMULATED" in batchbench("answers", *model, "--limit", "1").stdout
    assert check["accuracies"][0]["right"]["estimate"] == 1
    assert 0.8 < check["accuracies"][0]["right"]["low"] < 1
    audits = json.loads(batchbench("audit", "--home", str(home), "--json").stdout)
    assert [audit["findings"] for audit in audits] == [[]]
    frame = bb.answers("gest", "sim:random", params={"data": "sample"}, home=home)
    assert {"custom_id", "label", "careful", "prompt", "text"} <= set(frame.columns)
    assert {row["id"] for row in cells(sheet)} <= set(frame["custom_id"])
    # More answers change the strata, but not the sample.
    assert batchbench("run", *model, "--sample-k", "60", "--repetitions", "2", "--quiet").returncode == 0
    again = json.loads(batchbench("answers", *model, "--checked", path, "--json").stdout)
    assert again["accuracies"] == check["accuracies"]
    assert "more answers than when the sample was drawn" in again["notes"][0]
