"""Playing the faults that damage a download: cuts, compression, framing, speed, ranges."""

import asyncio
import gzip
import struct
import zlib
from pathlib import Path

from aiohttp import web

from batchbench.emulator.faults import Fired
from batchbench.emulator.faults.http import drop, hold, pour
from batchbench.emulator.server.clock import Clock

SLOW_STEP = 0.3  # seconds between two bytes


async def play(fired: Fired, request: web.Request, path: Path, clock: Clock) -> web.StreamResponse:
    """Send a result file the way the fault says. A faulted file is read whole: faults are for small ones."""
    body = await asyncio.to_thread(path.read_bytes)
    half = len(body) // 2
    match fired.fault.name:
        case "cut-length":
            return await drop(request, _head(f"content-length: {len(body)}") + body[:half])
        case "cut-chunked":
            return await drop(request, _head("transfer-encoding: chunked") + b"%x\r\n" % len(body) + body[:half])
        case "cut-line":
            return await drop(request, _head("connection: close") + body[: line_cut(body)])
        case "cut-mid-line":
            return await drop(request, _head("connection: close") + body[: middle_of_line(body)])
        case "cut-utf8":
            return await drop(request, _head("connection: close") + character_cut(body))
        case "gzip-bomb":
            return await drop(
                request, _head("content-encoding: gzip", "connection: close") + await asyncio.to_thread(bomb)
            )
        case "endless":
            return await _endless(request)
        case "huge-length":
            return await drop(request, _head(f"content-length: {10**12}") + body)
        case "slow":
            return await _slow(request, body)
        case "stall":
            transport = request.transport
            if transport is not None:
                transport.write(_head(f"content-length: {len(body)}"))
            await hold(request, fired.seconds, clock)
            return await drop(request)
        case "range-ignored":
            return web.Response(body=body, content_type="application/octet-stream")
        case "range-416" | "range-wrong" if "range" in request.headers:
            return _range(fired.fault.name, body)
        case "range-416" | "range-wrong":
            return web.Response(body=body, content_type="application/octet-stream")
        case name:
            data, encoding = encoded(name, body)
            return web.Response(
                body=data, headers={"content-encoding": encoding}, content_type="application/octet-stream"
            )


def line_cut(body: bytes) -> int:
    """Where the first half of a file ends, at the end of a line."""
    return body.rfind(b"\n", 0, max(1, len(body) // 2)) + 1


def middle_of_line(body: bytes) -> int:
    """The middle of the line that follows the first half of a file: far enough for it to say whose it is."""
    start = line_cut(body)
    end = body.find(b"\n", start)
    return start + max(1, (end - start) // 2)


def character_cut(body: bytes) -> bytes:
    """Half a file that ends inside a character of several bytes."""
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
    """`size` spaces as gzip, about a thousandth of it; one packed megabyte repeated, so it is made in no time."""
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
            await pour(transport, b'{"endless": true}\n' * 4_000)
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


def _range(name: str, body: bytes) -> web.Response:
    if name == "range-416":
        return web.Response(status=416, headers={"content-range": f"bytes */{len(body)}"})
    headers = {"content-range": f"bytes 7-{len(body) - 1}/{len(body)}"}
    return web.Response(status=206, body=body[7:], headers=headers, content_type="application/octet-stream")


def _head(*headers: str) -> bytes:
    lines = ("HTTP/1.1 200 OK", "content-type: application/octet-stream", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
