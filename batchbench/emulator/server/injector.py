"""Runs a call's action with the fault that a rule selects for it, and sends result files."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from batchbench.emulator.faults.download import send_damaged
from batchbench.emulator.faults.http import close_connection, faulty_reply, keep_waiting
from batchbench.emulator.ledger import events
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.responses import ErrorReply, error_response

Action = Callable[[int], Awaitable[web.StreamResponse]]


class FaultInjector:
    """Injects the faults of one dialect."""

    def __init__(self, context: Context, dialect: events.Dialect) -> None:
        self.context = context
        self.dialect = dialect

    async def handle(
        self, request: web.Request, call: str, key: str, action: Action, cleanup: Callable[[], None] = lambda: None
    ) -> web.StreamResponse:
        """Count the call, then run the action or inject a fault.

        The action gets the number of the call. `cleanup` runs after the action, or when the action will never run.
        """
        context = self.context
        n = context.count_call(call, key)
        if fault := context.select_fault("late", self.dialect, call, key, n):
            context.start_task(self._act_late(action, n, fault.seconds, cleanup))
            await keep_waiting(request, fault.seconds, context.clock)
            return await close_connection(request)
        try:
            if fault := context.select_fault("before", self.dialect, call, key, n):
                return await faulty_reply(fault, self.dialect, request, context.clock)
            if fault := context.select_fault("after", self.dialect, call, key, n):
                await self._act(request, action, n)
                await context.sync()
                return await faulty_reply(fault, self.dialect, request, context.clock)
            return await self._act(request, action, n)
        finally:
            cleanup()

    async def send_file(
        self, request: web.Request, call: str, key: str, n: int, file: str, path: Path
    ) -> web.StreamResponse:
        """Send a file to the client and record whether the client got all of it."""
        _, wall = self.context.now()  # the start: the client may use the file before the end is recorded

        def record(size: int, *, complete: bool) -> None:
            t, _ = self.context.now()
            self.context.record(events.FileDownloaded(t=t, wall=wall, file=file, bytes=size, complete=complete))

        if fault := self.context.select_fault("download", self.dialect, call, key, n):
            record(0, complete=False)
            return await send_damaged(fault, request, path, self.context.clock)
        return RecordedDownload(path, record)

    async def _act(self, request: web.Request, action: Action, n: int) -> web.StreamResponse:
        try:
            return await action(n)
        except ErrorReply as error:
            return error_response(self.dialect, error.info, str(request["request_id"]), error.headers)

    async def _act_late(self, action: Action, n: int, seconds: float, cleanup: Callable[[], None]) -> None:
        await self.context.clock.sleep(seconds)
        try:
            with contextlib.suppress(ErrorReply):  # the client has closed the connection: it cannot get the error
                await action(n)
        finally:
            cleanup()


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
