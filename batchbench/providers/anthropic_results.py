"""Pure: decode Anthropic's result lines and error replies, and classify errors."""

import re

import msgspec
from msgspec import UNSET

from batchbench.core.text import is_blank
from batchbench.providers.anthropic_wire import (
    Block,
    Entry,
    Error,
    ErrorDetails,
    Failure,
    Message,
    decode_any,
    decode_entries,
)
from batchbench.providers.interface import (
    Cause,
    Line,
    Outcome,
    Problem,
    Verdict,
    decoded,
    decoded_reply,
    no_text,
    refused_line,
)
from batchbench.providers.lenient import lenient

SETTINGS = ("authentication_error", "permission_error", "not_found_error", "billing_error")  # types of errors
UNPAID = re.compile(r"credit balance|API usage limits")  # the type is invalid_request_error, but the request is fine
FIELD = re.compile(r"(?:requests\.\d+\.)?(?:params\.)?([a-z_]+)[.\w]*:|[`'\"]?(thinking|temperature|top_p|top_k)\b")
FILTERED = re.compile(r"content filter", re.IGNORECASE)
THOUGHTS = ("thinking", "redacted_thinking")  # types of blocks


def decode(lines: bytes) -> list[Line]:
    """Decode result lines."""
    try:
        return [_line(entry) for entry in decode_entries(lines)]
    except msgspec.ValidationError:
        return [_line(lenient(value, Entry)) for value in decode_any(lines)]


def decode_reply(content: bytes) -> Line:
    """Decode the reply to a single call."""
    body = decoded_reply(content)
    if body.get("error") and not body.get("content"):
        return _refused("", _problem(0, _error(body)))
    return _message("", lenient(body, Message))


def _line(entry: Entry) -> Line:
    result = entry.result
    if result.message is not None and result.type in ("succeeded", None):
        return _message(entry.custom_id, result.message)
    if result.type == "errored":
        failure = result.error or Failure()
        error = failure.error or Error(type=failure.type or "errored", message=failure.message)
        return _refused(entry.custom_id, _problem(0, error))
    if result.type in ("expired", "canceled"):
        return Line(entry.custom_id, "failed", error=result.type, again=True)
    raise msgspec.ValidationError(f"a result of unknown type {result.type!r}")


def _message(custom_id: str, answer: Message) -> Line:
    """A decoded reply. `Line` gets no names: this runs for every answer, and positions are faster."""
    content = answer.content
    blocks = content if isinstance(content, list) else [Block("text", content)]
    texts = [block.text for block in blocks if block.type == "text" and block.text is not None]
    if UNSET in texts:
        raise msgspec.ValidationError("a text without its text")
    text = "".join(texts) if texts else None  # type: ignore[arg-type]  # there is no UNSET
    usage = answer.usage
    read = written = reasoning = 0
    known = False
    if usage is not None:
        if usage.output_tokens_details is not None:
            reasoning = usage.output_tokens_details.thinking_tokens or 0
        if usage.input_tokens is not None and usage.output_tokens is not None:
            cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
            read, written = usage.input_tokens + cached, usage.output_tokens
            known = read >= 0 and written >= 0
    finish = answer.stop_reason
    outcome: Outcome = "answered"
    error = None
    if finish == "refusal":
        outcome = "refused"
    elif is_blank(text or ""):
        thought = any(block.type in THOUGHTS for block in blocks)
        outcome, error = "empty", no_text(reasoning, written, finish, thought=thought)
    elif finish in ("max_tokens", "model_context_window_exceeded"):
        outcome = "truncated"
    return Line(custom_id, outcome, text, finish, read, written, answer.model, error, False, None, known, reasoning)


def _refused(custom_id: str, problem: Problem) -> Line:
    return refused_line(custom_id, problem, cause(problem))


def problem(status: int, content: bytes) -> Problem:
    """Decode an error reply, in any format."""
    try:
        return _problem(status, _error(decoded(content, dict)))
    except msgspec.DecodeError:
        return Problem(status=status, message=content[:200].decode(errors="replace"), in_format=False)


def _error(body: dict[str, object]) -> Error:
    """The error of an error reply; raises ValidationError if it has none."""
    error: Error | None = lenient(body, Failure).error
    if error is None:
        raise msgspec.ValidationError("no readable `error`")
    return error


def _problem(status: int, error: Error) -> Problem:
    code = (error.details or ErrorDetails()).error_code or ""
    return Problem(status=status, type=error.type or "", code=code, message=error.message or "")


def cause(problem: Problem) -> Cause:
    """Why a request was refused."""
    if UNPAID.search(problem.message) or problem.code == "enforced_spend_limit_reached" or problem.type in SETTINGS:
        return "settings"
    if problem.type != "invalid_request_error":
        return "moment"
    if FILTERED.search(problem.message):
        return "content"
    field = FIELD.match(problem.message)
    return "settings" if field and (field[1] or field[2]) not in ("messages", "prompt") else "prompt"


def verdict(problem: Problem) -> Verdict:
    """What to do about an error reply."""
    if problem.code == "enforced_spend_limit_reached" or UNPAID.search(problem.message):
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
