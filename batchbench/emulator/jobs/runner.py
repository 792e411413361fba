"""Running a batch: one streaming pass that answers its input and writes its result files.

It runs in a worker thread, holds a few buffers and two integers per line, and touches nothing but the files it is
given. What it returns becomes ledger events.
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
from typing import Protocol

import msgspec

from batchbench.core.money import Price
from batchbench.emulator.dialects.openai.validation import Abandoned
from batchbench.emulator.faults import Faults
from batchbench.emulator.faults.line import ERRORS, damage, with_id
from batchbench.emulator.jobs.answers import TWISTS, Problem, Result
from batchbench.emulator.ledger.events import Counts, Dialect, Outcome

BUFFER = 1 << 20
BLOCK = 1_000  # answers in one `billed` event


class Codec(Protocol):
    """A dialect's way from an input line to a result line."""

    def answer(self, raw: bytes, twist: str = "") -> Result: ...
    def unanswered(self, raw: bytes, why: str) -> Result: ...
    def problem(self, raw: bytes, problem: Problem) -> Result: ...


class Block(msgspec.Struct, kw_only=True):
    """Answers to bill together; position k of every list is about the same answer."""

    ids: list[str]
    inputs: list[int]
    outputs: list[int]
    costs: list[int]
    texts: list[str]


class Written(msgspec.Struct, frozen=True):
    bytes: int
    lines: int


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished pass leaves: result files (null if they would be empty), what to bill, how many of each kind."""

    output: Written | None
    error: Written | None
    blocks: list[Block]
    counts: Counts
    input_tokens: int
    output_tokens: int
    cost: int
    struck: dict[str, list[str]]  # line faults played, and the ids they struck


class _Id(msgspec.Struct, gc=False):
    custom_id: str


_id = msgspec.json.Decoder(_Id)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the bytes of the result files."""

    codec: Codec
    dialect: Dialect
    source: Path
    output: Path
    error: Path | None  # null: errors stand among the answers
    scratch: Path  # folder for unfinished files
    order: str  # decides the order of the results
    answer: int  # so many requests are answered, in the order of the results
    outcome: Outcome  # what happens to the others
    price: Price
    faults: Faults
    billed: frozenset[str]  # ids that a killed run of this batch has billed already


def run(job: Job, progress: Callable[[int], None], stop: threading.Event) -> Ran:
    """Answer a batch and put its result files in place. Running it again gives the same files."""
    answers = _Writer(job.scratch, job.output)
    errors = _Writer(job.scratch, job.error) if job.error else answers
    bill = _Bill(job.price, job.billed)
    lines = _Distorter(job, answers, errors) if job.faults.any("line") else None
    tally = {"succeeded": 0, "errored": 0, "cancelled": 0, "expired": 0}
    position = 0
    with _Spans(job.source) as spans, answers, errors:
        for raws in spans.shuffled(job.order):
            progress(position)
            if stop.is_set():
                raise Abandoned
            asked = raws[: max(0, job.answer - position)]
            if lines is None:
                results = list(map(job.codec.answer, asked))
                answers.put([result.line for result in results if result.answered])
                errors.put([result.line for result in results if not result.answered])
            else:
                results = [lines.write(raw, position + k) for k, raw in enumerate(asked)]
            answered = [result for result in results if result.answered]
            bill.add(answered)
            tally["succeeded"] += len(answered)
            tally["errored"] += len(results) - len(answered)
            if len(asked) < len(raws):
                rest = raws[len(asked) :]
                errors.put([job.codec.unanswered(raw, job.outcome).line for raw in rest])
                tally[job.outcome] += len(rest)
            position += len(raws)
        if lines:
            lines.flush()
        done = answers.finish()
        failed = errors.finish() if errors is not answers else None
    return Ran(
        output=done,
        error=failed,
        blocks=bill.blocks,
        counts=Counts(**tally),
        input_tokens=bill.input_tokens,
        output_tokens=bill.output_tokens,
        cost=bill.cost,
        struck=lines.struck if lines else {},
    )


def text_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class _Bill:
    """Collects what to bill. Totals count every answer, blocks only those not billed before."""

    def __init__(self, price: Price, billed: frozenset[str]) -> None:
        self.blocks: list[Block] = []
        self.input_tokens = self.output_tokens = self.cost = 0
        self._price = price
        self._billed = billed

    def add(self, results: list[Result]) -> None:
        block = self._block(results)
        self.input_tokens += sum(block.inputs)
        self.output_tokens += sum(block.outputs)
        self.cost += sum(block.costs)
        if self._billed:
            block = self._block([result for result in results if result.id not in self._billed])
        if block.ids:
            self.blocks.append(block)

    def _block(self, results: list[Result]) -> Block:
        cost = self._price.cost
        return Block(
            ids=[result.id for result in results],
            inputs=[result.input for result in results],
            outputs=[result.output for result in results],
            costs=[cost(result.input, result.output) for result in results],
            texts=[text_digest(result.text) for result in results],
        )


class _Writer:
    """A result file under a scratch name until `finish` gives it its own; an empty one is not kept."""

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
        """Bytes with their own newlines."""
        self._lines += chunk.count(b"\n")
        self._add(chunk)

    def finish(self) -> Written | None:
        self._flush()
        if not self._bytes:
            return None
        os.fsync(self._fd)
        settle(self._scratch, self._target)
        return Written(self._bytes, self._lines)

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


class _Distorter:
    """Writes the lines of one batch with the line faults that strike them."""

    def __init__(self, job: Job, answers: _Writer, errors: _Writer) -> None:
        self._job = job
        self._answers = answers
        self._errors = errors
        self._swap: Result | None = None  # waits for a partner
        self.struck: dict[str, list[str]] = {}

    def write(self, raw: bytes, position: int) -> Result:
        job = self._job
        custom_id = _id.decode(raw).custom_id
        fired = job.faults.strike("line", job.dialect, "line", custom_id, position + 1)
        if fired is None:
            return self._plain(job.codec.answer(raw))
        name = fired.fault.name
        self.struck.setdefault(name, []).append(custom_id)
        if name in TWISTS:
            return self._plain(job.codec.answer(raw, name))
        if name in ERRORS:
            problems = ERRORS[name]
            if problems is None:
                return self._plain(job.codec.unanswered(raw, "timeout"))
            return self._plain(job.codec.problem(raw, problems[job.dialect == "anthropic"]))
        result = job.codec.answer(raw)
        writer = self._answers if result.answered else self._errors
        if name == "line-swapped":
            self._exchange(result, writer)
        elif name == "line-both":
            self._plain(result)
            self._errors.put([job.codec.unanswered(raw, "timeout").line])
        else:
            writer.put_raw(damage(name, result, job.dialect, fired.value))
        return result

    def flush(self) -> None:
        if self._swap:
            self._plain(self._swap)

    def _plain(self, result: Result) -> Result:
        (self._answers if result.answered else self._errors).put([result.line])
        return result

    def _exchange(self, result: Result, writer: _Writer) -> None:
        if self._swap is None or not result.answered:
            if self._swap is None and result.answered:
                self._swap = result
            else:
                self._plain(result)
            return
        writer.put_raw(with_id(self._swap.line, result.id) + with_id(result.line, self._swap.id))
        self._swap = None


class _Spans:
    """The lines of a file in a shuffled order, a block at a time."""

    def __init__(self, source: Path) -> None:
        # Mapped rather than read piece by piece: a system call per line would hand the interpreter to another thread.
        with open(source, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = array("Q", [found.start() for found in re.finditer(b"\n", self._map)])
        if self._map[-1:] != b"\n":
            ends.append(len(self._map))
        starts = array("Q", [0]) + array("Q", [end + 1 for end in ends[:-1]])
        blank = {k for k in range(len(ends)) if ends[k] - starts[k] < 9 and not self._map[starts[k] : ends[k]].strip()}
        self._starts = array("Q", [start for k, start in enumerate(starts) if k not in blank]) if blank else starts
        self._ends = array("Q", [end for k, end in enumerate(ends) if k not in blank]) if blank else ends

    def __enter__(self) -> "_Spans":
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def shuffled(self, order: str) -> Iterator[list[bytes]]:
        # Stepping through the lines with a stride that shares no factor with their number visits each once, needs no
        # table, and cannot change with a Python release as a library shuffle may.
        n = len(self._starts)
        digest = blake2b(order.encode(), digest_size=16).digest()
        first = int.from_bytes(digest[:8])
        stride = 2 + int.from_bytes(digest[8:]) % (n - 2) if n > 2 else 1  # n - 1 always fits
        while gcd(stride, n) != 1:
            stride += 1
        starts, ends, data = self._starts, self._ends, self._map
        for begin in range(0, n, BLOCK):
            block = [(first + k * stride) % n for k in range(begin, min(n, begin + BLOCK))]
            yield [data[starts[k] : ends[k]] for k in block]


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write everything; the kernel may take less than it is offered."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


def settle(scratch: Path, target: Path) -> None:
    """Give a finished file its name, durably."""
    scratch.replace(target)
    fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
