"""How fast a server may be called is found out, learnt from its headers, and kept to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.transport.rate_limit import MOST, Bucket, RateLimit, seconds


class Watch:
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
def test_durations_are_read_as_servers_write_them(text: str, amount: float) -> None:
    assert seconds(text) == pytest.approx(amount)


@given(st.dictionaries(st.sampled_from(sorted(limits(1, 1, 1, 1))), st.text(max_size=20)))
def test_no_header_breaks_the_pace(headers: dict[str, str]) -> None:
    pace = RateLimit(Watch())
    pace.heed(headers)
    assert 0 <= pace.wait(100) <= 60


def test_nothing_is_waited_for_until_a_limit_is_known() -> None:
    pace = RateLimit(Watch())
    for _ in range(1000):
        assert pace.wait(10_000) == 0
        pace.take(10_000)


def test_calls_keep_to_the_number_that_a_minute_allows() -> None:
    watch = Watch()
    pace = RateLimit(watch)
    pace.heed(limits(120, 1, 10**9, 10**9))
    pace.take(1)
    assert pace.wait(1) == pytest.approx(0.5)  # two in a second
    watch.time += 0.5
    assert pace.wait(1) == pytest.approx(0)


def test_large_calls_wait_for_the_tokens_that_they_need() -> None:
    watch = Watch()
    pace = RateLimit(watch)
    pace.heed(limits(10**6, 10**6, 6000, 100))
    assert pace.wait(100) == 0
    assert pace.wait(300) == pytest.approx(2.0)
    assert pace.wait(10**6) == pytest.approx(59.0)  # more than a minute allows: a full minute has to do
    watch.time += 120
    pace.take(10**6)
    assert pace.wait(1) > 60  # and it is a debt


def test_what_is_in_flight_is_not_forgotten_because_the_server_has_not_seen_it_yet() -> None:
    watch = Watch()
    bucket = Bucket()
    bucket.learn(60, 60, watch())
    for _ in range(60):
        bucket.take(1, watch())
    bucket.learn(60, 59, watch())
    assert bucket.wait(1, watch()) == pytest.approx(1.0)


def test_an_exhausted_limit_and_a_wish_to_be_left_alone_are_waited_out() -> None:
    watch = Watch()
    pace = RateLimit(watch)
    pace.heed(limits(10**6, 0, 10**9, 10**9, reset="7s"))
    assert pace.wait(1) == pytest.approx(7)
    pace.bad(watch(), 20.0)
    assert pace.wait(1) == pytest.approx(20)
    watch.time += 20
    assert pace.wait(1) == pytest.approx(0)


def test_as_many_calls_at_once_are_made_as_the_server_bears() -> None:
    watch = Watch()
    pace = RateLimit(watch)
    for _ in range(5000):
        pace.good()
    assert pace.width == MOST
    for _ in range(30):
        pace.bad(watch() - 1)  # turned away together, which is one warning
    assert (pace.width, pace.wait(1)) == (MOST / 2, 0)
    for _ in range(20):
        watch.time += 2
        pace.bad(watch() - 1)
    assert pace.width == 1


def test_calls_that_go_wrong_one_after_the_other_are_waited_for_longer_and_longer() -> None:
    watch = Watch()
    pace = RateLimit(watch)
    waited = []
    for _ in range(9):
        pace.bad(watch() - 0.1)
        waited.append(pace.wait(1))
        watch.time += waited[-1] + 1
    assert waited == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    pace.good()
    pace.bad(watch() - 0.1)
    assert pace.wait(1) == 0
