"""The provider's queue: its limit is read from the text of a refusal, and a size that failed is not tried at once."""

import pytest

from batchbench.dispatch.queue_limit import estimated_tokens, queue_limit
from batchbench.dispatch.state import TRY_MORE_AFTER, BatchSize
from batchbench.providers.interface import Limits

OPENAI = "Enqueued token limit reached for gpt-4o in organization org-8x1. Limit: 2,000,000 enqueued tokens. Please try"
TEXTS = [
    (f"token_limit_exceeded: {OPENAI} again once some in_progress batches have been completed.", 2_000_000),
    ("Limit: 90000 enqueued tokens", 90_000),
    ("The batch's enqueued tokens exceed the configured limit of 30K.", 30_000),
    ("the token quota of 1.5M is used up", 1_500_000),
    ("maximum: 5 million tokens", 5_000_000),
    ("Token limit is 3B", 3_000_000_000),
    ("tokens: limit = 20,000,000,", 20_000_000),
    ("Enqueued token limit reached for gpt-4o in organization org-123", None),
    ("limit of 100,000 requests; tokens are not limited", None),
    ("Limit: 50 batches", None),  # not about tokens
    ("Limit: 0 enqueued tokens", None),
    ("Rate limit reached: Limit: 30,000 tokens per min (TPM). Please try again in 2s.", None),
    ("tokens: limit 30000/min", None),
    ("token limit: 500 RPM", None),
    ("try again in 30 seconds, the token queue is full", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "limit"), TEXTS)
def test_the_limit_of_a_queue_is_read_from_the_refusal(text: str, limit: int | None) -> None:
    assert queue_limit(text) == limit


def test_tokens_are_estimated_from_bytes() -> None:
    assert estimated_tokens(4000, 10) == 1080


def size(requests: int = 1000) -> BatchSize:
    return BatchSize(Limits(requests=requests, bytes=1, open_batches=1))


def test_a_named_limit_becomes_a_number_of_rows() -> None:
    learnt = size()
    learnt.learn(2_000, tokens=10_000, rows=100)
    assert learnt.queued_rows == 20
    learnt.learn(1, tokens=10_000, rows=100)
    assert learnt.queued_rows == 1


def test_a_named_limit_is_relaxed_but_never_past_a_size_that_failed_twice() -> None:
    learnt, room, failed = size(), 25, list[int]()
    learnt.learn(2_000, tokens=10_000, rows=100)
    for _ in range(TRY_MORE_AFTER * 20):
        assert learnt.queued_rows is not None
        assert sum(before <= learnt.queued_rows for before in failed) < 2
        if learnt.queued_rows > room:
            failed.append(learnt.queued_rows)
            learnt.learn(20, tokens=failed[-1] - 5, rows=failed[-1] - 5, queued=5)
        learnt.stored()
    assert 2 <= len(failed) <= 8
    assert learnt.queued_rows is not None
    assert 20 < learnt.queued_rows <= room


def test_a_named_limit_that_was_too_low_is_left_behind() -> None:
    learnt = size()
    learnt.learn(2_000, tokens=10_000, rows=100)
    for _ in range(TRY_MORE_AFTER * 5):
        learnt.stored()
    assert learnt.queued_rows == 640


def test_few_batches_are_refused_while_the_largest_size_is_searched_for() -> None:
    learnt, refused, stored = size(), 0, 0
    while stored < 100:
        if learnt.limit > 130:
            learnt.queue_full(learnt.limit, 0.0)
            refused += 1
        else:
            learnt.stored()
            stored += 1
    assert refused <= 25  # with doubling after every success it was every second batch
    assert learnt.limit >= 100


def test_a_queue_that_was_full_of_others_batches_does_not_keep_batches_small() -> None:
    learnt = size()
    for _ in range(12):
        learnt.queue_full(learnt.limit, 0.0)
    assert learnt.limit == 1
    for _ in range(TRY_MORE_AFTER * 12):
        learnt.stored()
    assert learnt.limit == 1000
