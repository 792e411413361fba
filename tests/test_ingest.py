"""Every line is attributed to the row that it answers, or set aside; a batch is complete if every id has a line."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchbench.core.money import Price
from batchbench.providers import openai
from batchbench.runs import results
from batchbench.runs.ingest import Ingested, as_ranges, ingest
from batchbench.runs.journal import BatchRecord
from batchbench.runs.row_states import TODO, todo
from tests import zstd
from tests.test_providers import choice, openai_line

PRICE = Price(input=1_000_000, output=1_000_000, source="test")  # a token costs a micro-dollar
BATCH = BatchRecord(
    nonce="n",
    rep=0,
    ranges=[(0, 3), (7, 9)],
    rows=5,
    reserve=500,
    rates=PRICE,
    intended=0.0,
    provider_status="completed",
)
ROWS = [0, 1, 2, 7, 8]


def line(row: int, text: str = "Joy") -> bytes:
    return openai_line(choices=choice(text)).replace(b"n-1-0", f"n-{row}-0".encode())


def read(tmp_path: Path, *lines: bytes, name: str = "n-output") -> Ingested:
    path = tmp_path / f"{name}.jsonl.zst"
    path.write_bytes(zstd.compress(b"\n".join(lines) + b"\n"))
    return ingest([path], BATCH, openai.PROVIDER)


def test_lines_in_any_order_become_answers_in_the_order_of_rows(tmp_path: Path) -> None:
    found = read(tmp_path, *(line(row, f"answer {row}") for row in reversed(ROWS)))
    assert found.answers.select("id", "rep", "outcome", "text").rows() == [
        (row, 0, "answered", f"answer {row}") for row in ROWS
    ]
    assert (found.missing, found.again, found.quarantined, found.cost) == ([], [], [], 5 * 11)


def test_only_a_row_without_a_line_is_missing(tmp_path: Path) -> None:
    found = read(tmp_path, line(0), line(7), line(8))
    assert found.missing == [(1, 3)]
    assert found.answers["id"].to_list() == [0, 7, 8]


def test_lines_that_belong_to_no_row_are_set_aside(tmp_path: Path) -> None:
    foreign = [line(3), line(0).replace(b"n-0-0", b"x-0-0"), line(0).replace(b"n-0-0", b"n-0-1"), b"{}", b"not json"]
    found = read(tmp_path, *map(line, ROWS), *foreign)
    assert found.answers.height == 5
    assert found.quarantined == foreign


def test_a_repeated_line_is_one_answer(tmp_path: Path) -> None:
    found = read(tmp_path, *map(line, ROWS), line(2))
    assert (found.answers.height, found.cost, found.quarantined) == (5, 55, [])


def test_two_different_answers_to_one_row_are_a_failure(tmp_path: Path) -> None:
    found = read(tmp_path, *map(line, ROWS), line(2, "Fear"))
    assert found.answers.filter(id=2).select("outcome", "error").row(0) == ("failed", "two different answers")
    assert len(found.quarantined) == 1


def test_an_answer_is_preferred_to_a_failure_in_either_order(tmp_path: Path) -> None:
    failed = json.dumps({"custom_id": "n-2-0", "response": None, "error": {"code": "batch_expired", "message": ""}})
    for lines in ([*map(line, ROWS), failed.encode()], [failed.encode(), *map(line, ROWS)]):
        found = read(tmp_path, *lines)
        assert found.answers["outcome"].to_list() == ["answered"] * 5


def test_rows_that_the_provider_did_not_process_are_asked_again(tmp_path: Path) -> None:
    failed = json.dumps({"custom_id": "n-2-0", "response": None, "error": {"code": "batch_expired", "message": "late"}})
    found = read(tmp_path, line(0), line(1), failed.encode(), line(7), line(8))
    outcomes = dict(found.answers.group_by("outcome").len().rows())
    assert (found.again, found.missing, outcomes) == ([(2, 3)], [], {"answered": 4})


def test_in_a_rejected_batch_the_blamed_lines_fail_and_nothing_is_paid(tmp_path: Path) -> None:
    errors = [{"code": "bad", "message": "first", "line": 4}, {"code": "bad", "message": "second", "line": 4}]
    described = {"id": "b", "status": "failed", "created_at": 0, "errors": {"data": errors}}
    found = read(tmp_path, json.dumps(described, indent=1).encode(), name="n-refusal")
    assert found.answers.select("id", "outcome", "error").rows() == [(7, "failed", "bad: first")]
    assert (found.again, found.missing, found.lacking, found.cost) == ([(0, 3), (8, 9)], [], 0, 0)


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\u0085d", "nul \0 here", "\x1b[31mred", "tab\tand\nnewline", "😀"])
def test_unusual_characters_stay_in_the_answer(tmp_path: Path, text: str) -> None:
    raw = json.dumps(json.loads(line(0, text)), ensure_ascii=False).encode()
    assert read(tmp_path, raw, *map(line, ROWS[1:])).answers["text"][0] == text


def test_half_an_emoji_does_not_lose_the_answer(tmp_path: Path) -> None:
    raw = line(0, "cut").replace(b'"cut"', b'"cut \\ud83d"')
    found = read(tmp_path, raw, *map(line, ROWS[1:]))
    assert found.answers["text"][0] == "cut \ufffd"
    assert found.quarantined == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: raw + b"\r",
        lambda raw: b"  " + raw + b"  ",
    ],
)
def test_harmless_changes_of_a_line_are_ignored(tmp_path: Path, damage: object) -> None:
    found = read(tmp_path, damage(line(0)), b"", b"   ", *map(line, ROWS[1:]))  # type: ignore[operator]
    assert found.answers["outcome"].to_list() == ["answered"] * 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw.replace(b'"choices"', b'"chioces"'),
        lambda raw: raw.replace(b"200", b'"200"'),
        lambda raw: raw.replace(b'"prompt_tokens": 9', b'"prompt_tokens": NaN'),
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b"Joy", b"\xff\xfe"),
        lambda raw: raw.replace(b'"Joy"', b"[" * 20_000),
    ],
)
def test_an_unreadable_answer_is_a_failure_and_is_not_bought_again(tmp_path: Path, damage: object) -> None:
    found = read(tmp_path, damage(line(0)), *map(line, ROWS[1:]))  # type: ignore[operator]
    assert found.missing == []
    assert found.again == []
    if found.quarantined:
        assert found.answers.filter(id=0).select("outcome", "error").row(0) == ("failed", "unparsed")
        assert found.cost == 4 * 11 + 100  # its cost is unknown: its highest cost counts


@pytest.mark.parametrize("length", [20, 60, 200, -1])
def test_an_incomplete_last_line_leaves_its_row_missing(tmp_path: Path, length: int) -> None:
    path = tmp_path / "n-output.jsonl.zst"
    path.write_bytes(zstd.compress(b"\n".join([*map(line, ROWS[:-1]), line(8)[:length]])))
    found = ingest([path], BATCH, openai.PROVIDER)
    assert (found.missing, found.cut, found.answers.height, found.quarantined) == (
        [(8, 9)],
        True,
        4,
        [line(8)[:length]],
    )


def test_a_line_with_two_ids_belongs_to_no_row(tmp_path: Path) -> None:
    raw = line(0).replace(b'"custom_id": "n-0-0"', b'"custom_id": "n-0-0", "custom_id": "n-1-0"')
    found = read(tmp_path, raw, *map(line, ROWS[2:]))
    assert found.missing == [(0, 2)]
    assert found.quarantined == [raw]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=60)), st.integers(1, 70))
def test_lines_end_at_newlines_and_nowhere_else(blocks: list[bytes], size: int) -> None:
    import tempfile

    content = b"\n".join(blocks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zst"
        path.write_bytes(zstd.compress(content))
        assert (
            list(results.lines(path))
            == list(content.split(b"\n"))[: None if not content.endswith(b"\n") and content else -1]
        )


@given(st.lists(st.integers(0, 4), max_size=300), st.integers(1, 400))
def test_the_next_rows_are_those_in_state_todo(values: list[int], limit: int) -> None:
    marks = bytearray(values)
    chosen = [row for start, stop in todo(marks, limit) for row in range(start, stop)]
    assert chosen == [row for row, value in enumerate(values) if value == TODO][:limit]
    assert as_ranges(chosen) == todo(marks, limit)
