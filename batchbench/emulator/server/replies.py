"""Responses in either dialect: JSON, errors, request ids."""

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.anthropic import wire as anthropic_wire
from batchbench.emulator.dialects.openai import wire as openai_wire
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.ledger.events import Dialect

# Anthropic's error type by status; anything else is an `api_error`.
TYPES = {
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


class Fail(Exception):  # noqa: N818 - carries a reply, not a failure of the emulator
    """Ends a handler with an error in the caller's dialect."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.headers = headers or {}


def fail(status: int, message: str, code: str | None = None, param: str | None = None) -> Fail:
    """The usual refusal: the caller's fault."""
    return Fail(Problem(status, message, "invalid_request_error", code, param))


def reply(document: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(document), status=status, content_type="application/json")


def error(dialect: Dialect, problem: Problem, request_id: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error body as the dialect words it."""
    if dialect == "openai":
        response = reply(openai_wire.refused(problem), problem.status)
    else:
        kind = problem.type if problem.type in TYPES.values() else TYPES.get(problem.status, "api_error")
        if kind == "invalid_request_error":
            kind = TYPES.get(problem.status, "api_error")
        code = problem.code if problem.status == 429 else None  # only limits carry a code in this dialect
        response = reply(
            anthropic_wire.refused(Problem(problem.status, problem.message, kind, code), request_id), problem.status
        )
    response.headers.update(headers or {})
    return response
