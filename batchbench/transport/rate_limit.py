"""Pure: how fast a server may be called: so many calls at once, so many calls and tokens a minute.

Nothing is known at first. How many calls at once a server bears is found out: one more after each round that goes
well, half as many when it turns one away. What it allows in a minute it says itself, in the headers of its answers.
"""

import re
import time
from collections.abc import Callable, Mapping

MOST = 64  # calls in flight
HEADERS = [
    [f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset")] for kind in ("requests", "tokens")
]
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s|$)")
PATIENCE = 60.0  # seconds, the longest that a header makes us wait; what is still too early is turned away


class Bucket:
    """What is left of an allowance that fills up again evenly within a minute; endless until a limit is known."""

    def __init__(self) -> None:
        self.limit: float | None = None  # in a minute
        self._left = 0.0
        self._at = 0.0

    def learn(self, limit: float | None, left: float | None, now: float) -> None:
        """Take over what the server says; what we know to be in flight may be news to it, so the less counts."""
        if limit is not None and limit > 0 and limit != self.limit:
            self._left = limit if self.limit is None else min(self._now_left(now), limit)
            self.limit, self._at = limit, now
        if left is not None and self.limit is not None:
            self._left, self._at = min(self._now_left(now), left), now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until so much may be taken; more than a minute's allowance may be taken when it is full."""
        if self.limit is None:
            return 0.0
        return max(0.0, (min(amount, self.limit) - self._now_left(now)) * 60 / self.limit)

    def take(self, amount: float, now: float) -> None:
        """Take it; more than there is leaves a debt."""
        if self.limit is not None:
            self._left, self._at = self._now_left(now) - amount, now

    def _now_left(self, now: float) -> float:
        return min(self.limit or 0.0, self._left + (now - self._at) * (self.limit or 0.0) / 60)


class RateLimit:
    """When the next call may be made."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.width = 4.0  # calls at once
        self.calls, self.tokens = Bucket(), Bucket()
        self._now = now
        self.warnings = 0  # since a call went well
        self._warned = float("-inf")
        self._not_before = 0.0

    def wait(self, tokens: int) -> float:
        """Seconds until a call of this size may be made."""
        now = self._now()
        return max(self._not_before - now, self.calls.wait(1, now), self.tokens.wait(tokens, now), 0.0)

    def take(self, tokens: int) -> None:
        """A call of this size is being made."""
        now = self._now()
        self.calls.take(1, now)
        self.tokens.take(tokens, now)

    def good(self) -> None:
        """A call went well."""
        self.width = min(MOST, self.width + 1 / self.width)
        self.warnings = 0

    def bad(self, began: float, pause: float | None = None) -> None:
        """A call that began then was turned away or lost.

        Those that were in flight at the same time are one warning; from the second warning in a row on, we wait.
        """
        now = self._now()
        if began > self._warned:
            self._warned = now
            self.warnings += 1
            self.width = max(1.0, self.width / 2)
            if self.warnings > 1:
                pause = max(pause or 0.0, min(2.0**self.warnings / 4, PATIENCE))
        if pause:
            self._not_before = max(self._not_before, now + pause)

    def heed(self, headers: Mapping[str, str]) -> None:
        """Learn the limits that an answer tells of, and wait where nothing is left of one."""
        now = self._now()
        for (limit_of, left_of, reset_of), bucket in zip(HEADERS, (self.calls, self.tokens), strict=True):
            left = number(headers.get(left_of, ""))
            bucket.learn(number(headers.get(limit_of, "")), left, now)
            if left == 0:
                pause = min(seconds(headers.get(reset_of, "")), PATIENCE)
                self._not_before = max(self._not_before, now + pause)


def number(text: str) -> float | None:
    """A count in a header; null if it is none."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def seconds(text: str) -> float:
    """A duration as rate limit headers write it, such as `6m0s`, `20ms` or `1.5`; 0 for what is none."""
    return sum(float(amount) * UNITS[unit] for amount, unit in DURATION.findall(text))
