"""Reading request bodies, into memory or to disk, up to a limit."""

from hashlib import sha256

import msgspec
from aiohttp import web

from batchbench.emulator.jobs.files import write_all
from batchbench.emulator.server.responses import ErrorReply, error_reply


async def read_body(request: web.Request, limit: int) -> bytes:
    """A small body, in memory."""
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.content.iter_chunked(1 << 18):
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


class BodyWriter:
    """Writes a body to a scratch file and computes its size and digest."""

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._digest = sha256()
        self.bytes = 0

    def write(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self.bytes > self._limit:
            raise _too_large(self._limit)
        self._digest.update(chunk)
        write_all(self._fd, chunk)

    def digest(self) -> str:
        return self._digest.hexdigest()


def _too_large(limit: int) -> ErrorReply:
    return error_reply(413, f"The request body is larger than {limit} bytes.", "request_too_large")


class _CustomId(msgspec.Struct):
    custom_id: str = ""


def custom_id_of(line: bytes) -> str:
    """The custom id of an input line; empty if it has none."""
    try:
        return msgspec.json.decode(line, type=_CustomId).custom_id
    except (ValueError, RecursionError):
        return ""
