"""IO: the files of a batch: the provider's result files, byte for byte but compressed, and the answers made of them."""

import hashlib
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from batchbench.core import crash_points
from batchbench.core.store import content, explained, reading, sync
from batchbench.errors import BatchbenchError, DataError
from batchbench.runs.events import Part
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord, RunState

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_LINE = 16 << 20  # bytes; a longer line is no answer, and is cut off when it is read
BLOCK = 1 << 18  # bytes read at once
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


class Segment:
    """A result file that is being downloaded: compressed under a scratch name until it is sealed."""

    def __init__(self, run: Run, nonce: str, part: str) -> None:
        self._path = run.raw(nonce, part)
        self._scratch = self._path.with_name(f".scratch-{self._path.name}")
        self._compressor = zstd.ZstdCompressor(level=3)
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._prefix = f'"{nonce}-'.encode()
        self._tail = b""
        self._completeness = 0, 0  # ids of the batch, and bytes, taken so far
        with explained(self._path):
            self._file = self._scratch.open("wb")

    def take(self, piece: bytes) -> None:
        """Add the next piece."""
        seen = self._tail + piece  # an id may be split between two pieces
        self._tail = seen[1 - len(self._prefix) :]
        ids, size = self._completeness
        self._completeness = ids + seen.count(self._prefix), size + len(piece)
        try:
            compressed = self._compressor.compress(piece)
        except zstd.ZstdError as error:  # any bytes can be compressed: the memory is full
            raise MemoryError(str(error)) from None
        self._put(compressed)

    def _put(self, block: bytes) -> None:
        with self._dropped_on_failure():
            self._file.write(block)
        self._sha256.update(block)
        self._size += len(block)

    def seal(self) -> Part:
        """Put the file on disk under its final name."""
        self._put(self._compressor.flush())
        with self._dropped_on_failure():
            crash_points.point("segment-written")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            crash_points.point("segment-synced")
            self._scratch.rename(self._path)
            crash_points.point("segment-renamed")
            sync(self._path.parent)
        return Part(file=f"raw/{self._path.name}", bytes=self._size, sha256=self._sha256.hexdigest())

    def seal_if_fuller(self) -> Part:
        """Seal the file, unless an earlier download holds as much: one that was cut off must not replace it."""
        if self._path.exists() and self._completeness <= _completeness(self._path, self._prefix):
            self.drop()
            return file_part(self._path, self._path.parent.parent)
        return self.seal()

    @contextmanager
    def _dropped_on_failure(self) -> Iterator[None]:
        try:
            with explained(self._path):
                yield
        except BatchbenchError:
            self.drop()  # the disk may be full: free the space of an incomplete file
            raise

    def drop(self) -> None:
        """Remove the scratch file."""
        with suppress(OSError):  # closing writes the rest, which may fail again
            self._file.close()
        self._scratch.unlink(missing_ok=True)


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a sealed result file. A line ends at a newline byte and nowhere else."""
    for block in blocks(path):
        yield from block.removesuffix(b"\n").split(b"\n")


def blocks(path: Path) -> Iterator[bytes]:
    """A sealed result file, some complete lines at a time; the last line may lack its end.

    A line is cut off after MAX_LINE + 1 bytes, so that a file of one endless line fits into memory.
    """
    with reading(path) as kept, zstd.open(kept, "rb") as file:
        left = b""
        while block := file.read(BLOCK):
            if len(left) > MAX_LINE and b"\n" not in block:
                continue  # the rest of a line that is cut off
            end = block.rfind(b"\n") + 1
            if end:
                yield left + block[:end]
                left = b""
            left = (left + block[end:])[: MAX_LINE + 1]
        if left:
            yield left


def _completeness(path: Path, prefix: bytes) -> tuple[int, int]:
    """How many ids with a prefix are in a sealed result file, and its bytes; the fuller of two downloads has more."""
    ids = size = 0
    for block in blocks(path):
        ids += block.count(prefix)
        size += len(block)
    return ids, size


def write_answers(run: Run, nonce: str, answers: pl.DataFrame) -> Part:
    """Put the answers of a batch on disk."""
    table = io.BytesIO()
    answers.write_parquet(table, compression="zstd", compression_level=1, statistics=False)
    path = run.folder / "answers" / f"{nonce}.parquet"
    crash_points.point("answers-before")
    run.store.write(path, table.getbuffer())
    crash_points.point("answers-after")
    sha256 = hashlib.sha256(table.getbuffer()).hexdigest()
    return Part(file=f"answers/{path.name}", bytes=table.getbuffer().nbytes, sha256=sha256)


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
