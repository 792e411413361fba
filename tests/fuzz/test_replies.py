"""Replies other than results: batches, pages of batches, errors, headers."""

import contextlib
from typing import get_args

import anyio
import msgspec
import pytest
from hypothesis import strategies as st

from batchbench.providers import load_provider
from batchbench.providers.interface import Remote, Verdict
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.replies import retry_after
from tests.fuzz.mutants import fuzz, mutants

OPENAI = {
    "id": "batch_1",
    "status": "completed",
    "created_at": 1_700_000_000,
    "expires_at": 1_700_086_400,
    "input_file_id": "file-1",
    "output_file_id": "file-2",
    "error_file_id": None,
    "errors": None,
    "request_counts": {"total": 3, "completed": 2, "failed": 1},
    "metadata": {"batchbench": "n"},
}
REFUSED = {"data": [{"code": "bad", "message": "first", "line": 1}, {"code": "model_not_found", "message": "x"}]}
ANTHROPIC = {
    "id": "msgbatch_1",
    "processing_status": "ended",
    "created_at": "2026-01-02T03:04:05.678Z",
    "expires_at": "2026-01-03T03:04:05+00:00",
    "request_counts": {"processing": 0, "succeeded": 3},
    "results_url": "https://elsewhere.example/results",
}
BATCHES: dict[str, list[object]] = {
    "openai": [OPENAI, {**OPENAI, "status": "failed", "errors": REFUSED}],
    "anthropic": [ANTHROPIC, {**ANTHROPIC, "processing_status": "in_progress", "expires_at": None}],
}
ERRORS = [
    {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}},
    {"type": "error", "error": {"type": "rate_limit_error", "message": "x", "details": {"error_code": "y"}}},
    b"<html><body>502 Bad Gateway</body></html>",
]


@pytest.mark.parametrize("provider", BATCHES)
@fuzz(data=st.data())
def test_a_batch_is_decoded_or_refused(provider: str, data: st.DataObject) -> None:
    content = data.draw(mutants(BATCHES[provider]))
    with contextlib.suppress(msgspec.DecodeError):
        remote = load_provider(provider).read(content)
        assert remote.state in ("running", "ended", "rejected")
        assert all(path.startswith("/") for _, path in remote.parts)
        assert msgspec.json.encode(remote)


class Listing:
    """A server that returns these pages in turn, and then the last one each time."""

    def __init__(self, pages: list[bytes]) -> None:
        self.base_url, self.pages, self.calls = "https://api.anthropic.com", pages, 0

    async def get(self, *_: object) -> bytes:
        self.calls += 1
        return self.pages[min(self.calls, len(self.pages)) - 1]


@pytest.mark.parametrize("provider", BATCHES)
@fuzz(data=st.data())
def test_a_listing_ends_and_is_decoded_or_refused(provider: str, data: st.DataObject) -> None:
    pages = [{"data": BATCHES[provider], "has_more": more} for more in (True, False)]
    server = Listing(data.draw(st.lists(mutants(pages), min_size=1, max_size=4)))

    async def listed() -> list[Remote]:
        return await load_provider(provider).listing(server, 0.0)  # type: ignore[arg-type]

    with contextlib.suppress(msgspec.DecodeError):
        assert len({remote.id for remote in anyio.run(listed)}) <= 40
    assert server.calls <= len(server.pages) + 1


@pytest.mark.parametrize("provider", ["openai", "anthropic", "chat"])
@fuzz(status=st.integers(100, 999), body=mutants(ERRORS))
def test_an_error_of_any_content_has_a_verdict(provider: str, status: int, body: bytes) -> None:
    module = load_provider(provider)
    assert module.verdict(module.problem(status, body)) in get_args(Verdict)


DATES = [b"Thu, 01 Jan 1970 00:01:40 GMT", b"Mon, 16 Nov 2026 12:00:00 +0000", b"1.5", b"20", b"6m0s", b"1h2m3.5s"]
HEADERS = mutants(DATES).map(lambda text: text.decode("utf-8", "surrogateescape"))


@fuzz(text=HEADERS)
def test_a_header_is_parsed_or_ignored(text: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        pause = retry_after({name: text}, 10.0)
        assert pause is None or 0 <= pause <= 900
    rate_limit = RateLimit()
    kinds = ("limit", "remaining", "reset")
    rate_limit.read_headers({f"x-ratelimit-{kind}-{what}": text for kind in kinds for what in ("requests", "tokens")})
    rate_limit.read_headers(
        {"x-ratelimit-limit-requests": "5", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": text}
    )
    assert 0 <= rate_limit.wait(10) <= 120


@pytest.mark.parametrize(
    "text", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "1 Jan 1 99:99:99 +99999999999999", "9" * 8000, "1" * 4000 + "x"]
)
def test_headers_that_once_crashed_the_program_are_ignored(text: str) -> None:
    assert retry_after({"retry-after": text}, 10.0) is None
    RateLimit().read_headers({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": text})
