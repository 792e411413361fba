"""Anthropic's Message Batches: one call carries all requests, one file of results comes back."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from batchbench.errors import UsageError
from batchbench.providers.interface import Http, Limits, Line, Problem, Provider, Remote, Verdict, decoded, paged
from batchbench.providers.target import Target

PATH = "/v1/messages/batches"
VERSION = "2023-06-01"  # the version under which older models still take sampling parameters
# Families that take temperature and top_p; newer ones accept their defaults only.
SAMPLED = ("claude-3", "claude-haiku-4", "claude-sonnet-4", "claude-opus-4")
UNSAMPLED = ("claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-4-7", "claude-sonnet-4-8")


def check(target: Target) -> None:
    """Refuse parameters that the API does not have."""
    if target.top_logprobs is not None:
        raise UsageError("anthropic gives no log-probabilities: use another provider, or a form of the probe without")
    sampled = target.model.startswith(SAMPLED) and not target.model.startswith(UNSAMPLED)
    for name in ("temperature", "top_p"):
        if getattr(target, name) is not None and not sampled and not target.emulated:
            raise UsageError(f"anthropic:{target.model} takes no {name}: leave it out")


def encoder(target: Target) -> Callable[[str, str], bytes]:
    """Requests differ in their id and prompt only, so the rest is written once."""
    head, tail = _around_prompt(target)
    middle, end = b'","params":' + head, tail + b"}"
    encode = msgspec.json.Encoder().encode

    def request(custom_id: str, prompt: str) -> bytes:
        return b'{"custom_id":"' + custom_id.encode() + middle + encode(prompt) + end

    return request


def _around_prompt(target: Target) -> tuple[bytes, bytes]:
    parameters: dict[str, object] = {"model": target.model, "max_tokens": target.max_tokens}
    optional = {"system": target.system, "temperature": target.temperature, "top_p": target.top_p}
    parameters |= {name: value for name, value in optional.items() if value is not None}
    whole = {**parameters, "messages": [{"role": "user", "content": "\0"}]}
    head, _, tail = msgspec.json.encode(whole).rpartition(b'"\\u0000"')  # the prompt stands last
    return head, tail


async def create(http: Http, nonce: str, file: str | None, requests: Sequence[bytes]) -> Remote:  # noqa: ARG001
    """Buy the batch; nothing about it but its requests' ids says that it is ours."""
    parts = [b'{"requests":[']
    for request in requests:
        parts += [request, b","]
    parts[-1] = b"]}"
    return read(await http.once(PATH, parts))


async def get(http: Http, batch: str) -> Remote:
    """One batch."""
    return read(await http.get(f"{PATH}/{batch}"))


def read(content: bytes) -> Remote:
    """A batch as the API tells of it."""
    return _remote(decoded(content, _Batch))


async def listing(http: Http, since: float) -> list[Remote]:
    """Every batch of the workspace created since then, newest first, a thousand to a page."""
    return await paged(http, PATH, 1000, "after_id", since, _page)


async def cancel(http: Http, batch: str) -> None:
    """Stop a batch; what it has answered is kept and paid for."""
    await http.post(f"{PATH}/{batch}/cancel")


async def ask(http: Http, target: Target, prompt: str) -> Line:
    """One message."""
    head, tail = _around_prompt(target)
    answer = await http.once("/v1/messages", head + msgspec.json.encode(prompt) + tail)
    return _message("", decoded(answer, _Message))


def decode(lines: bytes) -> list[Line]:
    """Lines of the results."""
    return [_understood(line) for line in _decode_entries(lines)]


def _understood(entry: "_Entry") -> Line:
    result = entry.result
    if result.type == "succeeded" and result.message is not None:
        return _message(entry.custom_id, result.message)
    if result.type == "errored" and result.error is not None:
        error = result.error.error
        lasting = error.type in ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")
        unpaid = "credit balance" in (error.message or "")  # says "invalid request", but is no fault of the request
        return Line(entry.custom_id, "failed", error=f"{error.type}: {error.message}", again=unpaid or not lasting)
    if result.type in ("expired", "canceled"):
        return Line(entry.custom_id, "failed", error=result.type, again=True)
    raise msgspec.ValidationError(f"a result of type {result.type!r}")


def _message(custom_id: str, answer: "_Message") -> Line:
    blocks = [_Block("text", answer.content)] if isinstance(answer.content, str) else answer.content
    texts = [block.text for block in blocks if block.type == "text"]
    usage = answer.usage
    reason = answer.stop_reason
    outcome: str
    if reason == "refusal":
        outcome = "refused"
    elif reason in ("max_tokens", "model_context_window_exceeded"):
        outcome = "truncated"
    else:
        outcome = "answered" if texts else "failed"
    spent_in = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens if usage else 0
    return Line(
        custom_id,
        outcome,  # type: ignore[arg-type]
        "".join(texts) if texts else None,
        reason,
        spent_in,
        usage.output_tokens if usage else 0,
        answer.model,
        "no text in the answer" if outcome == "failed" else None,
        False,
        None,
        usage is not None and spent_in >= 0 and usage.output_tokens >= 0,
    )


def problem(status: int, content: bytes) -> Problem:
    """What an error says, whatever shape it has."""
    try:
        error = decoded(content, _Failure).error
    except msgspec.DecodeError:
        return Problem(status=status, message=content[:200].decode(errors="replace"), told=False)
    code = (error.details or _Details()).error_code or ""
    return Problem(status=status, type=error.type or "", code=code, message=error.message or "")


def verdict(problem: Problem) -> Verdict:
    """What to do about an error of the service itself."""
    if problem.code == "enforced_spend_limit_reached" or "API usage limits" in problem.message:
        return "fatal"
    if problem.status in (401, 402, 403) or (problem.status == 404 and problem.message.startswith("model:")):
        return "fatal"
    if problem.status == 413:
        return "split"
    if problem.status == 429 and "queue" in problem.message.lower():
        return "slot"
    if problem.status in (408, 409, 429) or problem.status >= 500:
        return "retry"
    if problem.status == 400 and (not problem.told or "not valid JSON" in problem.message):
        return "garbled"  # every body of ours is valid
    return "refused"


# -- the wire ----------------------------------------------------------------------------------------------


Moment = Annotated[datetime, msgspec.Meta(tz=True)]  # one without a time zone is no moment


class _Counts(msgspec.Struct):
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return self.processing + self.succeeded + self.errored + self.canceled + self.expired


class _Batch(msgspec.Struct):
    id: str
    processing_status: str
    created_at: Moment
    expires_at: Moment | None = None
    request_counts: _Counts = msgspec.field(default_factory=_Counts)


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False


def _page(content: bytes) -> tuple[list[Remote], bool]:
    page = decoded(content, _Page)
    return [_remote(batch) for batch in page.data], page.has_more


def _remote(batch: _Batch) -> Remote:
    status = batch.processing_status.lower()
    ended = status == "ended"
    return Remote(
        id=batch.id,
        state="ended" if ended else "running",
        provider_status=status,
        created=batch.created_at.timestamp(),
        expires=batch.expires_at.timestamp() if batch.expires_at else None,
        total=batch.request_counts.total,
        done=batch.request_counts.total - batch.request_counts.processing,
        # The path is our own, not the address the answer gives: no response chooses where a key is sent.
        parts=[("results", f"{PATH}/{batch.id}/results")] if ended else [],
    )


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str = ""


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] | str
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Details(msgspec.Struct):
    error_code: str | None = None


class _Error(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    details: _Details | None = None


class _Failure(msgspec.Struct):
    error: _Error


class _Result(msgspec.Struct, gc=False):
    type: str
    message: _Message | None = None
    error: _Failure | None = None


class _Entry(msgspec.Struct, gc=False):
    custom_id: str
    result: _Result


_decode_entries = msgspec.json.Decoder(_Entry).decode_lines

PROVIDER = Provider(
    name="anthropic",
    key_variable="ANTHROPIC_API_KEY",
    url_variable="ANTHROPIC_BASE_URL",
    base_url="https://api.anthropic.com",
    limits=Limits(requests=50_000, bytes=250_000_000, open_batches=50, queued_requests=100_000),
    headers=lambda key: {"x-api-key": key, "anthropic-version": VERSION},
    check=check,
    encoder=encoder,
    upload=None,
    create=create,
    get=get,
    read=read,
    listing=listing,
    cancel=cancel,
    ask=ask,
    decode=decode,
    problem=problem,
    verdict=verdict,
    names_batches=False,
)
