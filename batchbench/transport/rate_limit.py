"""Pure: when a rate limit allows the next call: concurrent calls, calls per minute, tokens per minute.

The number of concurrent calls adapts: it grows by one after each round of successes and is halved after a refused or
lost call. The limits per minute come from the headers of the server's replies.
"""

import re
import time
from collections.abc import Callable, Mapping

FIRST_CONCURRENCY = 2.0  # calls in flight; a local server may answer one call at a time
MAX_CONCURRENCY = 64
HEADERS = [
    [f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset")] for kind in ("requests", "tokens")
]
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s|$)")
MAX_PAUSE = 60.0  # seconds, the longest wait after a reset header or a failure


class Bucket:
    """A token bucket that fills evenly within a minute; unlimited until a limit is known."""

    def __init__(self) -> None:
        self.limit: float | None = None  # per minute
        self._level = 0.0
        self._updated = 0.0

    def learn(self, limit: float | None, remaining: float | None, now: float) -> None:
        """Use the server's numbers. They may not include our calls in flight, so keep the lower level."""
        if limit is not None and limit > 0 and limit != self.limit:
            self._level = limit if self.limit is None else min(self._level_at(now), limit)
            self.limit, self._updated = limit, now
        if remaining is not None and self.limit is not None:
            self._level, self._updated = min(self._level_at(now), remaining), now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be consumed; an amount above the limit may be consumed when the bucket is full."""
        if self.limit is None:
            return 0.0
        return max(0.0, (min(amount, self.limit) - self._level_at(now)) * 60 / self.limit)

    def consume(self, amount: float, now: float) -> None:
        """Remove `amount`; the level may become negative."""
        if self.limit is not None:
            self._level, self._updated = self._level_at(now) - amount, now

    def _level_at(self, now: float) -> float:
        return min(self.limit or 0.0, self._level + (now - self._updated) * (self.limit or 0.0) / 60)


class RateLimit:
    """The known limits of one server."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.concurrency = FIRST_CONCURRENCY
        self.calls, self.tokens = Bucket(), Bucket()
        self.failures = 0  # rounds with a failed call since the last success
        self.proven = False  # a call has succeeded
        self._now = now
        self._last_failure = float("-inf")
        self._not_before = 0.0
        self._failure = ""  # why no call is made before that time; empty: the server's rate limit

    def wait(self, tokens: int) -> float:
        """Seconds until a call of this size may be made."""
        now = self._now()
        return max(self._not_before - now, self.calls.wait(1, now), self.tokens.wait(tokens, now), 0.0)

    def failure(self, tokens: int) -> str:
        """The failure after which a call of this size has to wait; empty if it waits for the server's rate limit."""
        now = self._now()
        limited = max(self.calls.wait(1, now), self.tokens.wait(tokens, now)) > self._not_before - now
        return "" if limited else self._failure

    def consume(self, tokens: int) -> None:
        """Count a call of this size."""
        now = self._now()
        self.calls.consume(1, now)
        self.tokens.consume(tokens, now)

    def succeeded(self) -> None:
        """Count a call that was answered."""
        self.concurrency = min(MAX_CONCURRENCY, self.concurrency + 1 / self.concurrency)
        self.failures = 0
        self.proven = True

    def failed(self, began: float, pause: float | None = None, why: str = "") -> None:
        """Count a call that was refused or lost; `pause` is how long the server asks us to wait.

        `why` is what went wrong; empty if the call exceeded the rate limit.

        Calls that were in flight at the same time count as one failure. From the second failure in a row on, we wait
        even if the server does not ask for it.
        """
        now = self._now()
        if began > self._last_failure:
            self._last_failure = now
            self.failures += 1
            self.concurrency = max(1.0, self.concurrency / 2)
            if self.failures > 1:
                pause = max(pause or 0.0, min(2.0**self.failures / 4, MAX_PAUSE))
        if pause:
            self._wait_until(now + pause, why)

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Learn the limits in a reply's headers; if a limit is used up, wait until it is reset."""
        now = self._now()
        for (limit, remaining, reset), bucket in zip(HEADERS, (self.calls, self.tokens), strict=True):
            left = parse_count(headers.get(remaining, ""))
            bucket.learn(parse_count(headers.get(limit, "")), left, now)
            if left == 0:
                pause = min(parse_duration(headers.get(reset, "")), MAX_PAUSE)
                self._wait_until(now + pause, "")

    def _wait_until(self, until: float, why: str) -> None:
        if until > self._not_before:
            self._not_before, self._failure = until, why


def parse_count(text: str) -> float | None:
    """A whole number in a header; None if it is anything else."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def parse_duration(text: str) -> float:
    """Seconds, from a duration as rate limit headers write it, such as `6m0s`, `20ms` or `1.5`; 0 if it is invalid."""
    return sum(float(amount) * UNITS[unit] for amount, unit in DURATION.findall(text))
