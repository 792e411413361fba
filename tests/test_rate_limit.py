"""The client finds out how fast it may call a server, reads its rate limit headers, and obeys them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.transport.rate_limit import MAX_CONCURRENCY, Bucket, RateLimit, parse_duration


class FakeClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def limits(requests: int, left: int, tokens: int, tokens_left: int, reset: str = "1s") -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(requests),
        "x-ratelimit-remaining-requests": str(left),
        "x-ratelimit-reset-requests": reset,
        "x-ratelimit-limit-tokens": str(tokens),
        "x-ratelimit-remaining-tokens": str(tokens_left),
        "x-ratelimit-reset-tokens": reset,
    }


@pytest.mark.parametrize(
    ("text", "amount"),
    [("6m0s", 360), ("20ms", 0.02), ("1h2m", 3720), ("2m59.56s", 179.56), ("1.5", 1.5), ("59", 59), ("", 0), ("x", 0)],
)
def test_durations_are_parsed_as_servers_write_them(text: str, amount: float) -> None:
    assert parse_duration(text) == pytest.approx(amount)


@given(st.dictionaries(st.sampled_from(sorted(limits(1, 1, 1, 1))), st.text(max_size=20)))
def test_no_header_breaks_the_rate_limit(headers: dict[str, str]) -> None:
    rate_limit = RateLimit(FakeClock())
    rate_limit.read_headers(headers)
    assert 0 <= rate_limit.wait(100) <= 60


def test_calls_do_not_wait_until_a_limit_is_known() -> None:
    rate_limit = RateLimit(FakeClock())
    for _ in range(1000):
        assert rate_limit.wait(10_000) == 0
        rate_limit.consume(10_000)


def test_calls_per_minute_stay_within_the_limit() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(clock)
    rate_limit.read_headers(limits(120, 1, 10**9, 10**9))
    rate_limit.consume(1)
    assert rate_limit.wait(1) == pytest.approx(0.5)  # two per second
    clock.time += 0.5
    assert rate_limit.wait(1) == pytest.approx(0)


def test_a_large_call_waits_until_enough_tokens_are_allowed() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(clock)
    rate_limit.read_headers(limits(10**6, 10**6, 6000, 100))
    assert rate_limit.wait(100) == 0
    assert rate_limit.wait(300) == pytest.approx(2.0)
    assert rate_limit.wait(10**6) == pytest.approx(59.0)  # more than a minute's limit: waits until the bucket is full
    clock.time += 120
    rate_limit.consume(10**6)
    assert rate_limit.wait(1) > 60  # the level is negative


def test_calls_in_flight_count_although_the_server_has_not_counted_them_yet() -> None:
    clock = FakeClock()
    bucket = Bucket()
    bucket.learn(60, 60, clock())
    for _ in range(60):
        bucket.consume(1, clock())
    bucket.learn(60, 59, clock())
    assert bucket.wait(1, clock()) == pytest.approx(1.0)


def test_the_client_waits_for_a_reset_and_for_retry_after() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(clock)
    rate_limit.read_headers(limits(10**6, 0, 10**9, 10**9, reset="7s"))
    assert rate_limit.wait(1) == pytest.approx(7)
    rate_limit.failed(clock(), 20.0)
    assert rate_limit.wait(1) == pytest.approx(20)
    clock.time += 20
    assert rate_limit.wait(1) == pytest.approx(0)


def test_concurrency_grows_with_success_and_halves_with_failure() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(clock)
    for _ in range(5000):
        rate_limit.succeeded()
    assert rate_limit.concurrency == MAX_CONCURRENCY
    for _ in range(30):
        rate_limit.failed(clock() - 1)  # failed at the same time: counts once
    assert (rate_limit.concurrency, rate_limit.wait(1)) == (MAX_CONCURRENCY / 2, 0)
    for _ in range(20):
        clock.time += 2
        rate_limit.failed(clock() - 1)
    assert rate_limit.concurrency == 1


def test_pauses_grow_with_failures_in_a_row() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(clock)
    waited = []
    for _ in range(9):
        rate_limit.failed(clock() - 0.1)
        waited.append(rate_limit.wait(1))
        clock.time += waited[-1] + 1
    assert waited == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    rate_limit.succeeded()
    rate_limit.failed(clock() - 0.1)
    assert rate_limit.wait(1) == 0
