"""OpenAI's Batch API: upload a file of chat completions, create a batch from it, download two files of results."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from batchbench.errors import UsageError
from batchbench.providers.interface import Http, Limits, Line, Problem, Provider, Remote, Verdict, decoded, paged
from batchbench.providers.target import Target

PATH = "/chat/completions"
# Model families that refuse sampling parameters and log-probabilities while they reason.
REASONING_ALWAYS = re.compile(r"^(o\d|gpt-5($|-(20|mini|nano|pro|codex))|gpt-6-astra|gpt-6\.1|.*-pro($|-))")
REASONING_BY_DEFAULT = re.compile(r"^gpt-(5\.[5-9]|6)")
ENDED = ("completed", "expired", "cancelled")  # a batch with a status that we do not know is still running
UNPAID = {
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "billing_hard_limit_reached",
}
UNREADABLE = re.compile("not valid JSON|could not parse the JSON body")
# Errors about a field that is the same in every request: the line that such an error names is not the cause.
SHARED = {"model_not_found", "model_mismatch", "url_mismatch", "invalid_method", "invalid_url"}


def check(target: Target) -> None:
    """Refuse parameters that the model does not accept."""
    if not REASONING_ALWAYS.match(target.model):
        return
    for name in ("temperature", "top_p", "top_logprobs"):
        if getattr(target, name) is not None:
            raise UsageError(f"openai:{target.model} always reasons and takes no {name}: leave it out")


def body(target: Target) -> dict[str, object]:
    """The request's body without its messages."""
    # Other servers with this API know the older name of the limit.
    limit = "max_completion_tokens" if target.provider == "openai" else "max_tokens"
    parameters: dict[str, object] = {"model": target.model, limit: target.max_tokens}
    if target.temperature is not None:
        parameters["temperature"] = target.temperature
    if target.top_p is not None:
        parameters["top_p"] = target.top_p
    if target.top_logprobs is not None:
        parameters |= {"logprobs": True, "top_logprobs": target.top_logprobs}
    can_stop_reasoning = REASONING_BY_DEFAULT.match(target.model) and not REASONING_ALWAYS.match(target.model)
    if target.provider == "openai" and can_stop_reasoning:
        parameters["reasoning_effort"] = "none"
    return parameters


def encoder(target: Target) -> Callable[[str, str], bytes]:
    """Requests differ only in id and prompt, so the rest is encoded once."""
    head, tail = _around_prompt(target)
    middle, end = b'","method":"POST","url":"/v1/chat/completions","body":' + head, tail + b"}\n"
    encode = msgspec.json.Encoder().encode

    def request(custom_id: str, prompt: str) -> bytes:
        return b'{"custom_id":"' + custom_id.encode() + middle + encode(prompt) + end

    return request


def _around_prompt(target: Target) -> tuple[bytes, bytes]:
    """A chat completion's body before and after the prompt."""
    messages = [{"role": "system", "content": target.system}] if target.system is not None else []
    whole = {**body(target), "messages": [*messages, {"role": "user", "content": "\0"}]}
    head, _, tail = msgspec.json.encode(whole).rpartition(b'"\\u0000"')  # the prompt is last
    return head, tail


async def upload(http: Http, nonce: str, requests: Sequence[bytes]) -> str:
    """Upload the requests as a file named after the nonce; returns the file's id."""
    answer = await http.upload("/files", {"purpose": "batch"}, f"{nonce}.jsonl", requests)
    file = decoded(answer, _File)
    size = sum(map(len, requests))
    if file.bytes != size:
        raise msgspec.ValidationError(f"the provider received {file.bytes} bytes of {size}")
    return file.id


async def create(http: Http, nonce: str, file: str | None, requests: Sequence[bytes]) -> Remote:  # noqa: ARG001
    """Buy the batch."""
    order = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"batchbench": nonce},
    }
    return read(await http.once("/batches", msgspec.json.encode(order)))


async def get(http: Http, batch: str) -> Remote:
    """Read one batch."""
    return read(await http.get(f"/batches/{batch}"))


def read(content: bytes) -> Remote:
    """Decode a batch object."""
    batch = decoded(content, _Batch)
    status = batch.status.lower()
    rejected = status == "failed"
    errors = batch.errors.data if batch.errors else []
    counts = batch.request_counts or _Counts()
    files = [("output", batch.output_file_id), ("error", batch.error_file_id)]
    parts = [(name, f"/files/{file}/content") for name, file in files if file]
    refused = {error.line: f"{error.code}: {error.message}" for error in reversed(errors) if error.line is not None}
    if any(error.line is None or error.code in SHARED for error in errors):
        refused = {}
    return Remote(
        id=batch.id,
        state="rejected" if rejected else "ended" if status in ENDED else "running",
        provider_status=status,
        created=batch.created_at,
        expires=batch.expires_at,
        total=counts.total,
        done=(counts.completed or 0) + (counts.failed or 0),
        nonce=(batch.metadata or {}).get("batchbench"),
        file=batch.input_file_id,
        parts=[("refusal", f"/batches/{batch.id}")] if rejected and refused else parts,
        problem="; ".join(f"{error.code}: {error.message}" for error in errors[:3]),
        refused=refused,
        slot=any(error.code == "token_limit_exceeded" for error in errors),
    )


async def listing(http: Http, since: float) -> list[Remote]:
    """Every batch created since then, newest first, a hundred per page."""
    return await paged(http, "/batches", 100, "after", since, read)


async def cancel(http: Http, batch: str) -> None:
    """Stop a batch; its answers so far are kept and charged."""
    await http.post(f"/batches/{batch}/cancel")


async def ask(http: Http, target: Target, prompt: str) -> Line:
    """Ask one question, without a batch."""
    head, tail = _around_prompt(target)
    answer = await http.once(PATH, head + msgspec.json.encode(prompt) + tail)
    return _completion("", decoded(answer, _Completion))


def decode(lines: bytes) -> list[Line]:
    """Decode lines of the output file or of the error file."""
    try:  # fast: nearly all blocks have answers only
        return [_completion(line.custom_id, line.response.body) for line in _decode_answered(lines)]
    except msgspec.ValidationError:
        return [_line(result) for result in _decode_results(lines)]


def _line(result: "_Result") -> Line:
    """A result line of any kind."""
    response = result.response
    if response is None:
        error = result.error or _LineError()
        return Line(result.custom_id, "failed", error=f"{error.code}: {error.message}", again=True)
    if response.status_code == 200:
        return _completion(result.custom_id, _decode_completion(response.body))
    if response.status_code == 0:  # not an HTTP status; the body may still be an answer
        with suppress(msgspec.DecodeError):
            return _completion(result.custom_id, _decode_completion(response.body))
    failure = problem(response.status_code, bytes(response.body))
    again = failure.status in (0, 408, 409, 429) or failure.status >= 500
    if failure.code == "content_filter":
        return Line(result.custom_id, "filtered", error=failure.message)
    return Line(result.custom_id, "failed", error=f"{failure.status} {failure.code or failure.type}: {failure.message}", again=again)  # fmt: skip  # noqa: E501


def _completion(custom_id: str, answer: "_Completion") -> Line:
    usage = answer.usage
    choice = answer.choices[0] if answer.choices else _Choice(_Message())  # no answer, but charged
    message = choice.message
    content = message.content
    text = _text(content) if isinstance(content, list) else content
    outcome: str
    if message.refusal:
        outcome, text = "refused", text or message.refusal
    elif choice.finish_reason == "content_filter":
        outcome = "filtered"
    elif choice.finish_reason == "length":
        outcome = "truncated"
    elif text is None:
        outcome = "failed"
    else:
        outcome = "answered"
    logprobs = None
    if choice.logprobs and choice.logprobs.content:
        logprobs = [(top.token, top.logprob) for top in choice.logprobs.content[0].top_logprobs]
    read = usage.prompt_tokens if usage else 0
    written = usage.completion_tokens if usage else 0
    return Line(
        id=custom_id,
        outcome=outcome,  # type: ignore[arg-type]
        text=text,
        finish=choice.finish_reason,
        input_tokens=read,
        output_tokens=written,
        model=answer.model,
        error="no text in the answer" if outcome == "failed" else None,
        logprobs=logprobs,
        usage=usage is not None and read >= 0 and written >= 0,
    )


def _text(content: "list[_Content]") -> str:
    return "".join(part.text for part in content if part.type == "text")


def problem(status: int, content: bytes) -> Problem:
    """Decode an error reply, in any format."""
    try:
        error = decoded(content, _Failure).error
    except msgspec.DecodeError:
        return Problem(status=status, message=content[:200].decode(errors="replace"), in_format=False)
    return Problem(status=status, type=error.type or "", code=str(error.code or ""), message=error.message or "")


def verdict(problem: Problem) -> Verdict:
    """What to do about an error reply."""
    if UNPAID & {problem.type, problem.code} or problem.status in (401, 402, 403):
        return "fatal"
    if problem.status == 413:
        return "split"
    if problem.status == 404 and problem.code == "model_not_found":
        return "fatal"
    if problem.status in (408, 409, 429) or problem.status >= 500:
        return "retry"
    if problem.status == 400 and "annot find file" in problem.message:
        return "retry"  # a new file may not be visible everywhere yet
    if problem.status == 400 and (not problem.in_format or UNREADABLE.search(problem.message)):
        return "garbled"  # our requests are valid JSON
    return "refused"


# -- wire format ----------------------------------------------------------------------------------------------


class _File(msgspec.Struct):
    id: str
    bytes: int


class _BatchError(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    line: int | None = None


class _BatchErrors(msgspec.Struct):
    data: list[_BatchError] = []


class _Counts(msgspec.Struct):
    total: int | None = None
    completed: int | None = None
    failed: int | None = None


class _Batch(msgspec.Struct):
    id: str
    status: str
    created_at: float
    expires_at: float | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _BatchErrors | None = None
    request_counts: _Counts | None = None
    metadata: dict[str, str] | None = None


class _Content(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Content] | None = None
    refusal: str | None = None


class _Top(msgspec.Struct, gc=False):
    token: str
    logprob: float


class _Token(msgspec.Struct, gc=False):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(msgspec.Struct, gc=False):
    choices: list[_Choice]
    model: str | None = None
    usage: _Usage | None = None


class _LineError(msgspec.Struct, gc=False):
    code: str | None = "unknown"
    message: str | None = "no response and no error"


class _Response(msgspec.Struct, gc=False):
    status_code: int
    body: msgspec.Raw


class _Result(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response | None = None
    error: _LineError | None = None


class _Good(msgspec.Struct, gc=False):
    status_code: Literal[200]
    body: _Completion


class _Answered(msgspec.Struct, gc=False):
    custom_id: str
    response: _Good


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None


class _Failure(msgspec.Struct):
    error: _Error


_decode_answered = msgspec.json.Decoder(_Answered).decode_lines
_decode_results = msgspec.json.Decoder(_Result).decode_lines
_decode_completion = msgspec.json.Decoder(_Completion).decode

PROVIDER = Provider(
    name="openai",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    base_url="https://api.openai.com/v1",
    limits=Limits(requests=50_000, bytes=200_000_000, open_batches=50),
    headers=lambda key: {"Authorization": f"Bearer {key}"},
    check=check,
    encoder=encoder,
    upload=upload,
    create=create,
    get=get,
    read=read,
    listing=listing,
    cancel=cancel,
    ask=ask,
    decode=decode,
    problem=problem,
    verdict=verdict,
    names_batches=True,
)
