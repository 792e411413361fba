"""Pure: faults in single result lines.

Three kinds: some change the model's reply (`answers.REPLY_FAULTS`), some replace it with an error (`ERRORS`), and the
others damage the finished line (`damaged_line`). Only the errors are not billed.
"""

import json
from collections.abc import Callable
from typing import cast

import msgspec

from batchbench.emulator.jobs.answers import ErrorInfo, Json, LineResult
from batchbench.emulator.ledger.events import Dialect

_ERROR_200 = ErrorInfo(200, "Provider returned error", "server_error", 502)

# The errors that replace the answer, for OpenAI and for Anthropic; None = a time-out, which has its own format.
ERRORS: dict[str, tuple[ErrorInfo, ErrorInfo] | None] = {
    "line-timeout": None,
    "line-policy": (
        ErrorInfo(400, "Your prompt was flagged by a content policy.", "invalid_request_error", "content_policy"),
        ErrorInfo(400, "Output blocked by content filtering policy", "invalid_request_error"),
    ),
    "line-credit": (
        ErrorInfo(429, "You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
        ErrorInfo(400, "Your credit balance is too low to access the API.", "invalid_request_error"),
    ),
    "line-500": (
        ErrorInfo(500, "The server had an error while processing your request.", "server_error", "server_error"),
        ErrorInfo(500, "Internal server error", "api_error"),
    ),
    "line-429": (
        ErrorInfo(429, "Rate limit reached.", "requests", "rate_limit_exceeded"),
        ErrorInfo(429, "Rate limited", "rate_limit_error"),
    ),
    "line-error-200": (_ERROR_200, _ERROR_200),
}


def damaged_line(name: str, result: LineResult, dialect: Dialect, value: str | int | None) -> bytes:
    """The bytes that replace the line in the result file, with their newlines."""
    line = result.line
    if name in _BYTE_CHANGES:
        return _BYTE_CHANGES[name](line)
    if not result.answered:
        return line + b"\n"  # the line has no answer to damage
    document: Json = json.loads(line)
    if name in CHANGES:
        CHANGES[name](document, dialect)
        return _dump(document)
    match name:
        case "line-conflict":
            first = _dump(document)
            _set_text(document, dialect, "Another answer to the same request.")
            return first + _dump(document)
        case "line-invalid-utf8" | "line-surrogate":
            _set_text(document, dialect, "cut here: @@@")
            return _dump(document).replace(b"@@@", b"\\ud83d" if name == "line-surrogate" else b"\xff\xfe\xc3\x28")
        case "line-nested" | "line-huge-integer":
            extra = b"9" * 5_000 if name == "line-huge-integer" else b"[" * 100_000 + b"]" * 100_000
            return _dump({**document, "extra": "@@@"}).replace(b'"@@@"', extra)
        case "line-huge":
            _set_text(document, dialect, "x" * (value if isinstance(value, int) else 20_000_000))
            return _dump(document)
        case "line-wrapped":
            return _dump({"version": 2, "data": document})
        case _:
            raise KeyError(name)


def error_of(name: str, dialect: Dialect) -> ErrorInfo | None:
    """The error that a fault sends instead of the answer to a synchronous call; None if it sends none."""
    errors = ERRORS.get(name)
    return errors[dialect == "anthropic"] if errors else None


def changed_answer(name: str, answer: object, dialect: Dialect) -> object:
    """The answer to a synchronous call, with the same changes as in a result line."""
    if name not in CHANGES:
        return answer
    body = json.loads(msgspec.json.encode(answer))
    CHANGES[name]({"response": {"body": body}, "result": {"message": body}}, dialect)
    return body


def with_id(line: bytes, custom_id: str | None) -> bytes:
    """The same line with another custom id."""
    document: Json = json.loads(line)
    document["custom_id"] = custom_id
    return _dump(document)


def _dump(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _child(document: Json, *path: str) -> Json:
    for name in path:
        document = cast("Json", document[name])
    return document


def _body(document: Json, dialect: Dialect) -> Json:
    """The whole answer."""
    return _child(document, "response", "body") if dialect == "openai" else _child(document, "result", "message")


def _choice(document: Json) -> Json:
    """The first choice of an OpenAI answer."""
    return cast("list[Json]", _body(document, "openai")["choices"])[0]


def _message(document: Json, dialect: Dialect) -> Json:
    """The object with the text: the message of a choice (OpenAI), or the answer itself (Anthropic)."""
    return _child(_choice(document), "message") if dialect == "openai" else _body(document, dialect)


def _blocks(message: Json) -> list[Json]:
    return cast("list[Json]", message["content"])


def _set_text(document: Json, dialect: Dialect, text: str) -> None:
    _message(document, dialect)["content"] = text if dialect == "openai" else [{"type": "text", "text": text}]


def _unknown_id(document: Json, _dialect: Dialect) -> None:
    document["custom_id"] = "nobody"


def _foreign_id(document: Json, _dialect: Dialect) -> None:
    _, dash, rest = str(document["custom_id"]).partition("-")
    document["custom_id"] = "f0re1gn" + dash + rest


def _out_of_range(document: Json, _dialect: Dialect) -> None:
    nonce, _, _ = str(document["custom_id"]).partition("-")
    document["custom_id"] = f"{nonce}-4294967295-0"


def _null_id(document: Json, _dialect: Dialect) -> None:
    document["custom_id"] = None


def _tool_call(document: Json, dialect: Dialect) -> None:
    message = _message(document, dialect)
    if dialect == "openai":
        message["content"] = None
        call = {"id": "call_1", "type": "function", "function": {"name": "send_email", "arguments": "{}"}}
        message["tool_calls"] = [call]
        _choice(document)["finish_reason"] = "tool_calls"
    else:
        message["content"] = [{"type": "tool_use", "id": "toolu_1", "name": "send_email", "input": {}}]
        message["stop_reason"] = "tool_use"


def _other_model(document: Json, dialect: Dialect) -> None:
    body = _body(document, dialect)
    body["model"] = "some-other-model"
    if dialect == "openai":
        body["system_fingerprint"] = "fp_another000"


def _choices_many(document: Json, dialect: Dialect) -> None:
    body, field = _body(document, dialect), "choices" if dialect == "openai" else "content"
    body[field] = cast("list[Json]", body[field]) * 3


def _choices_none(document: Json, dialect: Dialect) -> None:
    _body(document, dialect)["choices" if dialect == "openai" else "content"] = []


def _content_list(document: Json, dialect: Dialect) -> None:
    message = _message(document, dialect)
    if dialect == "openai":
        message["content"] = [{"type": "text", "text": message["content"]}]
    else:
        message["content"] = "".join(str(block["text"]) for block in _blocks(message))


def _thinking(document: Json, dialect: Dialect) -> None:
    message = _message(document, dialect)
    if dialect == "openai":
        message["reasoning_content"] = "Let me think."
    else:
        message["content"] = [{"type": "thinking", "thinking": "", "signature": "c2ln"}, *_blocks(message)]


def _renamed(document: Json, dialect: Dialect) -> None:
    message = _message(document, dialect)
    message["contents"] = message.pop("content")


def _usage_absent(document: Json, dialect: Dialect) -> None:
    del _body(document, dialect)["usage"]


def _usage(change: Callable[[int], object]) -> Callable[[Json, Dialect], None]:
    """Change every number in `usage`."""

    def apply(document: Json, dialect: Dialect) -> None:
        usage = _child(_body(document, dialect), "usage")
        usage.update({name: change(number) for name, number in usage.items() if isinstance(number, int)})

    return apply


def _usage_null(document: Json, dialect: Dialect) -> None:
    _body(document, dialect)["usage"] = None


def _usage_optional_null(document: Json, dialect: Dialect) -> None:
    usage = _child(_body(document, dialect), "usage")
    required = ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens")
    usage.update(dict.fromkeys([name for name in usage if name not in required]))


def _top_logprobs_null(document: Json, _dialect: Dialect) -> None:
    if logprobs := _choice(document)["logprobs"]:
        for token in cast("list[Json]", cast("Json", logprobs)["content"]):
            token["top_logprobs"] = None


def _text_null(document: Json, dialect: Dialect) -> None:
    message = _message(document, dialect)
    message["content"] = None if dialect == "openai" else [{"type": "text", "text": None}]


def _status_0(document: Json, _dialect: Dialect) -> None:
    _child(document, "response")["status_code"] = 0


# Damage that does not depend on the content of the line.
_BYTE_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "line-malformed": lambda line: line[: len(line) // 2] + b"\n",
    "line-nan": lambda line: line[:-1] + b',"extra":NaN}\n',
    "line-bom": lambda line: b"\xef\xbb\xbf" + line + b"\n",
    "line-blank": lambda line: b"\n \n" + line + b"\n",
    "line-crlf": lambda line: line + b"\r\n",
    "line-trailing": lambda line: line + b" // end of answer\n",
    "line-duplicate": lambda line: line + b"\n" + line + b"\n",
    "line-duplicate-key": lambda line: b'{"custom_id":"somebody-0-0",' + line[1:] + b"\n",
    "line-missing": lambda _line: b"",
}

# Changes to the fields of an answer.
CHANGES: dict[str, Callable[[Json, Dialect], None]] = {
    "line-unknown-id": _unknown_id,
    "line-foreign-id": _foreign_id,
    "line-out-of-range": _out_of_range,
    "line-null-id": _null_id,
    "line-tool-call": _tool_call,
    "line-other-model": _other_model,
    "line-choices-many": _choices_many,
    "line-choices-none": _choices_none,
    "line-content-list": _content_list,
    "line-thinking": _thinking,
    "line-renamed": _renamed,
    "line-number-text": _usage(str),
    "line-usage-absent": _usage_absent,
    "line-usage-negative": _usage(lambda number: -number - 1),
    "line-usage-huge": _usage(lambda _number: 10**12),
    "line-status-0": _status_0,
    "line-usage-null": _usage_null,
    "line-usage-nulls": _usage(lambda _number: None),
    "line-usage-optional-null": _usage_optional_null,
    "line-top-logprobs-null": _top_logprobs_null,
    "line-text-null": _text_null,
}
