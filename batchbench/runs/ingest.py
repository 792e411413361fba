"""Read result files: attribute every line to the row that it answers, or set it aside.

A batch is complete if every id has a line. Neither counts nor the end of a download prove that.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from batchbench.compile.manifest import sizes_of
from batchbench.core.clock import Clock
from batchbench.core.money import MAX_AMOUNT, max_input_tokens
from batchbench.core.text import repair_json
from batchbench.errors import DataError
from batchbench.providers.chat import INTERRUPTED, LOST
from batchbench.providers.interface import Line, Provider
from batchbench.providers.target import Target
from batchbench.runs.events import Part, Ranges, Stored
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord
from batchbench.runs.results import ANSWERS, MAX_LINE, blocks, lines, write_answers

CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNPARSED = "unparsed"  # the error of a row with a line that cannot be read
CONFLICT = "two different answers"
COMPLETED = ("completed", "ended")  # provider statuses of a batch that ran to its end
LIMIT_REASONS = ("length", "max_tokens")  # finish reasons of an answer that the token limit has cut off
MAX_REASON = 300  # characters kept of a server's message
MAX_TOKENS = 2**32 - 1  # the largest count that the column holds; costs are computed from the true count

Decode = Callable[[bytes], list[Line]]


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch's result files hold."""

    answers: pl.DataFrame
    again: Ranges
    held: Ranges = []  # rows of `again` that were refused because of the server or the settings
    held_reason: str = ""
    cut_off: Ranges = []  # rows of `again` whose answers the short limit of the batch has cut off
    unprocessed: Ranges = []  # rows of `again` that cost nothing, as their lines prove
    unpriced: Ranges = []  # rows with a readable line that does not say what they cost
    missing: Ranges
    lacking: int  # rows without any line
    cut: bool = False  # a file ends within a line
    quarantined: list[bytes]  # lines that belong to no row
    cost: int
    failures: Counter[str]  # failed rows by reason


def ingest(parts: Iterable[Path], batch: BatchRecord, provider: Provider) -> Ingested:
    """Read the result files of a batch; for a rejected batch, read which of its lines the provider blames.

    Its cost is computed at the rates at which it was bought, whatever the price is by now.
    """
    rows = [row for start, stop in batch.ranges for row in range(start, stop)]
    files = list(parts)
    if refusals := [file for file in files if file.name.endswith("-refusal.jsonl.zst")]:
        return _rejected(rows, provider.read(b"\n".join(lines(refusals[0]))).refused, batch)
    attribution = _Attribution([f"{batch.nonce}-{row}-{batch.rep}" for row in rows], provider.decode)
    cut = False
    for path in files:
        for block in blocks(path):
            attribution.add(block)
        cut |= not attribution.last_readable
    # A batch that was stopped has a line for every row that it did not process. A row without a line may have been
    # answered and lost on the way, so it is not bought again. If there is no file, and the provider reports that it
    # has done nothing, no row was processed.
    unprocessed = batch.provider_status not in COMPLETED and not files and not batch.done
    ingested = _summarize(rows, attribution, batch, unprocessed=unprocessed)
    return msgspec.structs.replace(ingested, cut=cut)


def write_results(run: Run, batch: BatchRecord, sealed: list[Part], found: Ingested, clock: Clock) -> Stored:
    """Write the answers of a batch to disk; returns the event that the caller has to append."""
    if found.quarantined:
        run.store.write(run.folder / "quarantine" / f"{batch.nonce}.jsonl", b"\n".join(found.quarantined) + b"\n")
    answers = write_answers(run, batch.nonce, found.answers)
    tokens_per_byte, above = 0.0, 0
    if batch.tokens_per_byte or (run.state.asked and run.state.asked.budget_mode == "learnt"):
        sizes = sizes_of(run.manifest_folder, run.manifest, batch.ranges)
        tokens_per_byte, above = measure_input(found.answers, sizes, run.target, batch.tokens_per_byte)
    longest = found.answers["output_tokens"].max()
    return Stored(
        at=clock.now(),
        nonce=batch.nonce,
        parts=[*sealed, answers],
        answered=found.answers.height,
        again=found.again,
        missing=found.missing,
        quarantined=len(found.quarantined),
        cost=found.cost,
        outcomes=dict(found.answers["outcome"].value_counts().sort("outcome").rows()),
        held=found.held,
        held_reason=found.held_reason,
        cut_off=found.cut_off,
        longest=longest if isinstance(longest, int) else None,
        tokens_per_byte=tokens_per_byte,
        above=above,
        interrupted=found.failures[f"{LOST}: {INTERRUPTED}"],
    )


def measure_input(
    answers: pl.DataFrame, sizes: pl.DataFrame, target: Target, reserved: float | None
) -> tuple[float, int]:
    """The highest number of input tokens per byte, and how many rows have more input tokens than were reserved.

    `sizes` are the bytes of the rows' prompts, `reserved` the tokens per byte from which their reserve was computed.
    """
    sizes = sizes.with_columns(pl.col("bytes") + target.other_bytes)
    known = answers.filter(pl.col("input_tokens") > 0).join(sizes, on="id")
    rows = known.group_by("input_tokens", "bytes").len().rows()
    highest = max((tokens / size for tokens, size, _ in rows), default=0.0)
    return highest, sum(count for tokens, size, count in rows if tokens > max_input_tokens(size, reserved))


class _Attribution:
    """The lines of a batch, each at the index of the row that it answers."""

    def __init__(self, ids: list[str], decode: Decode) -> None:
        self._decode = decode
        self._index = {custom_id: index for index, custom_id in enumerate(ids)}
        self.found: list[Line | None] = [None] * len(ids)
        self.quarantined: list[bytes] = []  # lines that belong to no row
        self.last_readable = True  # whether the last line could be decoded

    def add(self, block: bytes) -> None:
        """Add lines, of which only the last one may lack its newline."""
        if not self._add_block(block):
            *complete, rest = block.split(b"\n")
            for text in complete:
                if text.strip():
                    self._add_line(text)
            if rest.strip():
                self._add_line(rest, complete=False)

    def _add_block(self, block: bytes) -> bool:
        """The fast path for nearly every block: readable lines, each with one id, of rows that have no line yet."""
        if len(block) > MAX_LINE:
            return False
        try:
            answers = self._decode(block)
        except UNREADABLE:
            return False
        if not len(answers) == block.count(b"\n") == block.count(b'"custom_id"'):
            return False
        indices = [self._index.get(answer.id, -1) for answer in answers]
        if -1 in indices or len(set(indices)) < len(indices) or any(self.found[index] is not None for index in indices):
            return False
        for index, answer in zip(indices, answers, strict=True):
            self.found[index] = answer
        self.last_readable = True
        return True

    def _add_line(self, text: bytes, *, complete: bool = True) -> None:
        """Add one line. An incomplete line proves nothing: another download may have all of it."""
        answer = _decode_line(text, self._decode)
        self.last_readable = answer is not None
        if answer is None:
            self.quarantined.append(text)
            if not complete:
                return
            answer = _unparsed(text)
        index = self._index.get(answer.id)
        if index is None:
            if self.last_readable:
                self.quarantined.append(text)
            return
        earlier = self.found[index]
        if earlier is None or _preferred(answer, earlier):
            self.found[index] = answer
        elif answer != earlier and not _preferred(earlier, answer):
            # Two different answers with one id: it is unknown which one is the row's.
            self.quarantined.append(text)
            self.found[index] = _conflict(earlier)


def _rejected(rows: list[int], reasons: dict[int, str], batch: BatchRecord) -> Ingested:
    """Nothing ran and nothing is owed: the lines that the provider blames have failed, the others are asked again."""
    blamed = {rows[number - 1]: reason for number, reason in sorted(reasons.items())}
    failed = [Line(id="", outcome="failed", error=reason) for reason in blamed.values()]
    return Ingested(
        answers=answer_frame(list(blamed), failed, batch.rep),
        again=as_ranges([row for row in rows if row not in blamed]),
        unprocessed=as_ranges([row for row in rows if row not in blamed]),
        missing=[],
        lacking=0,
        quarantined=[],
        cost=0,
        failures=Counter(blamed.values()),
    )


def _decode_line(text: bytes, decode: Decode) -> Line | None:
    if len(text) > MAX_LINE or (text.count(b'"custom_id"') > 1 and _repeats_its_id(text)):
        return None
    try:
        answers = decode(text)
    except UNREADABLE:
        try:
            answers = decode(repair_json(text))
        except (ValueError, RecursionError):
            return None
    return answers[0] if len(answers) == 1 else None


def _unparsed(text: bytes) -> Line:
    """An unreadable line that may still have an id: the row was answered, but the answer is lost."""
    found = CUSTOM_ID.findall(text[:MAX_LINE])
    custom_id = found[0].decode() if len(set(found)) == 1 else ""
    return Line(id=custom_id, outcome="failed", error=UNPARSED, usage=False)


def _repeats_its_id(text: bytes) -> bool:
    """Whether an object in a line has two ids, so that it is unknown which one counts."""
    seen: list[str] = []

    def hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen.extend(name for name, _ in pairs if name == "custom_id" and [n for n, _ in pairs].count(name) > 1)
        return dict(pairs)

    try:
        json.loads(text.decode("utf-8", "replace"), object_pairs_hook=hook)
    except (ValueError, RecursionError):
        return True
    return bool(seen)


def _preferred(answer: Line, other: Line) -> bool:
    """Prefer an answer to a failure."""
    return other.outcome == "failed" and answer.outcome != "failed"


def _conflict(line: Line) -> Line:
    return Line(
        id=line.id,
        outcome="failed",
        input_tokens=line.input_tokens,
        output_tokens=line.output_tokens,
        model=line.model,
        error=CONFLICT,
    )


def _summarize(rows: list[int], attribution: _Attribution, batch: BatchRecord, *, unprocessed: bool) -> Ingested:
    """Sort rows by outcome, and add up their cost."""
    if batch.rates is None:
        raise DataError(f"the journal does not say at which price batch {batch.nonce} was bought")
    pairs = list(zip(rows, attribution.found, strict=True))
    lacking = [row for row, answer in pairs if answer is None]
    # What was processed may have been answered, charged and lost on the way.
    again, free, missing = (lacking, [*lacking], []) if unprocessed else ([], [], lacking)
    held: list[int] = []
    cut_off: list[int] = []
    unpriced: list[int] = []
    kept: list[int] = []
    answers: list[Line] = []
    failures: Counter[str] = Counter()
    held_reason = ""
    limited = batch.max_tokens is not None
    cost, unknown = 0, len(missing)  # micro-dollars; requests with unknown cost
    cost_of = cache(batch.rates.cost)  # answers have only a few hundred different lengths
    for row, answer in pairs:
        if answer is None:
            continue
        if answer.outcome == "failed":
            failures[answer.error or ""] += 1
        if answer.usage:
            cost += cost_of(answer.input_tokens, answer.output_tokens)
        else:
            unknown += 1
            if answer.error != UNPARSED:
                unpriced.append(row)
        if limited and _is_cut(answer):
            again.append(row)
            cut_off.append(row)
        elif answer.again:
            again.append(row)
            if answer.usage:
                free.append(row)
            if answer.held:
                held.append(row)
                held_reason = held_reason or answer.error or ""
        else:
            kept.append(row)
            answers.append(answer)
    if len(rows) > 1 and len(kept) == len(rows) and all(map(_is_refusal, answers)):
        # The cause is the server or the settings, not each of the prompts.
        again, held, free, held_reason = kept, kept, kept, answers[0].error or ""
        kept, answers, failures = [], [], Counter()
    return Ingested(
        cost=min(cost + _max_cost(batch, unknown, cost), MAX_AMOUNT),
        answers=answer_frame(kept, answers, batch.rep),
        again=as_ranges(again),
        held=as_ranges(held),
        held_reason=held_reason[:MAX_REASON],
        cut_off=as_ranges(cut_off),
        unprocessed=as_ranges(free),
        unpriced=as_ranges(unpriced),
        missing=as_ranges(missing),
        lacking=len(lacking),
        quarantined=attribution.quarantined,
        failures=failures,
    )


def _is_cut(answer: Line) -> bool:
    """Whether the token limit has cut an answer off. With a short limit, the row is asked again with the full one."""
    return answer.finish in LIMIT_REASONS and answer.outcome in ("truncated", "empty")


def _is_refusal(answer: Line) -> bool:
    """Whether the provider refused the request, and nothing was generated."""
    refused = answer.outcome == "failed" and answer.usage and answer.error not in (UNPARSED, CONFLICT)
    return refused and not answer.output_tokens


def _max_cost(batch: BatchRecord, rows: int, known_cost: int) -> int:
    """An upper bound for rows of unknown cost: with the rows of known cost, no more than the reserve."""
    return min(rows * max_row_cost(batch), max(0, batch.reserve - known_cost))


def max_row_cost(batch: BatchRecord) -> int:
    """An upper bound for one row of a batch."""
    return batch.max_row_cost or -(-batch.reserve // batch.rows)


def answer_frame(rows: list[int], answers: list[Line], rep: int) -> pl.DataFrame:
    """Answers as columns, built one column at a time: one tuple per row would take longer than decoding the lines."""
    columns: dict[str, list[Any]] = {"id": rows, "rep": [rep] * len(rows)}
    columns |= {name: list(map(attrgetter(name), answers)) for name in ANSWERS if name not in columns}
    for name in ("input_tokens", "output_tokens"):
        if min(columns[name], default=0) < 0 or max(columns[name], default=0) > MAX_TOKENS:
            columns[name] = [min(max(count, 0), MAX_TOKENS) for count in columns[name]]
    columns["logprobs"] = [
        None if tops is None else [{"token": token, "logprob": logprob} for token, logprob in tops]
        for tops in columns["logprobs"]
    ]
    return pl.DataFrame([pl.Series(name, columns[name], dtype) for name, dtype in ANSWERS.items()])


def as_ranges(rows: list[int]) -> Ranges:
    """Sorted rows as ranges."""
    ranges: Ranges = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return ranges
