"""Runs a call's action with the fault that a rule selects for it, and sends result files."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from batchbench.emulator.faults.download import send_damaged
from batchbench.emulator.faults.http import changed_reply, close_connection, faulty_reply, keep_waiting
from batchbench.emulator.ledger import events
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.downloads import RecordedDownload, recorder, signed_url
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
            response = await self._act(request, action, n)
            if response.status == 200 and (fault := context.select_fault("change", self.dialect, call, key, n)):
                return await changed_reply(fault, request, response, context.clock)
            return response
        finally:
            cleanup()

    async def send_file(
        self, request: web.Request, call: str, key: str, n: int, file: str, path: Path
    ) -> web.StreamResponse:
        """Send a file to the client and record whether the client got all of it."""
        record = recorder(self.context, file)
        if fault := self.context.select_fault("download", self.dialect, call, key, n):
            if fault.name == "redirect-download":
                return web.Response(status=302, headers={"location": signed_url(self.context, file)})
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
