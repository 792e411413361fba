"""HTTP responses in both dialects: JSON documents and errors."""

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.anthropic import wire as anthropic_wire
from batchbench.emulator.dialects.openai import wire as openai_wire
from batchbench.emulator.jobs.answers import ErrorInfo
from batchbench.emulator.ledger.events import Dialect

# Anthropic's error type by status; every other status is an `api_error`.
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_encode = msgspec.json.Encoder().encode


class ErrorReply(Exception):  # noqa: N818 - a reply to the client, not a failure of the emulator
    """Ends a handler with an error in the client's dialect."""

    def __init__(self, info: ErrorInfo, headers: dict[str, str] | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.headers = headers or {}


def error_reply(status: int, message: str, code: str | None = None, param: str | None = None) -> ErrorReply:
    """The usual refusal: the client made a mistake."""
    return ErrorReply(ErrorInfo(status, message, "invalid_request_error", code, param))


def json_response(document: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(document), status=status, content_type="application/json")


def error_response(
    dialect: Dialect, info: ErrorInfo, request_id: str, headers: dict[str, str] | None = None
) -> web.Response:
    """An error in the format of the dialect."""
    if dialect == "openai":
        response = json_response(openai_wire.error_body(info), info.status)
    else:
        by_status = ANTHROPIC_TYPES.get(info.status, "api_error")
        own_type = info.type in ANTHROPIC_TYPES.values() and info.type != "invalid_request_error"
        code = info.code if info.status == 429 else None  # only rate limits have a code in this dialect
        info = ErrorInfo(info.status, info.message, info.type if own_type else by_status, code)
        response = json_response(anthropic_wire.error_body(info, request_id), info.status)
    response.headers.update(headers or {})
    return response
