"""Pure: decode OpenAI's result lines and error replies, and classify errors."""

import re
from typing import Any

import msgspec
from msgspec import UNSET

from batchbench.core.text import is_blank
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
from batchbench.providers.openai_wire import (
    Choice,
    Completion,
    Content,
    Error,
    Message,
    Response,
    Result,
    decode_answered,
    decode_any,
)

UNPAID = {
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "billing_hard_limit_reached",
}
UNREADABLE = re.compile("not valid JSON|could not parse the JSON body")
FILTERS = {"content_filter", "content_policy_violation", "moderation_blocked", "invalid_prompt"}
FLAGGED = re.compile(r"moderation|flagged|safety\b|content[ _-]?(filter|policy|management)|usage polic", re.IGNORECASE)
ACCOUNT = re.compile(r"account|organization|api key", re.IGNORECASE)
SETTINGS = {
    "model_not_found",
    "unsupported_parameter",
    "unsupported_value",
    "unknown_parameter",
    "missing_required_parameter",
    "invalid_value",
    "invalid_type",
    "integer_below_min_value",
    "integer_above_max_value",
    "decimal_below_min_value",
    "decimal_above_max_value",
}
SETTINGS_TEXT = re.compile(r"parameter|unsupported|not support|extra inputs|not permitted|unrecognized", re.IGNORECASE)
PROMPT_TEXT = re.compile(r"context length|context window|too long|too many tokens", re.IGNORECASE)
AT_LIMIT = ("length", "max_tokens")  # finish reasons; the second one comes from gateways to other providers
TEXTS = ("text", "output_text")  # types of parts
PROMPT_PARAM = re.compile(r"messages(?!.*\brole\b)")  # every request has the same roles
NO_CHOICE, NO_MESSAGE = Choice(message=None), Message()


def decode(lines: bytes) -> list[Line]:
    """Decode lines of the output file or of the error file."""
    try:  # fast: nearly all blocks have answers only, in the usual format
        return [completion(line.custom_id, line.response.body) for line in decode_answered(lines)]
    except msgspec.ValidationError:
        return [_line(lenient(value, Result)) for value in decode_any(lines)]


def decode_reply(content: bytes) -> Line:
    """Decode the reply to a single call."""
    return _success("", decoded_reply(content))


def _line(result: Result) -> Line:
    """A result line of any kind. Only a null or absent response shows that the request was not processed."""
    name, response = result.custom_id, result.response
    if response is None:
        problem = _problem(0, {"error": result.error}) if result.error else None
        return _refused(name, problem or Problem(status=0, code="unknown", message="no response and no error"))
    status, body = _status(response), response.get("body") if isinstance(response, dict) else None
    fields = body if isinstance(body, dict) else {}
    if 200 <= (status or 0) < 300 or ("choices" in fields and (status or 0) < 400):
        return _success(name, body)
    if status is None or (status == 0 and body and not fields.get("error")):  # 0 is not an HTTP status
        raise msgspec.ValidationError("a response without a status and without choices")
    return _refused(name, _problem(status, body if body is not None else {"error": result.error}))


def _status(response: Any) -> int | None:
    """The HTTP status of a response, or 0; None if it has none."""
    try:
        status = msgspec.convert(response, Response, strict=False).status_code
    except msgspec.ValidationError:
        return None
    return status if status == 0 or 100 <= status < 600 else None


def _success(custom_id: str, body: Any) -> Line:
    """The body of a reply with status 200; some servers report errors in it."""
    if isinstance(body, dict) and body.get("error") and not body.get("choices"):
        return _error_inside(custom_id, body)
    return completion(custom_id, lenient(body, Completion))


def _error_inside(custom_id: str, body: dict[str, Any]) -> Line:
    """An error in place of an answer; the server may charge for what it generated."""
    problem = _problem(0, body)
    status = int(problem.code) if re.fullmatch(r"[45]\d\d", problem.code) else 0
    failed = _refused(custom_id, msgspec.structs.replace(problem, status=status))
    return msgspec.structs.replace(failed, usage=False)


def completion(custom_id: str, answer: Completion) -> Line:
    """A decoded reply. It runs for every answer: the usual one takes the shortest way, and `Line` gets no names."""
    choices, usage = answer.choices, answer.usage
    if answer.error and not choices:
        return _error_inside(custom_id, {"error": answer.error})
    choice = choices[0] if choices else NO_CHOICE  # no answer, but charged
    message = choice.message or NO_MESSAGE
    text, finish = message.content, choice.finish_reason
    read = written = reasoning = 0
    known = False
    if usage is not None:
        if (details := usage.completion_tokens_details) is not None:
            reasoning = details.reasoning_tokens or 0
        prompt, reply = usage.prompt_tokens, usage.completion_tokens
        if prompt is not None and reply is not None:
            read, written, known = prompt, reply, prompt >= 0 and reply >= 0
    model = answer.model
    usual = finish == "stop" and choice.logprobs is None and not message.refusal
    if usual and type(text) is str and not is_blank(text):
        return Line(custom_id, "answered", text, finish, read, written, model, None, False, None, known, reasoning)
    if finish == "error":
        reason = f"error: {_reason(choice.error)}"
        return Line(custom_id, "failed", finish=finish, error=reason, again=True, usage=False)
    if choice.message is UNSET:
        raise msgspec.ValidationError("a choice without a message")
    text, refusal = _texts(message)
    logprobs = None
    if choice.logprobs is not None and choice.logprobs.content and (tops := choice.logprobs.content[0].top_logprobs):
        logprobs = [(top.token, top.logprob) for top in tops]
    outcome: Outcome = "answered"
    error = None
    if refusal:
        outcome, text = "refused", text or refusal
    elif finish == "content_filter":
        outcome = "filtered"
    elif is_blank(text or "") and not logprobs:
        thought = bool(message.reasoning_content or message.reasoning)
        outcome, error = "empty", no_text(reasoning, written, finish, thought=thought)
    elif finish in AT_LIMIT:
        outcome = "truncated"
    return Line(custom_id, outcome, text, finish, read, written, model, error, False, logprobs, known, reasoning)


def _texts(message: Message) -> tuple[str | None, str | None]:
    """The text and the refusal of a message; other parts, such as thoughts, are left out."""
    if not isinstance(message.content, list):
        return message.content, message.refusal
    parts = [Content(type="text", text=part) if isinstance(part, str) else part for part in message.content]
    texts = [part.text for part in parts if part.type in TEXTS]
    if UNSET in texts:
        raise msgspec.ValidationError("a text without its text")
    written = [text for text in texts if isinstance(text, str)]
    refusals = [part.refusal for part in parts if part.refusal]
    return "".join(written) if written else None, message.refusal or "".join(refusals) or None


def _reason(error: Any) -> str:
    return (_problem(0, {"error": error}).message if error else "") or "the server could not finish the answer"


def _refused(custom_id: str, problem: Problem) -> Line:
    return refused_line(custom_id, problem, cause(problem))


def problem(status: int, content: bytes) -> Problem:
    """Decode an error reply, in any format."""
    try:
        return _problem(status, error_object(content))
    except msgspec.DecodeError:
        return Problem(status=status, message=content[:200].decode(errors="replace"), in_format=False)


def error_object(content: bytes) -> dict[str, Any]:
    """The object of an error reply; some servers put it into a list."""
    value = decoded(content, object)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return msgspec.convert(value, dict[str, Any])


def _problem(status: int, body: Any) -> Problem:
    """The readable parts of an error: OpenAI's format, a text instead of an object, or an error without a wrapper."""
    error = body.get("error") if isinstance(body, dict) else None
    in_format = isinstance(error, dict)
    while isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if isinstance(error, dict):
        found = lenient(error, Error)
    elif isinstance(error, str):
        found = Error(message=error)
    else:
        found = lenient(body, Error) if isinstance(body, dict) else Error()
        if not found.message and body:
            found.message = msgspec.json.encode(body)[:200].decode(errors="replace")
    flagged = found.metadata is not None and found.metadata.reasons
    return Problem(
        status=status,
        type=found.type or "",
        code="content_filter" if flagged else str(found.code or ""),
        message=found.message or "",
        param=found.param or "",
        in_format=in_format,
    )


def cause(problem: Problem) -> Cause:
    """Why a request was refused."""
    names = {problem.type, problem.code}
    text = f"{problem.type} {problem.code} {problem.message}"
    flagged = FLAGGED.search(text) and not ACCOUNT.search(problem.message)
    if names & FILTERS or (problem.status in (400, 403, 422) and flagged):
        return "content"
    if problem.status in (400, 422) and PROMPT_PARAM.match(problem.param):
        return "prompt"
    if names & (UNPAID | SETTINGS) or problem.status in (401, 402, 403, 404):
        return "settings"
    if problem.status in (0, 408, 409, 429) or problem.status >= 500:
        return "moment"
    about_settings = SETTINGS_TEXT.search(problem.message) and not PROMPT_TEXT.search(problem.message)
    return "settings" if about_settings else "prompt"


def verdict(problem: Problem) -> Verdict:
    """What to do about an error reply."""
    if cause(problem) == "content":
        return "refused"
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
