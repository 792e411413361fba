"""The answers of a run, as its folder keeps them."""

import hashlib
from collections import Counter
from collections.abc import Sequence
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
    """The answers of every stored batch of a run, each file checked byte for byte first."""
    files = []
    for part in (part for batch in state.batches.values() if batch.stored for part in batch.stored.parts):
        path = folder / part.file
        if not part.file.startswith("answers/"):
            continue
        if not path.is_file() or file_part(path, folder) != part:
            raise _damaged(path)
        files.append(path)
    if not files:
        return pl.LazyFrame(schema=ANSWERS)
    return pl.scan_parquet(files, glob=False)


def _check_sizes(folder: Path, parts: Sequence[Part]) -> None:
    """A look at the answers that costs nothing: they are there, and as long as they were. Reading checks every byte."""
    for part in parts:
        path = folder / part.file
        if not part.file.startswith("answers/"):
            continue
        if not path.is_file() or path.stat().st_size != part.bytes:
            raise _damaged(path)


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is missing or damaged: restore it from a backup, and see `batchbench audit`")


def outcomes(folder: Path, state: RunState, rows: int, repetitions: int) -> Counter[str]:
    """How many of the first `rows` rows ended how, by the journal; what it does not tell is read in the answers."""
    counts: Counter[str] = Counter()
    for batch in state.batches.values():
        if batch.stored is None or batch.rep >= repetitions:
            continue
        if batch.stored.outcomes and all(stop <= rows for _, stop in batch.ranges):
            _check_sizes(folder, batch.stored.parts)
            counts.update(batch.stored.outcomes)
            continue
        answers = read_answers(folder, RunState(batches={batch.nonce: batch})).filter(pl.col("id") < rows)
        counts.update(dict(answers.group_by("outcome").len().collect().rows()))
    return counts


def answer_files(folder: Path, batch: BatchRecord) -> list[Path]:
    """The files that hold the answers of a batch."""
    parts = batch.stored.parts if batch.stored else []
    return [folder / part.file for part in parts if part.file.startswith("answers/")]


def file_part(path: Path, folder: Path) -> Part:
    """A file that is already there, with its digest."""
    kept = content(path)
    return Part(file=str(path.relative_to(folder)), bytes=len(kept), sha256=hashlib.sha256(kept).hexdigest())
