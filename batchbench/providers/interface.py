"""Pure: what a provider module exports, and the types it shares with the dispatcher.

A provider module encodes requests, creates, lists and reads batches, and classifies errors. It does not decide when to
retry, how much to spend or how fast to go: that code is shared by all providers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

import msgspec

from batchbench.core.text import describe_body, repair_json
from batchbench.providers.target import Target

T = TypeVar("T")
SHOWN_BYTES = 120  # of a reply that cannot be read
MAX_PAGES = 1000  # of a listing, after which it is given up
Outcome = Literal["answered", "refused", "filtered", "truncated", "failed", "empty"]  # empty: a reply without text
Verdict = Literal[
    "retry",  # the call may be made again, after a pause
    "slot",  # the queue is full: try again when one of our batches has ended
    "split",  # the batch is too large: try again as two
    "fatal",  # no call of this run will succeed: key, billing, model
    "garbled",  # the request arrived damaged, or the reply is not the provider's: the outcome is unknown
    "refused",  # this call will never succeed
]
Cause = Literal[
    "moment",  # why a request was refused: the server has a problem, so ask it again
    "settings",  # the key, the money, the model or a parameter: ask it again once that is corrected
    "content",  # a filter blocked the prompt or the answer
    "prompt",  # the server cannot process this prompt
]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a provider accepts, and how long it takes."""

    requests: int  # in one batch
    bytes: int  # of one batch
    open_batches: int  # at the same time
    queued_requests: int | None = None  # in all open batches
    window: float = 86_400  # seconds after which every batch has ended
    settle: float = 900  # seconds until the listing shows every batch that was created
    poll: tuple[float, float] = (15, 120)  # seconds between polls, at first and at most


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as the provider reports it."""

    id: str
    state: Literal["running", "ended", "rejected"]
    provider_status: str  # as the provider spells it, in lower case
    created: float  # seconds since 1970
    expires: float | None = None
    total: int | None = None  # requests
    done: int | None = None  # requests; None: the provider does not say
    nonce: str | None = None  # None if the provider stores no metadata with a batch
    run: str | None = None  # the random name of the run; None if the metadata does not have it
    file: str | None = None  # id of its input file
    input: str | None = None  # path of its input file
    parts: list[tuple[str, str]] = []  # name and path of each result file
    problem: str = ""  # why it was rejected
    refused: dict[int, str] = {}  # line number in the input file, from 1, to the reason why that line is invalid
    slot: bool = False  # it was rejected because the queue was full


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to buy."""

    run: str  # the id of the run
    nonce: str
    file: str | None = None  # id of the uploaded requests, if the provider takes them from a file
    requests: Sequence[bytes]


class Line(msgspec.Struct, frozen=True, gc=False):
    """One result line, decoded."""

    id: str
    outcome: Outcome
    text: str | None = None
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    model: str | None = None
    error: str | None = None
    again: bool = False  # the request is fine and was not answered: ask it again
    logprobs: list[tuple[str, float]] | None = None  # alternatives for the first token
    usage: bool = True  # whether the token counts are known; if not, reckon with the maximum
    reasoning_tokens: int = 0  # part of output_tokens; 0 if the reply does not say
    held: bool = False  # with `again`: refused because of the server or the settings, so wait for the next start


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The readable parts of an error reply."""

    status: int
    type: str = ""
    code: str = ""
    message: str = ""
    param: str = ""  # the part of the request that it is about
    in_format: bool = True  # false if not in the provider's format: it may come from a proxy


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's free calls tell about a model. None: the provider does not say."""

    id: str
    retires: str | None = None  # date, such as 2027-01-14
    batch: bool | None = None  # whether the batch API accepts it
    thinking: list[str] | None = None  # accepted ways of thinking
    efforts: list[str] | None = None  # accepted efforts
    max_output_tokens: int | None = None
    listed: list[str] | None = None  # the models of a server that describes no single one


class Http(Protocol):
    """The calls a provider module may make. All but `once` are repeated until they succeed or are refused."""

    base_url: str  # paths are relative to it

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """Read something."""

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """Change something in a way that may safely be repeated."""

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Buy something: sent exactly once; raises LostReply if the outcome is unknown."""

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Send a file; a second copy does no harm."""


class Calls(Http, Protocol):
    """The calls that the dispatcher makes."""

    async def download(self, path: str, write: Callable[[bytes], None], max_bytes: int) -> int:
        """Read a file in pieces and return its length, which does not prove that the file is complete."""

    async def read_start(self, path: str) -> bytes:
        """The beginning of a file."""

    def signature(self, salt: str) -> str:
        """A digest that identifies the key and reveals nothing else about it."""

    def provider_time(self) -> float | None:
        """The time by the provider's clock, in seconds since 1970; None before its first reply."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One API."""

    name: str
    key_variable: str
    url_variable: str
    base_url: str
    limits: Limits
    headers: Callable[[str], dict[str, str]]  # from the key
    check: Callable[[Target], None]  # raises UsageError if the provider would refuse the target
    encoder: Callable[[Target], Callable[[str, str], bytes]]  # turns a custom id and a prompt into a request
    upload: Callable[[Http, str, Sequence[bytes]], Awaitable[str]] | None  # nonce and requests to file id
    create: Callable[[Http, "Order"], Awaitable[Remote]]
    get: Callable[[Http, str], Awaitable[Remote]]
    read: Callable[[bytes], Remote]  # decodes a batch object
    listing: Callable[[Http, float], Awaitable[list[Remote]]]  # batches created since then, newest first
    cancel: Callable[[Http, str], Awaitable[None]]
    ask: Callable[[Http, Target, str], Awaitable[Line]]  # one prompt, without a batch
    decode: Callable[[bytes], list[Line]]  # of whole lines; raises msgspec.DecodeError if one is not a result
    problem: Callable[[int, bytes], Problem]
    verdict: Callable[[Problem], Verdict]
    describe: Callable[[Http, Target], Awaitable[ModelInfo]] | None = None  # free; ProviderError (404): no such model
    half_price: bool = True  # a batch costs half as much as the same single calls
    # The shape of a result line: an example for messages, and fields of which a line has at least one.
    result_line: str = '{"custom_id": "ID", "response": {"status_code": 200, "body": {"choices": [...], "usage": {}}}}'
    result_fields: tuple[str, ...] = ("response", "error")
    names_batches: bool  # a batch object has our nonce, so the listing shows whether a create arrived


def decoded(content: bytes, kind: type[T]) -> T:
    """A JSON document of this type; raises msgspec.DecodeError on anything else, also on bytes that are not text."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def decoded_loosely(content: bytes, kind: type[T]) -> T:
    """The same, but a number may also be written as 20.0 or as "20"."""
    try:
        return decoded(content, kind)
    except msgspec.ValidationError:
        value = decoded(content, object)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        start = " ".join(bytes(content)[:SHOWN_BYTES].decode(errors="replace").split())
        raise msgspec.ValidationError(f"{error} in {start}") from None


def decoded_reply(content: bytes) -> dict[str, object]:
    """The reply to a single call. It is repaired if a token limit has cut a character in half, as result lines are."""
    try:
        return decoded(content, dict)
    except msgspec.DecodeError:
        try:
            return decoded(repair_json(content), dict)
        except (ValueError, RecursionError):
            raise msgspec.DecodeError(f"the server sent {describe_body(content)}") from None


def refused_line(custom_id: str, problem: Problem, cause: Cause) -> Line:
    """The result of a request that the provider refused."""
    if cause == "content":
        return Line(custom_id, "filtered", error=problem.message or problem.code)
    name = " ".join(filter(None, (str(problem.status or ""), problem.code or problem.type)))
    error = ": ".join(filter(None, (name, problem.message))) or "no reason given"
    return Line(custom_id, "failed", error=error, again=cause != "prompt", held=cause == "settings")


def no_text(reasoning: int, written: int | None, finish: str | None, *, thought: bool) -> str:
    """Why a reply has no text: its reasoning and output tokens, its finish reason, whether it has thoughts."""
    if reasoning > 0 and written:
        return f"no text: {reasoning:,} of {written:,} output tokens were used for reasoning"
    if thought:
        return f"no text, only reasoning: {written or 0:,} output tokens were used"
    return f"no text in the reply (finish reason: {finish})"


async def paged(
    http: Http, path: str, size: int, cursor: str, since: float, read: Callable[[bytes], Remote]
) -> list[Remote]:
    """Every batch of a listing back to `since`; `cursor` is the query parameter for the last id of the page before.

    The dispatcher concludes from this list that a batch does not exist, so an incomplete list raises an error. It ends
    early only if all pages so far are in descending order, which not every provider promises.
    """
    found: dict[str, Remote] = {}
    query: dict[str, str | int] = {"limit": size}
    for _ in range(MAX_PAGES):
        page = decoded(await http.get(path, query), _Page)
        batches = [read(batch) for batch in page.data or []]
        new = {batch.id: batch for batch in batches if batch.id not in found}
        found |= new
        times = [batch.created for batch in found.values()]
        more = len(batches) >= size if page.has_more is None else page.has_more
        if page.data is None and more:
            raise msgspec.ValidationError("a page without batches says that there are more")
        if not more or (_descending(times) and all(batch.created < since for batch in batches)):
            return [batch for batch in found.values() if batch.created >= since]
        if not new:
            raise msgspec.ValidationError("a page without a new batch says that there are more")
        query = {"limit": size, cursor: batches[-1].id}
    raise msgspec.ValidationError(f"the list of batches does not end after {MAX_PAGES:,} pages")


def _descending(times: Sequence[float]) -> bool:
    """Whether the times so far show that the listing is in descending order."""
    return len(times) > 1 and times[0] > times[-1] and all(one >= other for one, other in pairwise(times))


class _Page(msgspec.Struct):
    data: list[msgspec.Raw] | None  # null: an empty list, as some servers write it
    has_more: bool | None = None
