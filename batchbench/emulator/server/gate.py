"""The gate between a route and its work: faults strike here, and downloads leave through here."""

import contextlib
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from batchbench.emulator.faults import download as download_faults
from batchbench.emulator.faults import http as http_faults
from batchbench.emulator.jobs.runner import write_all
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.server.context import Desk
from batchbench.emulator.server.replies import Fail, error, fail

Act = Callable[[int], Awaitable[web.StreamResponse]]


class Gate:
    """One dialect's way in and out."""

    def __init__(self, desk: Desk, dialect: ev.Dialect) -> None:
        self.desk = desk
        self.dialect = dialect

    async def through(
        self, request: web.Request, call: str, key: str, act: Act, done: Callable[[], None] = lambda: None
    ) -> web.StreamResponse:
        """Count the call, play the fault that strikes it, or act.

        `act` gets the number of the call; `done` is called once it has acted or never will.
        """
        desk, clock = self.desk, self.desk.clock
        n = desk.nth(call, key)
        if fired := desk.strike("late", self.dialect, call, key, n):
            desk.later(self._act_late(act, n, fired.seconds, done))
            await http_faults.hold(request, fired.seconds, clock)
            return await http_faults.drop(request)
        try:
            if fired := desk.strike("before", self.dialect, call, key, n):
                return await http_faults.play(fired, self.dialect, request, clock)
            if fired := desk.strike("after", self.dialect, call, key, n):
                await self._act(request, act, n)
                await desk.durable()
                return await http_faults.play(fired, self.dialect, request, clock)
            return await self._act(request, act, n)
        finally:
            done()

    async def send(
        self, request: web.Request, call: str, key: str, n: int, file: str, path: Path
    ) -> web.StreamResponse:
        """Stream a file to the client and note how far it got."""

        def note(size: int, *, complete: bool) -> None:
            t, wall = self.desk.now()
            self.desk.record(ev.Downloaded(t=t, wall=wall, file=file, bytes=size, complete=complete))

        if fired := self.desk.strike("download", self.dialect, call, key, n):
            note(0, complete=False)
            return await download_faults.play(fired, request, path, self.desk.clock)
        return Download(path, note)

    async def _act(self, request: web.Request, act: Act, n: int) -> web.StreamResponse:
        try:
            return await act(n)
        except Fail as refused:
            return error(self.dialect, refused.problem, str(request["request_id"]), refused.headers)

    async def _act_late(self, act: Act, n: int, seconds: float, done: Callable[[], None]) -> None:
        await self.desk.clock.sleep(seconds)
        try:
            with contextlib.suppress(Fail):  # the caller has long gone; a refusal leaves no trace
                await act(n)
        finally:
            done()


class Noted(Protocol):
    def __call__(self, size: int, *, complete: bool) -> None: ...


class Download(web.FileResponse):
    """A file that tells when it has been sent, or that it could not be."""

    def __init__(self, path: Path, note: Noted) -> None:
        super().__init__(path, headers={"content-type": "application/octet-stream"})
        self._note = note

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        sent = False
        try:
            writer = await super().prepare(request)
            sent = self.status == 200
            return writer
        finally:
            self._note(self.content_length or 0 if sent else 0, complete=sent)


async def read_body(request: web.Request, most: int) -> bytes:
    """A small body in memory."""
    too_large = fail(413, f"The request body is larger than {most} bytes.", "request_too_large")
    if (request.content_length or 0) > most:
        raise too_large
    chunks = bytearray()
    async for chunk in request.content.iter_chunked(1 << 18):
        chunks += chunk
        if len(chunks) > most:
            raise too_large
    return bytes(chunks)


class Spool:
    """A body on its way to disk: counted and digested while it is written under a scratch name."""

    def __init__(self, fd: int, most: int) -> None:
        self._fd = fd
        self._most = most
        self._digest = sha256()
        self.bytes = 0

    def put(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self.bytes > self._most:
            raise fail(413, f"The request body is larger than {self._most} bytes.", "request_too_large")
        self._digest.update(chunk)
        write_all(self._fd, chunk)

    def digest(self) -> str:
        return self._digest.hexdigest()


class _Id(msgspec.Struct):
    custom_id: str = ""


def first_id(line: bytes) -> str:
    """The custom id of an input line; empty if the line is not one."""
    try:
        return msgspec.json.decode(line, type=_Id).custom_id
    except (ValueError, RecursionError):
        return ""
