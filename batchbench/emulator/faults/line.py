"""Pure: what faults do to single result lines.

Three kinds: some change what the model says (`answers.TWISTS`), some put an error in its place (`ERRORS`), and the
rest damage a finished line (`damage`). Only errors are not billed.
"""

import json
from collections.abc import Callable
from typing import Any

from batchbench.emulator.jobs.answers import Problem, Result
from batchbench.emulator.ledger.events import Dialect

Json = dict[str, Any]

# The problem that replaces the answer; null = the model timed out, which has a shape of its own.
ERRORS: dict[str, tuple[Problem, Problem] | None] = {
    "line-timeout": None,
    "line-policy": (
        Problem(400, "Your prompt was flagged by a content policy.", "invalid_request_error", "content_policy"),
        Problem(400, "Output blocked by content filtering policy", "invalid_request_error"),
    ),
    "line-credit": (
        Problem(429, "You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
        Problem(400, "Your credit balance is too low to access the API.", "invalid_request_error"),
    ),
    "line-500": (
        Problem(500, "The server had an error while processing your request.", "server_error", "server_error"),
        Problem(500, "Internal server error", "api_error"),
    ),
    "line-429": (
        Problem(429, "Rate limit reached.", "requests", "rate_limit_exceeded"),
        Problem(429, "Rate limited", "rate_limit_error"),
    ),
}


def damage(name: str, result: Result, dialect: Dialect, value: str | int | None) -> bytes:
    """The bytes that stand in the result file instead of the line, with their newlines."""
    line = result.line
    if name in _BYTES:
        return _BYTES[name](line)
    if not result.answered:
        return line + b"\n"  # nothing of an answer is there to damage
    if name == "line-huge":
        value = value if isinstance(value, int) else 20_000_000
    document: Json = json.loads(line)
    return _DOCUMENTS[name](document, dialect, value)


def with_id(line: bytes, custom_id: str | None) -> bytes:
    """The same line under another id."""
    document: Json = json.loads(line)
    document["custom_id"] = custom_id
    return _dump(document)


def _dump(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _message(document: Json, dialect: Dialect) -> Json:
    """The object that holds the text: a choice's message, or the answer itself."""
    if dialect == "openai":
        message: Json = document["response"]["body"]["choices"][0]["message"]
    else:
        message = document["result"]["message"]
    return message


def _body(document: Json, dialect: Dialect) -> Json:
    body: Json = document["response"]["body"] if dialect == "openai" else document["result"]["message"]
    return body


def _set_text(document: Json, dialect: Dialect, text: str) -> None:
    if dialect == "openai":
        _message(document, dialect)["content"] = text
    else:
        _message(document, dialect)["content"] = [{"type": "text", "text": text}]


def _conflict(document: Json, dialect: Dialect, _value: object) -> bytes:
    first = _dump(document)
    _set_text(document, dialect, "Another answer to the same request.")
    return first + _dump(document)


def _in_text(mark: bytes) -> Callable[[Json, Dialect, object], bytes]:
    """Bytes that no encoder would write, inside the answer's string."""

    def put(document: Json, dialect: Dialect, _value: object) -> bytes:
        _set_text(document, dialect, "cut here: @@@")
        return _dump(document).replace(b"@@@", mark)

    return put


def _unknown_id(document: Json, _dialect: Dialect, _value: object) -> bytes:
    document["custom_id"] = "nobody"
    return _dump(document)


def _foreign_id(document: Json, _dialect: Dialect, _value: object) -> bytes:
    _, dash, rest = str(document["custom_id"]).partition("-")
    document["custom_id"] = "f0re1gn" + dash + rest
    return _dump(document)


def _out_of_range(document: Json, _dialect: Dialect, _value: object) -> bytes:
    nonce, _, _ = str(document["custom_id"]).partition("-")
    document["custom_id"] = f"{nonce}-4294967295-0"
    return _dump(document)


def _null_id(document: Json, _dialect: Dialect, _value: object) -> bytes:
    document["custom_id"] = None
    return _dump(document)


def _tool_call(document: Json, dialect: Dialect, _value: object) -> bytes:
    if dialect == "openai":
        message = _message(document, dialect)
        message["content"] = None
        call = {"id": "call_1", "type": "function", "function": {"name": "send_email", "arguments": "{}"}}
        message["tool_calls"] = [call]
        document["response"]["body"]["choices"][0]["finish_reason"] = "tool_calls"
    else:
        message = _message(document, dialect)
        message["content"] = [{"type": "tool_use", "id": "toolu_1", "name": "send_email", "input": {}}]
        message["stop_reason"] = "tool_use"
    return _dump(document)


def _other_model(document: Json, dialect: Dialect, _value: object) -> bytes:
    body = _body(document, dialect)
    body["model"] = "some-other-model"
    if dialect == "openai":
        body["system_fingerprint"] = "fp_another000"
    return _dump(document)


def _huge(document: Json, dialect: Dialect, value: object) -> bytes:
    _set_text(document, dialect, "x" * value if isinstance(value, int) else "")
    return _dump(document)


def _nested(document: Json, _dialect: Dialect, _value: object) -> bytes:
    document["extra"] = "@@@"
    return _dump(document).replace(b'"@@@"', b"[" * 100_000 + b"]" * 100_000)


def _huge_integer(document: Json, _dialect: Dialect, _value: object) -> bytes:
    document["extra"] = "@@@"
    return _dump(document).replace(b'"@@@"', b"9" * 5_000)


def _choices_many(document: Json, dialect: Dialect, _value: object) -> bytes:
    body = _body(document, dialect)
    field = "choices" if dialect == "openai" else "content"
    body[field] = body[field] * 3
    return _dump(document)


def _choices_none(document: Json, dialect: Dialect, _value: object) -> bytes:
    _body(document, dialect)["choices" if dialect == "openai" else "content"] = []
    return _dump(document)


def _content_list(document: Json, dialect: Dialect, _value: object) -> bytes:
    message = _message(document, dialect)
    if dialect == "openai":
        message["content"] = [{"type": "text", "text": message["content"]}]
    else:
        message["content"] = "".join(part["text"] for part in message["content"])
    return _dump(document)


def _thinking(document: Json, dialect: Dialect, _value: object) -> bytes:
    message = _message(document, dialect)
    if dialect == "openai":
        message["reasoning_content"] = "Let me think."
    else:
        message["content"] = [{"type": "thinking", "thinking": "", "signature": "c2ln"}, *message["content"]]
    return _dump(document)


def _renamed(document: Json, dialect: Dialect, _value: object) -> bytes:
    message = _message(document, dialect)
    message["contents"] = message.pop("content")
    return _dump(document)


def _wrapped(document: Json, _dialect: Dialect, _value: object) -> bytes:
    return _dump({"version": 2, "data": document})


def _number_text(document: Json, dialect: Dialect, _value: object) -> bytes:
    usage = _body(document, dialect)["usage"]
    for name, number in usage.items():
        if isinstance(number, int):
            usage[name] = str(number)
    return _dump(document)


def _usage_absent(document: Json, dialect: Dialect, _value: object) -> bytes:
    del _body(document, dialect)["usage"]
    return _dump(document)


def _usage(factor: int, plus: int) -> Callable[[Json, Dialect, object], bytes]:
    def change(document: Json, dialect: Dialect, _value: object) -> bytes:
        usage = _body(document, dialect)["usage"]
        for name, number in usage.items():
            if isinstance(number, int):
                usage[name] = number * factor + plus
        return _dump(document)

    return change


def _status_0(document: Json, _dialect: Dialect, _value: object) -> bytes:
    document["response"]["status_code"] = 0
    return _dump(document)


def _duplicate_key(line: bytes) -> bytes:
    return b'{"custom_id":"somebody-0-0",' + line[1:] + b"\n"


# Damage that needs no knowledge of what the line says.
_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "line-malformed": lambda line: line[: len(line) // 2] + b"\n",
    "line-nan": lambda line: line[:-1] + b',"extra":NaN}\n',
    "line-bom": lambda line: b"\xef\xbb\xbf" + line + b"\n",
    "line-blank": lambda line: b"\n \n" + line + b"\n",
    "line-crlf": lambda line: line + b"\r\n",
    "line-trailing": lambda line: line + b" // end of answer\n",
    "line-duplicate": lambda line: line + b"\n" + line + b"\n",
    "line-duplicate-key": _duplicate_key,
    "line-missing": lambda _line: b"",
}

_DOCUMENTS: dict[str, Callable[[Json, Dialect, object], bytes]] = {
    "line-conflict": _conflict,
    "line-invalid-utf8": _in_text(b"\xff\xfe\xc3\x28"),
    "line-surrogate": _in_text(b"\\ud83d"),
    "line-unknown-id": _unknown_id,
    "line-foreign-id": _foreign_id,
    "line-out-of-range": _out_of_range,
    "line-null-id": _null_id,
    "line-tool-call": _tool_call,
    "line-other-model": _other_model,
    "line-huge": _huge,
    "line-nested": _nested,
    "line-huge-integer": _huge_integer,
    "line-choices-many": _choices_many,
    "line-choices-none": _choices_none,
    "line-content-list": _content_list,
    "line-thinking": _thinking,
    "line-renamed": _renamed,
    "line-wrapped": _wrapped,
    "line-number-text": _number_text,
    "line-usage-absent": _usage_absent,
    "line-usage-negative": _usage(-1, -1),
    "line-usage-huge": _usage(0, 10**12),
    "line-status-0": _status_0,
}
