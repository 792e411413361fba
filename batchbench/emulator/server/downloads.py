"""Downloads of whole files, and the host that signed addresses lead to: it takes no key."""

import hmac
from pathlib import Path
from typing import Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.state import derive_id
from batchbench.emulator.server.context import Context

SIGNED = "/__emu/download"


class RecordDownload(Protocol):
    def __call__(self, size: int, *, complete: bool) -> None: ...


class RecordedDownload(web.FileResponse):
    """A file response that records whether it was sent completely."""

    def __init__(self, path: Path, record: RecordDownload) -> None:
        super().__init__(path, headers={"content-type": "application/octet-stream"})
        self._record = record

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        sent = False
        try:
            writer = await super().prepare(request)
            sent = self.status == 200
            return writer
        finally:
            self._record(self.content_length or 0 if sent else 0, complete=sent)


def recorder(context: Context, file: str) -> RecordDownload:
    """Records in the ledger how a download of this file ended."""
    _, wall = context.now()  # the start: the client may use the file before the end is recorded

    def record(size: int, *, complete: bool) -> None:
        t, _ = context.now()
        context.record(events.FileDownloaded(t=t, wall=wall, file=file, bytes=size, complete=complete))

    return record


def signed_url(context: Context, file: str) -> str:
    """An address of a file that works without a key; its host name is not the one that the client was given."""
    return f"http://localhost:{context.port}{SIGNED}/{file}/{_signature(context, file)}"


class SignedDownloads:
    """The host of signed addresses. Like object stores do, it refuses a call that has a key besides the signature."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def routes(self) -> list[web.RouteDef]:
        return [web.get(f"{SIGNED}/{{file}}/{{signature}}", self.download)]

    async def download(self, request: web.Request) -> web.StreamResponse:
        context, file = self.context, request.match_info["file"]
        if not hmac.compare_digest(request.match_info["signature"].encode(), _signature(context, file).encode()):
            return web.Response(status=403, text="The signature does not match.\n")
        if "authorization" in request.headers or "x-api-key" in request.headers:
            return web.Response(status=400, text="Only one way of authentication is allowed.\n")
        stored = context.state.files.get(file)
        path = context.file_path(stored) if stored else context.output_path(file)
        return RecordedDownload(path, recorder(context, file))


def _signature(context: Context, file: str) -> str:
    return derive_id(f"{context.state.salt} signed {file}", 32)
