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
from batchbench.runs.events import REREAD, Part
from batchbench.runs.folder import Run
from batchbench.runs.journal import RESTORE, BatchRecord, RunState

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_LINE = 16 << 20  # bytes; a longer line is no answer, and is cut off when it is read
BLOCK = 1 << 18  # bytes read at once
SALVAGED = "salvaged-"  # begins the names of files in quarantine/ that `batchbench salvage` has replaced
OUTCOMES = ("answered", "refused", "filtered", "truncated", "failed", "empty")
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
NO_MEMORY = ("Unable to create ZSTD_DCtx", "not enough memory")  # in the text of a ZstdError


class UnreadableFileError(DataError):
    """A result file that cannot be decompressed."""


class Segment:
    """A result file that is being downloaded: compressed under a scratch name until it is sealed."""

    def __init__(self, run: Run, nonce: str, part: str) -> None:
        self._path = run.raw(nonce, part)
        self._scratch = self._path.with_name(f".scratch-{self._path.name}")
        with _memory_errors():
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
        with _memory_errors():
            compressed = self._compressor.compress(piece)
        self._put(compressed)

    def _put(self, block: bytes) -> None:
        with self._dropped_on_failure():
            self._file.write(block)
        self._sha256.update(block)
        self._size += len(block)

    def seal(self) -> Part:
        """Put the file on disk under its final name."""
        with _memory_errors():
            compressed = self._compressor.flush()
        self._put(compressed)
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


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Raise MemoryError if a compressor fails: any bytes can be compressed, so the memory is full."""
    try:
        yield
    except zstd.ZstdError as error:
        raise MemoryError(str(error)) from None


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a sealed result file. A line ends at a newline byte and nowhere else."""
    for block in blocks(path):
        yield from block.removesuffix(b"\n").split(b"\n")


def blocks(path: Path) -> Iterator[bytes]:
    """A sealed result file, some complete lines at a time; the last line may lack its end.

    A line is cut off after MAX_LINE + 1 bytes, so that a file of one endless line fits into memory. Raises
    UnreadableFileError if the file is damaged.
    """
    try:
        yield from _blocks(path)
    except (EOFError, zstd.ZstdError) as error:
        if any(phrase in str(error) for phrase in NO_MEMORY):
            raise MemoryError(str(error)) from None
        raise UnreadableFileError(_damage(path)) from None


def _blocks(path: Path) -> Iterator[bytes]:
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


def readable_part(run: Run, path: Path) -> Part | None:
    """A result file on disk that the journal does not name yet; None if there is none.

    A damaged file is moved to quarantine/, so that it can be fetched again.
    """
    if not path.exists():
        return None
    try:
        for _ in blocks(path):
            pass
    except UnreadableFileError:
        set_aside(run, path)
        return None
    return file_part(path, run.folder)


def set_aside(run: Run, path: Path, name: str = "") -> Path:
    """Move a file to quarantine/, under a name that no other file has there."""
    name = name or path.name
    aside = run.folder / "quarantine" / name
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{name}.{number}")
    with explained(aside):
        path.rename(aside)
        sync(aside.parent)
        sync(path.parent)
    return aside


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
    if not parts:
        return pl.LazyFrame(schema=ANSWERS)
    return pl.scan_parquet([_checked(folder, part) for part in parts], glob=False)


def sample_answers(folder: Path, state: RunState, batches: int = 4, rows: int = 500) -> pl.DataFrame:
    """Some answers of a run: up to `rows` of each of a few batches that are spread evenly.

    The rows are random: those at even distances may all be about the same side of a pair.
    """
    parts = [part for batch in state.batches.values() for part in _answer_parts(batch)]
    chosen = parts[:: max(1, -(-len(parts) // batches))]
    tables = [pl.read_parquet(content(_checked(folder, part))) for part in chosen]
    return pl.concat(
        [pl.DataFrame(schema=ANSWERS), *(table.sample(min(table.height, rows), seed=0) for table in tables)]
    )


def _checked(folder: Path, part: Part) -> Path:
    """The path of a file, after a check of its digest."""
    path = folder / part.file
    if not path.is_file() or file_part(path, folder) != part:
        raise DataError(_damage(path))
    return path


def _answer_parts(batch: BatchRecord) -> list[Part]:
    """The files with the answers of a batch; a file of lines that were read again replaces those before it."""
    parts = [part for part in batch.stored.parts if part.file.startswith("answers/")] if batch.stored else []
    first = max((number for number, part in enumerate(parts) if REREAD in part.file), default=0)
    return parts[first:]


def _damage(path: Path) -> str:
    return f"{path} is missing or damaged: {RESTORE}, and see `batchbench audit`"


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
                    raise DataError(_damage(path))
            counts.update(batch.stored.outcomes)
            continue
        answers = read_answers(folder, RunState(batches={batch.nonce: batch})).filter(pl.col("id") < rows)
        counts.update(dict(answers.group_by("outcome").len().collect().rows()))
    return counts


def answer_files(folder: Path, batch: BatchRecord) -> list[Path]:
    """The files that hold the answers of a batch."""
    return [folder / part.file for part in _answer_parts(batch)]


def reread_file(batch: BatchRecord) -> str:
    """The name of the file for answers of lines that are read again."""
    number = sum(REREAD in part.file for part in batch.stored.parts) if batch.stored else 0
    return f"answers/{batch.nonce}{REREAD}{number}.parquet"


def file_part(path: Path, folder: Path) -> Part:
    """A file on disk, with its size and digest."""
    kept = content(path)
    return Part(file=str(path.relative_to(folder)), bytes=len(kept), sha256=hashlib.sha256(kept).hexdigest())
