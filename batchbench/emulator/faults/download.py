"""Apply the faults that damage a download: cuts, compression, framing, speed, ranges."""

import asyncio
import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from batchbench.emulator.faults.http import close_connection, keep_waiting, write_in_steps
from batchbench.emulator.faults.rules import ActiveFault
from batchbench.emulator.server.clock import VirtualClock

SLOW_STEP = 0.3  # seconds between two bytes


async def send_damaged(fault: ActiveFault, request: web.Request, path: Path, clock: VirtualClock) -> web.StreamResponse:
    """Send a result file with a fault. Reads the whole file into memory, so faults are for small files."""
    body = await asyncio.to_thread(path.read_bytes)
    if fault.name in _RAW_REPLIES:
        return await close_connection(request, await asyncio.to_thread(_RAW_REPLIES[fault.name], body))
    match fault.name:
        case "endless":
            return await _endless(request)
        case "slow":
            return await _slow(request, body)
        case "stall":
            if request.transport is not None:
                request.transport.write(_head(f"content-length: {len(body)}"))
            await keep_waiting(request, fault.seconds, clock)
            return await close_connection(request)
        case "range-416" if "range" in request.headers:
            return web.Response(status=416, headers={"content-range": f"bytes */{len(body)}"})
        case "range-wrong" if "range" in request.headers:
            headers = {"content-range": f"bytes 7-{len(body) - 1}/{len(body)}"}
            return web.Response(status=206, body=body[7:], headers=headers, content_type="application/octet-stream")
        case "range-ignored" | "range-416" | "range-wrong":
            return web.Response(body=body, content_type="application/octet-stream")
        case name:
            data, encoding = encoded(name, body)
            headers = {"content-encoding": encoding}
            return web.Response(body=data, headers=headers, content_type="application/octet-stream")


def line_cut(body: bytes) -> int:
    """The last end of a line in the first half of a file."""
    return body.rfind(b"\n", 0, max(1, len(body) // 2)) + 1


def middle_of_line(body: bytes) -> int:
    """The middle of the line after `line_cut`, far enough to contain its custom id."""
    start = line_cut(body)
    end = body.find(b"\n", start)
    return start + max(1, (end - start) // 2)


def character_cut(body: bytes) -> bytes:
    """About half of a file, ending inside a character of several bytes."""
    for at in range(len(body) // 2, len(body)):
        if body[at] >= 0xC0:
            return body[: at + 1]
    return body[: len(body) // 2] + b"\xe2\x80"


def encoded(name: str, body: bytes) -> tuple[bytes, str]:
    """A body with a compression fault, and the Content-Encoding that announces it."""
    packed = gzip.compress(body, 1)
    match name:
        case "gzip-cut":
            return packed[: len(packed) // 2], "gzip"
        case "gzip-crc":
            return packed[:-8] + bytes(byte ^ 0xFF for byte in packed[-8:-4]) + packed[-4:], "gzip"
        case "gzip-double":
            return gzip.compress(packed, 1), "gzip"
        case "gzip-fake":
            return body, "gzip"
        case _:
            return body, "br"


def bomb(size: int = 1 << 30) -> bytes:
    """`size` spaces as gzip, about a thousandth of the size. Fast: it compresses one megabyte and repeats it."""
    spaces = b" " * (1 << 20)
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(spaces) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(size >> 20):
        crc = zlib.crc32(spaces, crc)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + packed * (size >> 20) + b"\x03\0" + struct.pack("<II", crc, size & 0xFFFFFFFF)


async def _endless(request: web.Request) -> web.Response:
    transport = request.transport
    if transport is not None:
        transport.write(_head("connection: close"))
        while not transport.is_closing():
            await write_in_steps(transport, b'{"endless": true}\n' * 4_000)
            await asyncio.sleep(0)
    return web.Response()


async def _slow(request: web.Request, body: bytes) -> web.Response:
    transport = request.transport
    if transport is not None:
        transport.write(_head(f"content-length: {len(body)}"))
        for at in range(len(body)):
            if transport.is_closing():
                break
            transport.write(body[at : at + 1])
            await asyncio.sleep(SLOW_STEP)
        transport.close()
    return web.Response()


def _head(*headers: str) -> bytes:
    lines = ("HTTP/1.1 200 OK", "content-type: application/octet-stream", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _half(body: bytes) -> bytes:
    return body[: len(body) // 2]


# The bytes to send before the connection closes.
_RAW_REPLIES: dict[str, Callable[[bytes], bytes]] = {
    "cut-length": lambda body: _head(f"content-length: {len(body)}") + _half(body),
    "cut-chunked": lambda body: _head("transfer-encoding: chunked") + b"%x\r\n" % len(body) + _half(body),
    "cut-line": lambda body: _head("connection: close") + body[: line_cut(body)],
    "cut-mid-line": lambda body: _head("connection: close") + body[: middle_of_line(body)],
    "cut-utf8": lambda body: _head("connection: close") + character_cut(body),
    "gzip-bomb": lambda _body: _head("content-encoding: gzip", "connection: close") + bomb(),
    "huge-length": lambda body: _head(f"content-length: {10**12}") + body,
}
