"""From the provider's bytes to answers: every line attributed to the row it answers, or set aside.

Completeness is a matter of ids, never of counts or of how a download ended.
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

from batchbench.core.money import MAX_AMOUNT, Price
from batchbench.core.text import repair_json
from batchbench.providers.interface import Line, Provider
from batchbench.runs.answers import ANSWERS
from batchbench.runs.events import Ranges
from batchbench.runs.journal import BatchRecord
from batchbench.runs.progress import as_ranges
from batchbench.runs.results import CUT, blocks, is_refusal, lines

CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
LONGEST = CUT - 1  # bytes of one line; a longer one is set aside unread
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
WELL = ("completed", "ended")  # the words of providers for a batch that ran to its end
MOST_TOKENS = 2**32 - 1  # that a column of counts can hold; what was charged is computed from the true number

Decode = Callable[[bytes], list[Line]]


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch's result files hold."""

    answers: pl.DataFrame
    again: Ranges
    missing: Ranges
    lacking: int  # rows without any line
    cut: bool = False  # whether a file ends with half a line
    strays: list[bytes]  # lines nobody could attribute
    cost: int
    trouble: Counter[str]  # how many rows failed for which reason

    @property
    def outcomes(self) -> dict[str, int]:
        """How many answers ended how."""
        return dict(self.answers["outcome"].value_counts().sort("outcome").rows())


def ingest(parts: Iterable[Path], batch: BatchRecord, provider: Provider, price: Price) -> Ingested:
    """Read result files; or, of a batch that was refused for some of its lines, what the provider says of those."""
    rows = [row for start, stop in batch.ranges for row in range(start, stop)]
    files = list(parts)
    if refusals := [file for file in files if is_refusal(file)]:
        return _refused(rows, provider.read(b"\n".join(lines(refusals[0]))).refused, batch)
    reading = _Reading([f"{batch.nonce}-{row}-{batch.rep}" for row in rows], provider.decode)
    cut = False
    for path in files:
        for block in blocks(path):
            reading.take(block)
        cut |= not reading.readable
    # A batch that was stopped names the rows it did not get to. One it does not name may have been answered and lost on
    # the way, and is not bought again; only where there is no file at all, nothing was done.
    undone = batch.provider_status not in WELL and not files
    sorted_out = _sorted_out(rows, reading.found, reading.strays, batch, price, undone=undone)
    return msgspec.structs.replace(sorted_out, cut=cut)


class _Reading:
    """The lines of a batch on their way to their places."""

    def __init__(self, ids: list[str], decode: Decode) -> None:
        self._decode = decode
        self._places = {name: place for place, name in enumerate(ids)}
        self.found: list[Line | None] = [None] * len(ids)
        self.strays: list[bytes] = []  # lines nobody could attribute
        self.readable = True  # whether the last line was

    def take(self, block: bytes) -> None:
        """Take whole lines."""
        if not self._take_at_once(block):
            *whole, rest = block.split(b"\n")
            for text in whole:
                if text.strip():
                    self._take_one(text)
            if rest.strip():
                self._take_one(rest, ended=False)

    def _take_at_once(self, block: bytes) -> bool:
        """Nearly every block: lines that can be read, each with one id, of a row that has no answer yet."""
        if len(block) > LONGEST:
            return False
        try:
            answers = self._decode(block)
        except UNREADABLE:
            return False
        if not len(answers) == block.count(b"\n") == block.count(b'"custom_id"'):
            return False
        places = [self._places.get(answer.id, -1) for answer in answers]
        if -1 in places or len(set(places)) < len(places) or any(self.found[place] is not None for place in places):
            return False
        for place, answer in zip(places, answers, strict=True):
            self.found[place] = answer
        self.readable = True
        return True

    def _take_one(self, text: bytes, *, ended: bool = True) -> None:
        """Take a line, whatever it holds. Half of one says nothing of its row, whose whole line may yet be had."""
        answer = _decoded(text, self._decode)
        self.readable = answer is not None
        if answer is None:
            self.strays.append(text)
            if not ended:
                return
            answer = _unparsed(text)
        place = self._places.get(answer.id)
        if place is None:
            if self.readable:
                self.strays.append(text)
            return
        earlier = self.found[place]
        if earlier is None or _beats(answer, earlier):
            self.found[place] = answer
        elif answer != earlier and not _beats(earlier, answer):
            # Two different answers under one id: neither can be trusted to be the row's.
            self.strays.append(text)
            self.found[place] = _conflict(earlier)


def _refused(rows: list[int], reasons: dict[int, str], batch: BatchRecord) -> Ingested:
    """Nothing ran, so nothing is owed: lines that are to blame have failed, the others are asked again."""
    blamed = {rows[number - 1]: reason for number, reason in reasons.items()}
    return Ingested(
        answers=_frame(sorted(blamed), [Line("", "failed", error=blamed[row]) for row in sorted(blamed)], batch.rep),
        again=as_ranges([row for row in rows if row not in blamed]),
        missing=[],
        lacking=0,
        strays=[],
        cost=0,
        trouble=Counter(blamed.values()),
    )


def _decoded(text: bytes, decode: Decode) -> Line | None:
    if len(text) > LONGEST or (text.count(b'"custom_id"') > 1 and _repeats_its_id(text)):
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
    """A line that cannot be read but may still say whose it is: the row was answered, we just cannot tell how."""
    found = CUSTOM_ID.findall(text[:LONGEST])
    return Line(found[0].decode() if len(set(found)) == 1 else "", "failed", error="unparsed", usage=False)


def _repeats_its_id(text: bytes) -> bool:
    """Whether a line names its id twice at the top, so that nobody can say which one counts."""
    seen: list[str] = []

    def hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen.extend(name for name, _ in pairs if name == "custom_id" and [n for n, _ in pairs].count(name) > 1)
        return dict(pairs)

    try:
        json.loads(text.decode("utf-8", "replace"), object_pairs_hook=hook)
    except (ValueError, RecursionError):
        return True
    return bool(seen)


def _beats(answer: Line, other: Line) -> bool:
    """An answer beats a failure."""
    return other.outcome == "failed" and answer.outcome != "failed"


def _conflict(line: Line) -> Line:
    return Line(
        line.id, "failed", None, None, line.input_tokens, line.output_tokens, line.model, "two different answers"
    )


def _sorted_out(
    rows: list[int],
    found: list[Line | None],
    strays: list[bytes],
    batch: BatchRecord,
    price: Price,
    *,
    undone: bool,
) -> Ingested:
    again: list[int] = []
    missing: list[int] = []
    kept: list[int] = []
    answers: list[Line] = []
    trouble: Counter[str] = Counter()
    cost = untold = 0  # micro-dollars, and requests of which nobody knows what they were charged
    cost_of = cache(price.cost)  # answers are of a few hundred lengths
    for row, answer in zip(rows, found, strict=True):
        if answer is None:
            if undone:
                again.append(row)
            else:
                missing.append(row)
                untold += 1  # maybe answered, charged and lost on the way
            continue
        if answer.outcome == "failed":
            trouble[answer.error or ""] += 1
        if answer.usage:
            cost += cost_of(answer.input_tokens, answer.output_tokens)
        else:
            untold += 1
        if answer.again:
            again.append(row)
        else:
            kept.append(row)
            answers.append(answer)
    return Ingested(
        answers=_frame(kept, answers, batch.rep),
        again=as_ranges(again),
        missing=as_ranges(missing),
        lacking=found.count(None),
        strays=strays,
        cost=min(cost + _most(batch, untold, cost), MAX_AMOUNT),
        trouble=trouble,
    )


def _most(batch: BatchRecord, rows: int, beside: int) -> int:
    """The most that rows can have cost of which nobody knows it: all rows together cost no more than the reserve."""
    each = batch.max_row_cost or -(-batch.reserve // batch.rows)
    return min(rows * each, max(0, batch.reserve - beside))


def _frame(rows: list[int], answers: list[Line], rep: int) -> pl.DataFrame:
    """Answers as columns, taken one column at a time: a tuple for each row would take longer than reading it did."""
    columns: dict[str, list[Any]] = {"id": rows, "rep": [rep] * len(rows)}
    columns |= {name: list(map(attrgetter(name), answers)) for name in ANSWERS if name not in columns}
    for name in ("input_tokens", "output_tokens"):
        if min(columns[name], default=0) < 0 or max(columns[name], default=0) > MOST_TOKENS:
            columns[name] = [min(max(count, 0), MOST_TOKENS) for count in columns[name]]
    columns["logprobs"] = [
        None if tops is None else [{"token": token, "logprob": logprob} for token, logprob in tops]
        for tops in columns["logprobs"]
    ]
    return pl.DataFrame([pl.Series(name, columns[name], dtype) for name, dtype in ANSWERS.items()])
