"""Playing the faults that replace or damage a whole HTTP reply."""

import asyncio
import contextlib
import socket
import struct
from email.utils import formatdate

from aiohttp import web

from batchbench.emulator.faults import Fired, catalogue
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.ledger.events import Dialect
from batchbench.emulator.server.clock import Clock
from batchbench.emulator.server.replies import error

HTML = b"<!DOCTYPE html>\n<html><head><title>%s</title></head><body><center><h1>%s</h1></center></body></html>\n"

_STATUS_MESSAGES = {
    408: ("Request timed out.", "timeout"),
    409: ("The resource is being changed by another request.", "conflict"),
    500: ("The server had an error while processing your request. Sorry about that!", "server_error"),
    503: ("That model is currently overloaded with other requests.", "server_is_overloaded"),
    504: ("The request timed out upstream.", "timeout"),
    529: ("Overloaded", "server_is_overloaded"),
}

_RAW = {
    "bad-status-line": b"ICY 200 maybe\r\n\r\n{}",
    "http09": b'{"id": "no header came before this"}\n',
    "huge-header": b"HTTP/1.1 200 OK\r\nx-huge: " + b"h" * 100_000 + b"\r\ncontent-length: 2\r\n\r\n{}",
    "header-bomb": b"HTTP/1.1 200 OK\r\n" + b"x-bomb: b\r\n" * 20_000 + b"content-length: 2\r\n\r\n{}",
    "extra-bytes": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"id":"not yours"}',
}


async def play(fired: Fired, dialect: Dialect, request: web.Request, clock: Clock) -> web.StreamResponse:
    """The reply that a fault gives, whether or not the server has acted."""
    name = fired.fault.name
    request_id = str(request["request_id"])
    if name.startswith("redirect-"):
        return _redirect(int(name.removeprefix("redirect-")), fired, request)
    if name in catalogue.RATE_LIMITS:
        header = catalogue.RATE_LIMITS[name][0]
        return error(dialect, _rate_limited(dialect), request_id, _header(header, clock))
    if name in catalogue.REFUSALS:
        refusal = catalogue.REFUSALS[name][1]
        if name == "413-html":
            return html(413)
        key = request.headers.get("authorization") or request.headers.get("x-api-key") or ""
        message = refusal.message or f"Incorrect API key provided: {key.removeprefix('Bearer ')}."
        return error(dialect, _refused(refusal, message), request_id, _header(refusal.retry_after, clock))
    if name == "400-cannot-find-file":
        message = "Cannot find file, or project proj_emulator does not have access to it."
        return error(dialect, Problem(400, message, "invalid_request_error"), request_id)
    return await _replaced(name.rpartition("-")[0], fired, dialect, request, clock)


async def _replaced(
    what: str, fired: Fired, dialect: Dialect, request: web.Request, clock: Clock
) -> web.StreamResponse:
    match what:
        case "502" | "520":
            return html(int(what))
        case "html":
            return html(200)
        case "empty":
            return web.Response(body=b"", content_type="application/json")
        case "null":
            return web.Response(body=b"null", content_type="application/json")
        case "other-json":
            return web.Response(body=b'["what", 1, "did not expect"]', content_type="application/json")
        case "reset":
            return await drop(request, reset=True)
        case "close":
            return await drop(request)
        case "hang":
            await hold(request, fired.seconds, clock)
            return await drop(request)
        case _ if what in _RAW:
            return await drop(request, _RAW[what])
        case _:
            message, code = _STATUS_MESSAGES[int(what)]
            problem = Problem(int(what), message, "server_error", code)
            return error(dialect, problem, str(request["request_id"]))


def html(status: int) -> web.Response:
    title = f"{status} {'OK' if status == 200 else 'Bad gateway' if status >= 500 else 'Request Entity Too Large'}"
    return web.Response(body=HTML % (title.encode(), title.encode()), status=status, content_type="text/html")


async def drop(request: web.Request, data: bytes = b"", *, reset: bool = False) -> web.Response:
    """Send raw bytes, if any, and end the connection. The response returned is never seen by anyone."""
    transport = request.transport
    if transport is not None:
        if data:
            await pour(transport, data)
        if reset:
            raw = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                # Closing with a linger time of zero makes the kernel send RST instead of FIN.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
    return web.Response()


async def pour(transport: asyncio.WriteTransport, data: bytes) -> None:
    """Write to a transport without letting its buffer grow."""
    for start in range(0, len(data), 1 << 18):
        transport.write(data[start : start + (1 << 18)])
        # A transport tells only its protocol when it may be written to again, so look.
        while transport.get_write_buffer_size() > (1 << 20) and not transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def hold(request: web.Request, seconds: float, clock: Clock) -> None:
    """Keep the caller waiting for virtual seconds, or until it hangs up."""
    waiting = asyncio.ensure_future(clock.sleep(seconds))
    try:
        while not waiting.done() and request.transport is not None and not request.transport.is_closing():
            await asyncio.wait([waiting], timeout=0.1)
    finally:
        waiting.cancel()


def _redirect(status: int, fired: Fired, request: web.Request) -> web.Response:
    # The same server under its other name: a client that follows has left the host it was told to use.
    port = request.url.port
    target = fired.value if isinstance(fired.value, str) else f"http://localhost:{port}{request.path}"
    return web.Response(status=status, headers={"location": target})


def _rate_limited(dialect: Dialect) -> Problem:
    if dialect == "openai":
        return Problem(429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded")
    return Problem(429, "This request would exceed your rate limit.", "rate_limit_error")


def _refused(refusal: catalogue.Refusal, message: str) -> Problem:
    kind = "insufficient_quota" if refusal.code == "insufficient_quota" else "invalid_request_error"
    code = None if refusal.code.endswith("_error") or refusal.code == "rate_limit_exceeded" else refusal.code
    return Problem(refusal.status, message, kind, code)


def _header(header: tuple[str, str] | None, clock: Clock) -> dict[str, str]:
    if header is None:
        return {}
    name, value = header
    return {name: formatdate(clock.wall() + 2, usegmt=True) if value == "date" else value}
