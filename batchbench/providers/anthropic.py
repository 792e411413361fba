"""Anthropic's Message Batches: one call sends all requests, one file has all results."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from batchbench.errors import UsageError
from batchbench.providers.interface import Http, Limits, Line, Problem, Provider, Remote, Verdict, decoded, paged
from batchbench.providers.target import Target

PATH = "/v1/messages/batches"
VERSION = "2023-06-01"  # with this version, older models accept sampling parameters
# Families that accept temperature and top_p; the others accept only the defaults.
SAMPLED = ("claude-3", "claude-haiku-4", "claude-sonnet-4", "claude-opus-4")
UNSAMPLED = ("claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-4-7", "claude-sonnet-4-8")
PERMANENT = ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")  # types of errors


def check(target: Target) -> None:
    """Refuse parameters that the API or the model does not accept."""
    if target.top_logprobs is not None:
        raise UsageError("anthropic gives no log-probabilities: use another provider or another form of the probe")
    sampled = target.model.startswith(SAMPLED) and not target.model.startswith(UNSAMPLED)
    for name in ("temperature", "top_p"):
        if getattr(target, name) is not None and not sampled and not target.emulated:
            raise UsageError(f"anthropic:{target.model} takes no {name}: leave it out")


def encoder(target: Target) -> Callable[[str, str], bytes]:
    """Requests differ only in id and prompt, so the rest is encoded once."""
    head, tail = _around_prompt(target)
    middle, end = b'","params":' + head, tail + b"}"
    encode = msgspec.json.Encoder().encode

    def request(custom_id: str, prompt: str) -> bytes:
        return b'{"custom_id":"' + custom_id.encode() + middle + encode(prompt) + end

    return request


def _around_prompt(target: Target) -> tuple[bytes, bytes]:
    """A message's body before and after the prompt."""
    parameters: dict[str, object] = {"model": target.model, "max_tokens": target.max_tokens}
    optional = {"system": target.system, "temperature": target.temperature, "top_p": target.top_p}
    parameters |= {name: value for name, value in optional.items() if value is not None}
    whole = {**parameters, "messages": [{"role": "user", "content": "\0"}]}
    head, _, tail = msgspec.json.encode(whole).rpartition(b'"\\u0000"')  # the prompt is last
    return head, tail


async def create(http: Http, nonce: str, file: str | None, requests: Sequence[bytes]) -> Remote:  # noqa: ARG001
    """Buy the batch; only the ids of its requests show later that it is ours."""
    parts = [b'{"requests":[']
    for request in requests:
        parts += [request, b","]
    parts[-1] = b"]}"
    return read(await http.once(PATH, parts))


async def get(http: Http, batch: str) -> Remote:
    """Read one batch."""
    return read(await http.get(f"{PATH}/{batch}"))


def read(content: bytes) -> Remote:
    """Decode a batch object."""
    batch = decoded(content, _Batch)
    counts = batch.request_counts
    status = batch.processing_status.lower()
    ended = status == "ended"
    return Remote(
        id=batch.id,
        state="ended" if ended else "running",
        provider_status=status,
        created=batch.created_at.timestamp(),
        expires=batch.expires_at.timestamp() if batch.expires_at else None,
        total=counts.total,
        done=counts.total - counts.processing,
        # We build the path ourselves instead of using `results_url`: a reply must not choose where the key is sent.
        parts=[("results", f"{PATH}/{batch.id}/results")] if ended else [],
    )


async def listing(http: Http, since: float) -> list[Remote]:
    """Every batch of the workspace created since then, newest first, a thousand per page."""
    return await paged(http, PATH, 1000, "after_id", since, read)


async def cancel(http: Http, batch: str) -> None:
    """Stop a batch; its answers so far are kept and charged."""
    await http.post(f"{PATH}/{batch}/cancel")


async def ask(http: Http, target: Target, prompt: str) -> Line:
    """Ask one question, without a batch."""
    head, tail = _around_prompt(target)
    answer = await http.once("/v1/messages", head + msgspec.json.encode(prompt) + tail)
    return _message("", decoded(answer, _Message))


def decode(lines: bytes) -> list[Line]:
    """Decode result lines."""
    return [_line(entry) for entry in _decode_entries(lines)]


def _line(entry: "_Entry") -> Line:
    result = entry.result
    message = result.message
    if message is not None and result.type == "succeeded":
        return _message(entry.custom_id, message)
    if result.type == "errored" and result.error is not None:
        error = result.error.error
        permanent = error.type in PERMANENT
        unpaid = "credit balance" in (error.message or "")  # its type is invalid_request_error, but the request is fine
        return Line(entry.custom_id, "failed", error=f"{error.type}: {error.message}", again=unpaid or not permanent)
    if result.type in ("expired", "canceled"):
        return Line(entry.custom_id, "failed", error=result.type, again=True)
    raise msgspec.ValidationError(f"a result of unknown type {result.type!r}")


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
    read = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens if usage else 0
    written = usage.output_tokens if usage else 0
    return Line(
        id=custom_id,
        outcome=outcome,  # type: ignore[arg-type]
        text="".join(texts) if texts else None,
        finish=reason,
        input_tokens=read,
        output_tokens=written,
        model=answer.model,
        error="no text in the answer" if outcome == "failed" else None,
        usage=usage is not None and read >= 0 and written >= 0,
    )


def problem(status: int, content: bytes) -> Problem:
    """Decode an error reply, in any format."""
    try:
        error = decoded(content, _Failure).error
    except msgspec.DecodeError:
        return Problem(status=status, message=content[:200].decode(errors="replace"), in_format=False)
    code = (error.details or _Details()).error_code or ""
    return Problem(status=status, type=error.type or "", code=code, message=error.message or "")


def verdict(problem: Problem) -> Verdict:
    """What to do about an error reply."""
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
    if problem.status == 400 and (not problem.in_format or "not valid JSON" in problem.message):
        return "garbled"  # our requests are valid JSON
    return "refused"


# -- wire format ----------------------------------------------------------------------------------------------


Moment = Annotated[datetime, msgspec.Meta(tz=True)]  # must have a time zone


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
