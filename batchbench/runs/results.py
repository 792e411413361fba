"""IO: the files of a batch: the provider's result files, byte for byte but compressed, and the answers made of them."""

import hashlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from batchbench.core import crash_points
from batchbench.core.store import explained, reading, sync
from batchbench.errors import BatchbenchError
from batchbench.runs.answers import file_part
from batchbench.runs.events import Part
from batchbench.runs.folder import Run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_LINE = 16 << 20  # bytes; a longer line is no answer, and is cut off when it is read
BLOCK = 1 << 18  # bytes read at once


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
        except zstd.ZstdError as error:  # any bytes can be compressed, so it must be this
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
