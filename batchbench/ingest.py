"""From the provider's bytes to answers: every line attributed to the row it answers, or set aside.

Completeness is a matter of ids, never of counts or of how a download ended.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import polars as pl

from batchbench.journal import Batch, Ranges
from batchbench.money import Price
from batchbench.providers.seam import Line
from batchbench.runs import ANSWERS, as_ranges, lines

CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
LONGEST = 16 * 1024 * 1024  # bytes of one line; a longer one is set aside unread
WELL = ("completed", "ended")  # the words of providers for a batch that ran to its end
MOST_TOKENS = 2**32 - 1  # that a column of counts can hold; what was charged is computed from the true number


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch's result files hold."""

    answers: pl.DataFrame
    again: Ranges
    missing: Ranges
    lacking: int  # rows without any line
    strays: list[bytes]  # lines nobody could attribute
    cost: int
    trouble: Counter[str]  # how many rows failed for which reason


def ingest(
    parts: Iterable[Path], batch: Batch, decode: Callable[[bytes], Line], price: Price, last_try: set[int]
) -> Ingested:
    """Read result files; `last_try` are the rows that are not asked again whatever happened to them."""
    rows = [row for start, stop in batch.ranges for row in range(start, stop)]
    prefix = f"{batch.nonce}-"
    places = {f"{prefix}{row}-{batch.rep}": place for place, row in enumerate(rows)}
    found: list[Line | None] = [None] * len(rows)
    strays: list[bytes] = []
    files = list(parts)
    for path in files:
        for text in lines(path):
            if not text.strip():
                continue
            answer = _decoded(text, decode)
            if answer is None:
                strays.append(text)
                answer = _unparsed(text)
            place = places.get(answer.id)
            if place is None:
                if not strays or strays[-1] is not text:
                    strays.append(text)
                continue
            earlier = found[place]
            if earlier is None or _beats(answer, earlier):
                found[place] = answer
            elif answer != earlier and not _beats(earlier, answer):
                # Two different answers under one id: neither can be trusted to be the row's.
                strays.append(text)
                found[place] = _conflict(earlier)
    # A batch that was stopped names the rows it did not get to. One it does not name may have been answered and lost on
    # the way, and is not bought again; only where there is no file at all, nothing was done.
    return _sorted_out(rows, found, strays, batch, price, last_try, undone=batch.word not in WELL and not files)


def _decoded(text: bytes, decode: Callable[[bytes], Line]) -> Line | None:
    if len(text) > LONGEST or (text.count(b'"custom_id"') > 1 and _repeats_its_id(text)):
        return None
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # A stricter reader than the standard library's stumbles over half an emoji, cut off by a token limit.
        loose = json.loads(text.decode("utf-8", "replace").removeprefix("\ufeff"))
        whole = json.dumps(loose, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return decode(whole.encode())
    except (ValueError, RecursionError):
        return None


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
    batch: Batch,
    price: Price,
    last_try: set[int],
    *,
    undone: bool,
) -> Ingested:
    again: list[int] = []
    missing: list[int] = []
    kept: list[tuple[object, ...]] = []
    trouble: Counter[str] = Counter()
    cost = 0
    worst = -(-batch.reserve // batch.rows)
    for row, answer in zip(rows, found, strict=True):
        if answer is None and not undone:
            missing.append(row)
            cost += worst  # maybe answered, charged and lost on the way
            continue
        if answer is None:
            again.append(row)
            continue
        if answer.outcome == "failed":
            trouble[answer.error or ""] += 1
        if not answer.usage:
            cost += worst  # the provider does not say what it used: count the most it can have been
        else:
            cost += price.cost(answer.input_tokens, answer.output_tokens)
        if answer.again and row not in last_try:
            again.append(row)
            continue
        kept.append(
            (
                row,
                batch.rep,
                answer.outcome,
                answer.text,
                answer.finish,
                min(max(answer.input_tokens, 0), MOST_TOKENS),
                min(max(answer.output_tokens, 0), MOST_TOKENS),
                answer.model,
                answer.error,
                answer.logprobs,
            )
        )
    return Ingested(
        answers=_frame(kept),
        again=as_ranges(again),
        missing=as_ranges(missing),
        lacking=found.count(None),
        strays=strays,
        cost=cost,
        trouble=trouble,
    )


def _frame(kept: list[tuple[object, ...]]) -> pl.DataFrame:
    columns: list[tuple[object, ...]] = list(zip(*kept, strict=True)) if kept else [()] * len(ANSWERS)
    series = []
    for (name, dtype), values in zip(ANSWERS.items(), columns, strict=True):
        if name == "logprobs":
            cells = [
                None if value is None else [{"token": token, "logprob": logprob} for token, logprob in value]  # type: ignore[attr-defined]
                for value in values
            ]
            series.append(pl.Series(name, cells, dtype))
        else:
            series.append(pl.Series(name, values, dtype))
    return pl.DataFrame(series)
