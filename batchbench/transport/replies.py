"""Pure: what can come of a call, and what it proves."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import msgspec

from batchbench.errors import BatchbenchError, KeyRefusedError
from batchbench.providers.interface import Problem, Verdict


class Refused(Exception):  # noqa: N818 - it is the provider's answer, not our mistake
    """The provider said no, which proves that it did nothing."""

    def __init__(
        self,
        problem: Problem,
        verdict: Verdict,
        retry_after: float | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"{problem.status} {problem.code or problem.type}: {problem.message}"[:400])
        self.problem = problem
        self.verdict = verdict
        self.retry_after = retry_after
        self.headers = headers  # of the answer


class LostReply(Exception):  # noqa: N818 - nobody knows whether it is an error
    """Something was sent, and no certain answer came back; `garbled` if it was another answer than a provider gives."""

    def __init__(self, why: str, *, garbled: bool = False, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.garbled = garbled
        self.retry_after = retry_after


class Unsent(Exception):  # noqa: N818
    """Nothing was sent: the provider could not be reached."""


class Incomplete(Exception):  # noqa: N818
    """A download ended before its time."""


class Reply(msgspec.Struct, frozen=True):
    """A whole answer with its headers."""

    content: bytes
    headers: Mapping[str, str]


class ProviderError(BatchbenchError):
    """A refusal that nothing more can be done about."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"the provider refuses: {refused}")
        self.refused = refused
        self.status = refused.problem.status


def failure(refused: Refused) -> BatchbenchError:
    """A refusal as an error of ours."""
    if refused.verdict == "fatal":
        return KeyRefusedError(f"the provider refuses the key, the billing or the model: {refused}")
    return ProviderError(refused)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """How long the provider asks us to wait, in seconds; null if it does not say, or says nonsense."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            then = parse_http_date(text)
            if then is None:
                continue
            seconds = then - now
        if 0 <= seconds < 10**7:
            return min(seconds, 900.0)
    return None


def parse_http_date(text: str) -> float | None:
    """A date in a header, in seconds since 1970; null if it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
