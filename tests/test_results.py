"""The answer files of a run are read only if their bytes are those that were stored."""

from pathlib import Path

import polars as pl
import pytest

from batchbench.errors import DataError
from batchbench.providers.interface import Line
from batchbench.runs.events import Stored
from batchbench.runs.ingest import answer_frame
from batchbench.runs.journal import BatchRecord, RunState
from batchbench.runs.results import file_part, sample_answers

ROWS = 2000


def stored(folder: Path) -> RunState:
    """A run with the answers to pairs of prompts: the first prompt of each pair has an even number."""
    path = folder / "answers" / "n.parquet"
    path.parent.mkdir()
    lines = [Line("", "answered", ("he", "she")[row % 2]) for row in range(ROWS)]
    answer_frame([*range(ROWS)], lines, 0).write_parquet(path)
    part = file_part(path, folder)
    event = Stored(at=0.0, nonce="n", parts=[part], answered=ROWS, again=[], missing=[], quarantined=0, cost=0)
    batch = BatchRecord(nonce="n", rep=0, ranges=[(0, ROWS)], rows=ROWS, reserve=0, intended=0.0, stored=event)
    return RunState(batches={"n": batch})


def test_a_sample_has_answers_of_both_sides_of_pairs(tmp_path: Path) -> None:
    state = stored(tmp_path)
    sample = sample_answers(tmp_path, state)
    assert sample.height == 500
    assert sample["id"].is_duplicated().sum() == 0
    assert 150 < sample.filter(pl.col("text") == "he").height < 350
    assert sample.equals(sample_answers(tmp_path, state))


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_file_of_answers_is_named(tmp_path: Path, damage: str) -> None:
    state, path = stored(tmp_path), tmp_path / "answers" / "n.parquet"
    kept = bytearray(path.read_bytes())
    kept[len(kept) // 3] ^= 0xFF
    path.write_bytes(kept if damage == "flipped" else kept[:-20])
    if damage == "missing":
        path.unlink()
    with pytest.raises(DataError, match=r"n\.parquet is missing or damaged: restore it from a backup"):
        sample_answers(tmp_path, state)
