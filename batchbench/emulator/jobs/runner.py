"""Runs a batch: one pass over the input that answers it and writes the result files.

It runs in a worker thread. It keeps a few buffers and two integers per line in memory, and changes only the files that
the job names. The scheduler records its result in the ledger.
"""

import mmap
import os
import re
import threading
from array import array
from collections.abc import Callable, Iterator
from hashlib import blake2b, sha256
from math import gcd
from pathlib import Path

import msgspec

from batchbench.core.money import Price
from batchbench.emulator.dialects.codec import BatchCodec
from batchbench.emulator.faults.line import CHANGES, ERRORS, damaged_line, with_id
from batchbench.emulator.faults.rules import Faults
from batchbench.emulator.jobs.answers import COUNT_FAULTS, REPLY_FAULTS, LineResult
from batchbench.emulator.jobs.files import publish, write_all
from batchbench.emulator.ledger.events import Dialect, Outcome, OutcomeCounts

BUFFER = 1 << 20
BLOCK = 1_000  # answers in one `billed` event


class Stopped(Exception):  # noqa: N818 - not an error: the emulator is stopping
    """The emulator is stopping. The pass leaves only scratch files."""


class BillBlock(msgspec.Struct, kw_only=True):
    """Answers to bill in one event; position k of every list belongs to the same answer."""

    ids: list[str]
    inputs: list[int]
    outputs: list[int]
    costs: list[int]
    texts: list[str]


class FileSize(msgspec.Struct, frozen=True):
    bytes: int
    lines: int


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a finished pass."""

    output: FileSize | None  # None if the file would be empty
    error: FileSize | None
    blocks: list[BillBlock]
    counts: OutcomeCounts
    input_tokens: int
    output_tokens: int
    thought_tokens: int
    cost: int
    line_faults: dict[str, list[str]]  # fault -> custom ids of the lines that it affected


class _CustomId(msgspec.Struct, gc=False):
    custom_id: str


_custom_id = msgspec.json.Decoder(_CustomId)


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines the bytes of the result files."""

    codec: BatchCodec
    dialect: Dialect
    source: Path
    output: Path
    error: Path | None  # None: errors go into the output file
    scratch: Path  # folder for unfinished files
    order: str  # determines the order of the results
    answer_count: int  # the first requests that get an answer, in the order of the results
    outcome: Outcome  # of the other requests
    price: Price
    faults: Faults
    number: int  # of the batch among the client's batches, from 1
    billed: frozenset[str]  # ids that an earlier, killed run of this batch has billed


def run(job: BatchJob, progress: Callable[[int], None], stop: threading.Event) -> RunResult:
    """Answer a batch and write its result files. A second run writes the same files."""
    answers = _Writer(job.scratch, job.output)
    errors = _Writer(job.scratch, job.error) if job.error else answers
    bill = _Bill(job.price, job.billed)
    faulty = _FaultyWriter(job, answers, errors) if job.faults.has("line") else None
    counts = {"succeeded": 0, "errored": 0, "cancelled": 0, "expired": 0}
    position = 0
    with _InputLines(job.source) as source, answers, errors:
        for raws in source.shuffled(job.order):
            progress(position)
            if stop.is_set():
                raise Stopped
            asked = raws[: max(0, job.answer_count - position)]
            if faulty is None:
                results = list(map(job.codec.answer, asked))
                answers.put([result.line for result in results if result.answered])
                errors.put([result.line for result in results if not result.answered])
            else:
                results = [faulty.write(raw, position + k) for k, raw in enumerate(asked)]
            answered = [result for result in results if result.answered]
            bill.add(answered)
            counts["succeeded"] += len(answered)
            counts["errored"] += len(results) - len(answered)
            if len(asked) < len(raws):
                rest = raws[len(asked) :]
                errors.put([job.codec.unanswered(raw, job.outcome).line for raw in rest])
                counts[job.outcome] += len(rest)
            position += len(raws)
        if faulty:
            faulty.flush()
        output = answers.finish()
        error = errors.finish() if errors is not answers else None
    return RunResult(
        output=output,
        error=error,
        blocks=bill.blocks,
        counts=OutcomeCounts(**counts),
        input_tokens=bill.input_tokens,
        output_tokens=bill.output_tokens,
        thought_tokens=bill.thought_tokens,
        cost=bill.cost,
        line_faults=faulty.line_faults if faulty else {},
    )


def text_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class _Bill:
    """Collects the bill. The totals include every answer, the blocks only answers that were not billed before."""

    def __init__(self, price: Price, billed: frozenset[str]) -> None:
        self.blocks: list[BillBlock] = []
        self.input_tokens = self.output_tokens = self.thought_tokens = self.cost = 0
        self._price = price
        self._billed = billed

    def add(self, results: list[LineResult]) -> None:
        block = self._block(results)
        self.input_tokens += sum(block.inputs)
        self.output_tokens += sum(block.outputs)
        self.thought_tokens += sum([result.thoughts for result in results])
        self.cost += sum(block.costs)
        if self._billed:
            block = self._block([result for result in results if result.id not in self._billed])
        if block.ids:
            self.blocks.append(block)

    def _block(self, results: list[LineResult]) -> BillBlock:
        cost = self._price.cost
        return BillBlock(
            ids=[result.id for result in results],
            inputs=[result.input for result in results],
            outputs=[result.output for result in results],
            costs=[cost(result.input, result.output) for result in results],
            texts=[text_digest(result.text) for result in results],
        )


class _Writer:
    """A result file with a scratch name; `finish` gives it its final name. An empty file is removed."""

    def __init__(self, scratch: Path, target: Path) -> None:
        self._target = target
        self._scratch = scratch / target.name
        self._fd = os.open(self._scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._buffer = bytearray()
        self._bytes = self._lines = 0

    def put(self, lines: list[bytes]) -> None:
        if lines:
            self._lines += len(lines)
            self._add(b"\n".join(lines) + b"\n")

    def put_raw(self, chunk: bytes) -> None:
        """Write bytes that contain their own newlines."""
        self._lines += chunk.count(b"\n")
        self._add(chunk)

    def finish(self) -> FileSize | None:
        self._flush()
        if not self._bytes:
            return None
        os.fsync(self._fd)
        publish(self._scratch, self._target)
        return FileSize(self._bytes, self._lines)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._scratch.unlink(missing_ok=True)

    def _add(self, chunk: bytes) -> None:
        self._buffer += chunk
        if len(self._buffer) >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._bytes += len(self._buffer)
        write_all(self._fd, self._buffer)
        self._buffer.clear()


class _FaultyWriter:
    """Writes the result lines of one batch, with faults."""

    def __init__(self, job: BatchJob, answers: _Writer, errors: _Writer) -> None:
        self._job = job
        self._answers = answers
        self._errors = errors
        self._unswapped: LineResult | None = None  # first line of a pair that will exchange ids
        self.line_faults: dict[str, list[str]] = {}

    def write(self, raw: bytes, position: int) -> LineResult:
        job = self._job
        custom_id = _custom_id.decode(raw).custom_id
        fault = job.faults.select("line", job.dialect, "line", custom_id, position + 1, job.number)
        if fault is None:
            return self._put(job.codec.answer(raw))
        name = fault.name
        self.line_faults.setdefault(name, []).append(custom_id)
        if name in COUNT_FAULTS or (name in REPLY_FAULTS and name not in CHANGES):
            return self._put(job.codec.answer(raw, name))
        if name in ERRORS:
            errors = ERRORS[name]
            if errors is None:
                return self._put(job.codec.unanswered(raw, "timeout"))
            return self._put(job.codec.error(raw, errors[job.dialect == "anthropic"]))
        result = job.codec.answer(raw, name if name in REPLY_FAULTS else "")
        if name == "line-swapped":
            self._swap(result)
        elif name == "line-both":
            self._put(result)
            self._errors.put([job.codec.unanswered(raw, "timeout").line])
        else:
            writer = self._answers if result.answered else self._errors
            writer.put_raw(damaged_line(name, result, job.dialect, fault.value))
        return result

    def flush(self) -> None:
        if self._unswapped:
            self._put(self._unswapped)

    def _put(self, result: LineResult) -> LineResult:
        (self._answers if result.answered else self._errors).put([result.line])
        return result

    def _swap(self, result: LineResult) -> None:
        """Exchange the ids of two answers: keep the first line until the second arrives."""
        if not result.answered:
            self._put(result)
        elif self._unswapped is None:
            self._unswapped = result
        else:
            first, self._unswapped = self._unswapped, None
            self._answers.put_raw(with_id(first.line, result.id) + with_id(result.line, first.id))


class _InputLines:
    """The lines of the input file in a fixed shuffled order, in blocks."""

    def __init__(self, source: Path) -> None:
        # Memory-mapped, because a system call per line would release the interpreter lock each time.
        with open(source, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = array("Q", [found.start() for found in re.finditer(b"\n", self._map)])
        if self._map[-1:] != b"\n":
            ends.append(len(self._map))
        starts = array("Q", [0]) + array("Q", [end + 1 for end in ends[:-1]])
        blank = {k for k in range(len(ends)) if ends[k] - starts[k] < 9 and not self._map[starts[k] : ends[k]].strip()}
        self._starts = array("Q", [start for k, start in enumerate(starts) if k not in blank]) if blank else starts
        self._ends = array("Q", [end for k, end in enumerate(ends) if k not in blank]) if blank else ends

    def __enter__(self) -> "_InputLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def shuffled(self, order: str) -> Iterator[list[bytes]]:
        # A stride that has no common factor with the number of lines visits each line once. It needs no table, and
        # unlike random.shuffle it is the same in every Python release.
        n = len(self._starts)
        digest = blake2b(order.encode(), digest_size=16).digest()
        first = int.from_bytes(digest[:8])
        stride = 2 + int.from_bytes(digest[8:]) % (n - 2) if n > 2 else 1  # n - 1 always qualifies
        while gcd(stride, n) != 1:
            stride += 1
        starts, ends, data = self._starts, self._ends, self._map
        for begin in range(0, n, BLOCK):
            block = [(first + k * stride) % n for k in range(begin, min(n, begin + BLOCK))]
            yield [data[starts[k] : ends[k]] for k in block]
