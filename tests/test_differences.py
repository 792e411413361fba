"""Stored answers are compared with a second reading of the same bytes: read differently, or damaged."""

import json
from pathlib import Path

import polars as pl
import pytest

from batchbench.runs.differences import compare
from batchbench.runs.events import Stored
from batchbench.runs.ingest import UNPARSED, Ingested
from tests.test_ingest import ROWS, line, read

Values = dict[str, object]


def stored(found: Ingested) -> Stored:
    return Stored(at=0.0, nonce="n", parts=[], again=[], missing=[], quarantined=0, answered=5, cost=found.cost)


def with_row(answers: pl.DataFrame, row: int, **values: object) -> pl.DataFrame:
    """The answers as another version has stored them: with other values in one row."""
    rows = [{**one, **values} if one["id"] == row else one for one in answers.rows(named=True)]
    return pl.DataFrame(rows, schema=answers.schema)


def reply(row: int, **response: object) -> bytes:
    return json.dumps({"custom_id": f"n-{row}-0", "response": response or None, "error": None}).encode()


EMPTY: Values = {"outcome": "answered", "error": None}
FAILED: Values = {"outcome": "failed", "error": "no text in the answer"}


@pytest.mark.parametrize("values", [EMPTY, {**EMPTY, "text": ""}, FAILED, {"outcome": "truncated", "error": None}])
def test_an_outcome_with_an_older_name_is_no_damage(tmp_path: Path, values: Values) -> None:
    found = read(tmp_path, *map(line, ROWS[1:]), line(0, None))  # type: ignore[arg-type]
    different = compare(with_row(found.answers, 0, **values), found, stored(found))
    assert (different.renamed, different.readable, different.damaged) == ([0], [], 0)


@pytest.mark.parametrize("values", [{"text": "Fear"}, {"input_tokens": 8}, {"outcome": "refused"}, {"model": "other"}])
def test_another_text_count_or_outcome_is_damage(tmp_path: Path, values: Values) -> None:
    found = read(tmp_path, *map(line, ROWS))
    different = compare(with_row(found.answers, 0, **values), found, stored(found))
    assert (different.damaged, different.settled) == (1, [])


def test_a_row_that_is_lost_or_added_is_damage(tmp_path: Path) -> None:
    found = read(tmp_path, *map(line, ROWS))
    assert compare(found.answers.head(4), found, stored(found)).damaged == 1
    fewer = read(tmp_path, *map(line, ROWS[:4]))
    assert compare(found.answers, fewer, stored(found)).damaged == 1


UNREAD: Values = {"outcome": "failed", "text": None, "error": UNPARSED, "input_tokens": 0, "output_tokens": 0}


@pytest.mark.parametrize(
    ("response", "proves"),
    [
        ({}, True),
        ({"status_code": 429, "body": {"error": {"message": "slow"}}}, True),
        ({"status_code": 200, "body": {"error": {"code": 502}, "choices": []}}, False),
        ({"status_code": None, "body": "busy"}, False),
    ],
)
def test_an_unread_row_is_asked_again_only_if_its_line_proves_that_it_was_not_processed(
    tmp_path: Path, response: Values, proves: bool
) -> None:
    whole = read(tmp_path, *map(line, ROWS))
    found = read(tmp_path, *map(line, ROWS[1:]), reply(0, **response))
    different = compare(with_row(whole.answers, 0, **UNREAD), found, stored(found))
    assert (different.unprocessed, different.readable) == (([0], [0]) if proves else ([], []))
    assert different.damaged == 0
    assert found.cost == (44 if proves else 144)


def test_a_refused_row_is_asked_again_if_only_this_version_can_correct_the_settings(tmp_path: Path) -> None:
    whole = read(tmp_path, *map(line, ROWS))
    found = read(tmp_path, *map(line, ROWS[1:]), reply(0, status_code=401, body={"error": {"message": "key"}}))
    refused = with_row(whole.answers, 0, **{**UNREAD, "error": "401 : key"})
    assert compare(refused, found, stored(found)).unprocessed == [0]
    answered = compare(whole.answers, found, stored(found))
    assert (answered.unprocessed, answered.damaged) == ([], 1)
