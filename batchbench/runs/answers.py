"""The answers of a run, read from its folder."""

import hashlib
from collections import Counter
from pathlib import Path

import polars as pl

from batchbench.core.store import content
from batchbench.errors import DataError
from batchbench.runs.events import Part
from batchbench.runs.journal import BatchRecord, RunState

OUTCOMES = ("answered", "refused", "filtered", "truncated", "failed")
LOGPROBS = pl.List(pl.Struct({"token": pl.String, "logprob": pl.Float64}))  # of an answer's first token
ANSWERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "id": pl.UInt32,
    "rep": pl.UInt16,
    "outcome": pl.String,
    "text": pl.String,
    "finish": pl.String,
    "input_tokens": pl.UInt32,
    "output_tokens": pl.UInt32,
    "model": pl.String,
    "error": pl.String,
    "logprobs": LOGPROBS,
}


def read_answers(folder: Path, state: RunState) -> pl.LazyFrame:
    """The answers of every stored batch of a run, after a check of every file's digest."""
    parts = [part for batch in state.batches.values() for part in _answer_parts(batch)]
    for part in parts:
        path = folder / part.file
        if not path.is_file() or file_part(path, folder) != part:
            raise _damaged(path)
    if not parts:
        return pl.LazyFrame(schema=ANSWERS)
    return pl.scan_parquet([folder / part.file for part in parts], glob=False)


def _answer_parts(batch: BatchRecord) -> list[Part]:
    return [part for part in batch.stored.parts if part.file.startswith("answers/")] if batch.stored else []


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is missing or damaged: restore it from a backup, and see `batchbench audit`")


def outcomes(folder: Path, state: RunState, rows: int, repetitions: int) -> Counter[str]:
    """Outcome counts for the first `rows` rows, from the journal where possible, else from the answer files."""
    counts: Counter[str] = Counter()
    for batch in state.batches.values():
        if batch.stored is None or batch.rep >= repetitions:
            continue
        if batch.stored.outcomes and all(stop <= rows for _, stop in batch.ranges):
            for part in _answer_parts(batch):
                path = folder / part.file
                if not path.is_file() or path.stat().st_size != part.bytes:  # only `read_answers` checks every byte
                    raise _damaged(path)
            counts.update(batch.stored.outcomes)
            continue
        answers = read_answers(folder, RunState(batches={batch.nonce: batch})).filter(pl.col("id") < rows)
        counts.update(dict(answers.group_by("outcome").len().collect().rows()))
    return counts


def answer_files(folder: Path, batch: BatchRecord) -> list[Path]:
    """The files that hold the answers of a batch."""
    return [folder / part.file for part in _answer_parts(batch)]


def file_part(path: Path, folder: Path) -> Part:
    """A file on disk, with its size and digest."""
    kept = content(path)
    return Part(file=str(path.relative_to(folder)), bytes=len(kept), sha256=hashlib.sha256(kept).hexdigest())
