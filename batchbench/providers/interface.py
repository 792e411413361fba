"""Pure: what a provider module exports, and the words it shares with the dispatcher.

A provider says how a request is written, how its batches are created, listed and read, and what its errors mean.
When to retry, what to spend and how fast to go is decided elsewhere, once for all of them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from batchbench.providers.target import Target

T = TypeVar("T")
PAGES = 1000  # of a listing; more are no listing of anybody's
Outcome = Literal["answered", "refused", "filtered", "truncated", "failed"]
Verdict = Literal[
    "retry",  # the call may be made again, after a pause
    "slot",  # the queue is full: again, once one of our batches has ended
    "split",  # too large: again, as two
    "fatal",  # no call of this run will succeed: key, billing, model
    "garbled",  # what arrived was not what we sent, or the answer is not the provider's: nobody knows
    "refused",  # this very call will never succeed
]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider takes."""

    requests: int  # in one batch
    bytes: int  # of one batch
    open_batches: int  # that we keep at once
    queued_requests: int | None = None  # in all open batches together
    window: float = 86_400  # seconds after which a batch has ended, whatever happens
    settle: float = 900  # seconds after which an accepted create shows in the listing
    poll: tuple[float, float] = (15, 120)  # seconds between looks, at first and at most


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as the provider tells of it."""

    id: str
    state: Literal["running", "ended", "rejected"]
    provider_status: str  # as the provider spells it, in lower case
    created: float  # seconds since 1970
    expires: float | None = None
    total: int | None = None  # requests in it
    done: int = 0
    nonce: str | None = None  # ours, where the provider lets a batch carry one
    file: str | None = None  # its input file
    parts: list[tuple[str, str]] = []  # name and path of each result file
    problem: str = ""  # why it was rejected
    refused: dict[int, str] = {}  # which lines of its input, from 1, are to blame for that, and why
    slot: bool = False  # rejected only because the queue was full


class Line(msgspec.Struct, frozen=True, gc=False):
    """One result line, understood."""

    id: str
    outcome: Outcome
    text: str | None = None
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    model: str | None = None
    error: str | None = None
    again: bool = False  # not answered through no fault of the request: ask again
    logprobs: list[tuple[str, float]] | None = None  # alternatives for the first token
    usage: bool = True  # whether it is known what was used; if not, it may have been anything


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is not a success, as far as it could be read."""

    status: int
    type: str = ""
    code: str = ""
    message: str = ""
    told: bool = True  # false: not in the provider's own format, so maybe not by the provider at all


class Http(Protocol):
    """The calls a provider may make. All but `once` are repeated until they succeed or cannot."""

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """Read something."""

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """Change something in a way that may be repeated without harm."""

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Buy something: sent exactly once; an outcome that is not certain raises LostReply."""

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Send a file; a second copy does no harm."""


class Calls(Http, Protocol):
    """Everything the dispatcher needs of the way to a provider."""

    async def download(self, path: str, take: Callable[[bytes], None], most: int) -> int:
        """Read a file piece by piece; its length, which proves nothing about its completeness."""

    async def read_start(self, path: str) -> bytes:
        """The beginning of a file."""

    def signature(self, salt: str) -> str:
        """What tells one key from another, and nothing else about it."""

    def provider_time(self) -> float | None:
        """What time it is by the provider's own clock, in seconds since 1970; null before it has told."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One API."""

    name: str
    key_variable: str
    url_variable: str
    base_url: str
    limits: Limits
    headers: Callable[[str], dict[str, str]]  # from the key
    check: Callable[[Target], None]  # raises UsageError on a target that cannot work
    encoder: Callable[[Target], Callable[[str, str], bytes]]  # custom id and prompt to one request
    upload: Callable[[Http, str, Sequence[bytes]], Awaitable[str]] | None  # nonce and requests; the file's id
    create: Callable[[Http, str, str | None, Sequence[bytes]], Awaitable[Remote]]  # nonce, file, requests
    get: Callable[[Http, str], Awaitable[Remote]]
    read: Callable[[bytes], Remote]  # what `get` makes of the provider's answer
    listing: Callable[[Http, float], Awaitable[list[Remote]]]  # every batch since then, newest first
    cancel: Callable[[Http, str], Awaitable[None]]
    ask: Callable[[Http, Target, str], Awaitable[Line]]  # one prompt at once, outside any batch
    decode: Callable[[bytes], list[Line]]  # of whole lines; raises msgspec.DecodeError if one is no result
    problem: Callable[[int, bytes], Problem]
    verdict: Callable[[Problem], Verdict]
    half_price: bool = True  # whether its batches cost half of what single calls do
    names_batches: bool  # whether a batch carries our nonce, so that a lost create can be found at once


def decoded(content: bytes, kind: type[T]) -> T:
    """A document of this kind; raises msgspec.DecodeError on anything else, also on what is no text at all."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


async def paged(
    http: Http, path: str, size: int, cursor: str, since: float, read: Callable[[bytes], tuple[list[Remote], bool]]
) -> list[Remote]:
    """Every batch of a listing back to `since`.

    Whoever does not find a batch in it concludes that there is none, so a listing that does not get on is no listing.
    """
    found: dict[str, Remote] = {}
    query: dict[str, str | int] = {"limit": size}
    for _ in range(PAGES):
        page, more = read(await http.get(path, query))
        fresh = {remote.id: remote for remote in page if remote.id not in found}
        found |= fresh
        if not more or (page and all(remote.created < since for remote in page)):
            return [remote for remote in found.values() if remote.created >= since]
        if not fresh:
            raise msgspec.ValidationError("a page that brings nothing new says that there is more")
        query = {"limit": size, cursor: page[-1].id}
    raise msgspec.ValidationError(f"a list of batches that does not end after {PAGES:,} pages")
