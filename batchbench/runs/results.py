"""IO: the files of a batch: what the provider sent, byte for byte but packed, and the answers made of it."""

import hashlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from batchbench.core import crash_points as crash
from batchbench.core.store import explained, reading, sync
from batchbench.errors import BatchbenchError
from batchbench.runs.events import Part
from batchbench.runs.folder import Run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CUT = (16 << 20) + 1  # bytes of a line; an answer is shorter
BLOCK = 1 << 18  # bytes that are read at once


class Segment:
    """A result file on its way to disk, compressed as it comes."""

    def __init__(self, run: Run, nonce: str, part: str) -> None:
        self._path = run.raw(nonce, part)
        self._scratch = self._path.with_name(f".scratch-{self._path.name}")
        self._compressor = zstd.ZstdCompressor(level=3)
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._prefix = _id_prefix(nonce)
        self._tail = b""
        self.completeness = 0, 0  # ids of the batch, and bytes, taken so far
        with explained(self._path):
            self._file = self._scratch.open("wb")

    def take(self, piece: bytes) -> None:
        """Keep the next piece."""
        seen = self._tail + piece  # an id may be split between two pieces
        self._tail = seen[1 - len(self._prefix) :]
        ids, size = self.completeness
        self.completeness = ids + seen.count(self._prefix), size + len(piece)
        try:
            packed = self._compressor.compress(piece)
        except zstd.ZstdError as error:  # any bytes can be packed
            raise MemoryError(str(error)) from None
        self._put(packed)

    def _put(self, block: bytes) -> None:
        with self._dropped_on_failure():
            self._file.write(block)
        self._sha256.update(block)
        self._size += len(block)

    def seal(self) -> Part:
        """Put the file under its final name, for good."""
        self._put(self._compressor.flush())
        with self._dropped_on_failure():
            crash.point("segment-written")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            crash.point("segment-synced")
            self._scratch.rename(self._path)
            crash.point("segment-renamed")
            sync(self._path.parent)
        return Part(file=f"raw/{self._path.name}", bytes=self._size, sha256=self._sha256.hexdigest())

    @contextmanager
    def _dropped_on_failure(self) -> Iterator[None]:
        try:
            with explained(self._path):
                yield
        except BatchbenchError:
            self.drop()  # on a full disk, half a file is in the way
            raise

    def drop(self) -> None:
        """Forget it; the provider still has it."""
        with suppress(OSError):  # what could not be written cannot be written now, either
            self._file.close()
        self._scratch.unlink(missing_ok=True)


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a kept result file; a line ends at a newline byte and nowhere else."""
    for block in blocks(path):
        yield from block.removesuffix(b"\n").split(b"\n")


def blocks(path: Path) -> Iterator[bytes]:
    """A kept result file, some whole lines at a time; the last may lack its end.

    What is longer than any answer is cut, so that a file of one endless line fits into memory.
    """
    with reading(path) as kept, zstd.open(kept, "rb") as file:
        left = b""
        while block := file.read(BLOCK):
            if len(left) == CUT and b"\n" not in block:
                continue  # the rest of a line that is cut
            end = block.rfind(b"\n") + 1
            if end:
                yield left + block[:end]
                left = b""
            left = (left + block[end:])[:CUT]
        if left:
            yield left


def completeness(path: Path, nonce: str) -> tuple[int, int]:
    """How many ids of a batch a kept result file holds, and its bytes: of two downloads, the larger one is fuller."""
    prefix, ids, size = _id_prefix(nonce), 0, 0
    for block in blocks(path):
        ids += block.count(prefix)
        size += len(block)
    return ids, size


def _id_prefix(nonce: str) -> bytes:
    return f'"{nonce}-'.encode()


def write_answers(run: Run, nonce: str, answers: pl.DataFrame) -> Part:
    """Keep the answers of a batch."""
    table = io.BytesIO()
    answers.write_parquet(table, compression="zstd", compression_level=1, statistics=False)
    path = run.answers(nonce)
    crash.point("answers-before")
    run.store.write(path, table.getbuffer())
    crash.point("answers-after")
    sha256 = hashlib.sha256(table.getbuffer()).hexdigest()
    return Part(file=f"answers/{path.name}", bytes=table.getbuffer().nbytes, sha256=sha256)


def is_refusal(path: Path) -> bool:
    """Whether a kept file is what a provider said of a batch that it refused, and no file of results."""
    return path.name.endswith("-refusal.jsonl.zst")
