"""Pure: when a failed call is repeated, after which pause, and when to give up. The only importer of tenacity."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from batchbench.transport.replies import Refused

T = TypeVar("T")
Stop = Callable[[tenacity.RetryCallState], bool]
GIVE_UP_AFTER = 600.0  # seconds of failures, not counting rate limits
MAX_RATE_LIMITED = 86_400.0  # seconds of "too many requests" after which a call gives up

after_tries = tenacity.stop_after_attempt
_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=60)


class AfterFailing:
    """Give up after `seconds` of failures. Rate limits count separately, because they show that the provider works."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last_limited = 0.0  # seconds after the first call

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        error, waited = state.outcome.exception() if state.outcome else None, state.seconds_since_start or 0.0
        if isinstance(error, Refused) and error.problem.status == 429:
            self._last_limited = waited
            return waited >= MAX_RATE_LIMITED
        return waited - self._last_limited >= self._seconds


async def retry(
    call: Callable[[], Awaitable[T]],
    is_transient: Callable[[BaseException], bool],
    stop: Stop,
    sleep: Callable[[float], Awaitable[None]],
    before_pause: Callable[[BaseException, float, float], None],
) -> T:
    """Repeat a call while it fails with a transient error; raises its last error.

    `before_pause` gets the error, the seconds since the first try and the seconds until the next one.
    """

    def report(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None and state.next_action:
            before_pause(error, state.seconds_since_start or 0.0, state.next_action.sleep)

    retry_transient = tenacity.retry_if_exception(is_transient)
    return await tenacity.AsyncRetrying(
        retry=retry_transient, wait=_pause, stop=stop, sleep=sleep, before_sleep=report, reraise=True
    )(call)


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    requested = error.retry_after if isinstance(error, Refused) and error.retry_after else 0.0
    return max(_backoff(state), requested)
