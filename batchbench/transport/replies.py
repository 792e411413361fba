"""Pure: the possible outcomes of a call, and what each proves."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import msgspec

from batchbench.errors import BatchbenchError, KeyRefusedError
from batchbench.providers.interface import Problem, Verdict

DATE_ERRORS = (TypeError, ValueError, OverflowError, IndexError)  # raised by parsedate_to_datetime


class Refused(Exception):  # noqa: N818 - a reply, not an error of ours
    """The provider refused the call, which proves that it did nothing."""

    def __init__(
        self,
        problem: Problem,
        verdict: Verdict,
        retry_after: float | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        body: bytes = b"",
    ) -> None:
        kind = problem.code or problem.type
        status = f"{problem.status} {kind}" if kind not in ("", str(problem.status)) else str(problem.status)
        super().__init__(f"{status}: {problem.message}"[:400])
        self.problem = problem
        self.verdict = verdict
        self.retry_after = retry_after
        self.headers = headers  # of the reply
        self.body = body  # the beginning of the reply, without keys


class LostReply(Exception):  # noqa: N818 - it may be no error
    """The call may have arrived, and its outcome is unknown; `garbled` if the reply cannot be a provider's."""

    def __init__(self, why: str, *, garbled: bool = False, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.garbled = garbled
        self.retry_after = retry_after


class Unsent(Exception):  # noqa: N818
    """Nothing was sent, because the provider could not be reached."""


class Incomplete(Exception):  # noqa: N818
    """A download ended early or is not usable."""


class Reply(msgspec.Struct, frozen=True):
    """A successful reply with its headers."""

    content: bytes
    headers: Mapping[str, str]


class ProviderError(BatchbenchError):
    """A refusal that a retry would not change."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"the provider refuses: {refused}")
        self.refused = refused
        self.status = refused.problem.status


def failure(refused: Refused) -> BatchbenchError:
    """The error to raise for a refusal."""
    if refused.verdict == "fatal":
        return KeyRefusedError(f"the provider refuses the key, the billing or the model: {refused}")
    return ProviderError(refused)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the provider asks us to wait, at most 900; None if the header is missing or invalid.

    A date is compared with the provider's own clock if the reply states it, else with `now`.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            try:
                there = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else now
                seconds = parsedate_to_datetime(text).timestamp() - there
            except DATE_ERRORS:
                continue
        if 0 <= seconds < 10**7:
            return min(seconds, 900.0)
    return None
