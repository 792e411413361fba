"""Apply the faults that replace or damage a whole HTTP reply."""

import asyncio
import contextlib
import socket
import struct
from email.utils import formatdate

from aiohttp import web

from batchbench.emulator.faults import refusals
from batchbench.emulator.faults.rules import ActiveFault
from batchbench.emulator.jobs.answers import ErrorInfo
from batchbench.emulator.ledger.events import Dialect
from batchbench.emulator.server.clock import VirtualClock
from batchbench.emulator.server.responses import error_response, json_response

HTML = b"<!DOCTYPE html>\n<html><head><title>%s</title></head><body><center><h1>%s</h1></center></body></html>\n"

EVENT_STREAM = (
    b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\ndata: [DONE]\n\n'
)

_STATUS_MESSAGES = {
    408: ("Request timed out.", "timeout"),
    409: ("The resource is being changed by another request.", "conflict"),
    500: ("The server had an error while processing your request. Sorry about that!", "server_error"),
    503: ("That model is currently overloaded with other requests.", "server_is_overloaded"),
    504: ("The request timed out upstream.", "timeout"),
    529: ("Overloaded", "server_is_overloaded"),
}

_RAW_REPLIES = {
    "bad-status-line": b"ICY 200 maybe\r\n\r\n{}",
    "http09": b'{"id": "no header came before this"}\n',
    "huge-header": b"HTTP/1.1 200 OK\r\nx-huge: " + b"h" * 100_000 + b"\r\ncontent-length: 2\r\n\r\n{}",
    "header-bomb": b"HTTP/1.1 200 OK\r\n" + b"x-bomb: b\r\n" * 20_000 + b"content-length: 2\r\n\r\n{}",
    "extra-bytes": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"id":"not yours"}',
}


async def faulty_reply(
    fault: ActiveFault, dialect: Dialect, request: web.Request, clock: VirtualClock
) -> web.StreamResponse:
    """The reply of a fault. The caller decides whether the server acts before it."""
    name = fault.name
    request_id = str(request["request_id"])
    if name.startswith("redirect-"):
        return _redirect(int(name.removeprefix("redirect-")), fault, request)
    if name in refusals.RATE_LIMITS:
        header = refusals.RATE_LIMITS[name][0]
        return error_response(dialect, _rate_limited(dialect), request_id, _header(header, clock))
    if name in refusals.REFUSALS:
        refusal = refusals.REFUSALS[name][1]
        if name == "413-html":
            return html(413)
        key = request.headers.get("authorization") or request.headers.get("x-api-key") or ""
        message = refusal.message or f"Incorrect API key provided: {key.removeprefix('Bearer ')}."
        return error_response(dialect, _refused(refusal, message), request_id, _header(refusal.retry_after, clock))
    if name in refusals.FOREIGN_ERRORS:
        status, document, _ = refusals.FOREIGN_ERRORS[name]
        return json_response(document, fault.value if isinstance(fault.value, int) else status)
    if name == "400-cannot-find-file":
        message = "Cannot find file, or project proj_emulator does not have access to it."
        return error_response(dialect, ErrorInfo(400, message, "invalid_request_error"), request_id)
    return await _replacement(name.rpartition("-")[0], fault, dialect, request, clock)


async def _replacement(
    reply: str, fault: ActiveFault, dialect: Dialect, request: web.Request, clock: VirtualClock
) -> web.StreamResponse:
    match reply:
        case "502" | "520":
            return html(int(reply))
        case "html":
            return html(200)
        case "empty":
            return web.Response(body=b"", content_type="application/json")
        case "event-stream":
            return web.Response(body=EVENT_STREAM, content_type="text/event-stream")
        case "null":
            return web.Response(body=b"null", content_type="application/json")
        case "other-json":
            return web.Response(body=b'["what", 1, "did not expect"]', content_type="application/json")
        case "reset":
            return await close_connection(request, reset=True)
        case "close":
            return await close_connection(request)
        case "hang":
            await keep_waiting(request, fault.seconds, clock)
            return await close_connection(request)
        case _ if reply in _RAW_REPLIES:
            return await close_connection(request, _RAW_REPLIES[reply])
        case _:
            message, code = _STATUS_MESSAGES[int(reply)]
            info = ErrorInfo(int(reply), message, "server_error", code)
            return error_response(dialect, info, str(request["request_id"]))


async def changed_reply(
    fault: ActiveFault, request: web.Request, response: web.StreamResponse, clock: VirtualClock
) -> web.StreamResponse:
    """The right reply, sent in another way."""
    match fault.name:
        case "gzip":
            response.enable_compression(web.ContentCoding.gzip)
        case "slow-reply":
            await keep_waiting(request, fault.seconds, clock)
        case name:
            response.set_status(int(name.removeprefix("status-")))
    return response


def html(status: int) -> web.Response:
    title = f"{status} {'OK' if status == 200 else 'Bad gateway' if status >= 500 else 'Request Entity Too Large'}"
    return web.Response(body=HTML % (title.encode(), title.encode()), status=status, content_type="text/html")


async def close_connection(request: web.Request, data: bytes = b"", *, reset: bool = False) -> web.Response:
    """Send raw bytes, if any, and close the connection. The client never sees the returned response."""
    transport = request.transport
    if transport is not None:
        if data:
            await write_in_steps(transport, data)
        if reset:
            raw = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                # With a linger time of zero, the kernel sends RST instead of FIN.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
    return web.Response()


async def write_in_steps(transport: asyncio.WriteTransport, data: bytes) -> None:
    """Write to a transport and keep its buffer small."""
    for start in range(0, len(data), 1 << 18):
        transport.write(data[start : start + (1 << 18)])
        # A transport notifies only its protocol when its buffer has space, so poll the size of the buffer.
        while transport.get_write_buffer_size() > (1 << 20) and not transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def keep_waiting(request: web.Request, seconds: float, clock: VirtualClock) -> None:
    """Wait until `seconds` of virtual time after the call arrived, or until the client closes the connection."""
    waiting = asyncio.ensure_future(clock.sleep_until(request["arrived"] + seconds))
    try:
        while not waiting.done() and request.transport is not None and not request.transport.is_closing():
            await asyncio.wait([waiting], timeout=0.1)
    finally:
        waiting.cancel()


def _redirect(status: int, fault: ActiveFault, request: web.Request) -> web.Response:
    # The same server with its other host name: a client that follows leaves the host it was configured for.
    port = request.url.port
    target = fault.value if isinstance(fault.value, str) else f"http://localhost:{port}{request.path}"
    return web.Response(status=status, headers={"location": target})


def _rate_limited(dialect: Dialect) -> ErrorInfo:
    if dialect == "openai":
        return ErrorInfo(429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded")
    return ErrorInfo(429, "This request would exceed your rate limit.", "rate_limit_error")


def _refused(refusal: refusals.Refusal, message: str) -> ErrorInfo:
    kind = "insufficient_quota" if refusal.code == "insufficient_quota" else "invalid_request_error"
    code = None if refusal.code.endswith("_error") or refusal.code == "rate_limit_exceeded" else refusal.code
    return ErrorInfo(refusal.status, message, kind, code)


def _header(header: tuple[str, str] | None, clock: VirtualClock) -> dict[str, str]:
    if header is None:
        return {}
    name, value = header
    return {name: formatdate(clock.wall() + 2, usegmt=True) if value == "date" else value}
