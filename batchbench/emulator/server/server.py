"""The HTTP server on the loopback interface: checks Host and token, then calls the routes of the dialects."""

import asyncio
import fcntl
import gc
import hmac
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import msgspec
from aiohttp import web

from batchbench.core.store import Store
from batchbench.emulator import HOST
from batchbench.emulator.dialects.anthropic.batches import MessageBatchRoutes
from batchbench.emulator.dialects.anthropic.models import ModelRoutes as ClaudeModelRoutes
from batchbench.emulator.dialects.anthropic.sync import MessageRoutes
from batchbench.emulator.dialects.openai.batches import OpenAIBatchRoutes
from batchbench.emulator.dialects.openai.files import FileRoutes
from batchbench.emulator.dialects.openai.models import ModelRoutes as OpenAIModelRoutes
from batchbench.emulator.dialects.openai.sync import ChatRoutes
from batchbench.emulator.jobs.answers import ErrorInfo
from batchbench.emulator.jobs.scheduler import Scheduler
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.state import derive_id
from batchbench.emulator.server.bodies import read_body
from batchbench.emulator.server.context import Context, Settings
from batchbench.emulator.server.downloads import SIGNED, SignedDownloads
from batchbench.emulator.server.responses import ErrorReply, error_reply, error_response, json_response
from batchbench.errors import LockedError, UsageError

READ_BUFFER = 1 << 20
LAST_DATE = 253_402_300_799  # the end of the year 9999; datetime has no later date

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a running emulator; the content of endpoint.json."""

    openai: str
    anthropic: str
    token: str
    ledger: str
    pid: int


class Advance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    advance: float


class Server:
    """One running emulator."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.scheduler = Scheduler(context)
        self._stop = asyncio.Event()
        self._in_flight = 0
        self._last_call = 0.0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._handle])
        openai = (FileRoutes, OpenAIBatchRoutes, ChatRoutes, OpenAIModelRoutes)
        for group in (*openai, MessageBatchRoutes, MessageRoutes, ClaudeModelRoutes, SignedDownloads):
            app.add_routes(group(self.context).routes())
        app.add_routes(
            [
                web.get("/__emu/clock", self._clock),
                web.post("/__emu/clock", self._advance),
                web.get("/__emu/ledger", self._ledger),
                web.get("/__emu/stats", self._stats),
            ]
        )
        app.on_response_prepare.append(self._add_headers)
        return app

    async def run(self, announce: Callable[[Endpoint], None]) -> None:
        """Serve until a signal arrives or no call has arrived for `idle_exit` seconds."""
        settings = self.context.settings
        listener = _listen(settings.port)
        self.context.port = listener.getsockname()[1]
        runner = web.AppRunner(
            self.app(), access_log=None, handle_signals=False, read_bufsize=READ_BUFFER, shutdown_timeout=0.5
        )
        await runner.setup()
        await web.SockSite(runner, listener).start()
        endpoint = self._endpoint()
        target = settings.state / "endpoint.json"
        store = Store(settings.home)
        store.sweep(settings.state)
        store.write(target, msgspec.json.encode(endpoint))
        self._last_call = asyncio.get_running_loop().time()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        try:
            announce(endpoint)
            await self.context.run_tasks(self.scheduler.run, self._stopped, self._idle)
        finally:
            self.scheduler.stop()
            target.unlink(missing_ok=True)
            await runner.cleanup()
            self.context.ledger.close()

    def _endpoint(self) -> Endpoint:
        base = f"http://{HOST}:{self.context.port}"
        settings = self.context.settings
        return Endpoint(
            openai=f"{base}/openai/v1",
            anthropic=f"{base}/anthropic",
            token=settings.token,
            ledger=str(settings.ledger),
            pid=os.getpid(),
        )

    async def _stopped(self) -> None:
        await self._stop.wait()

    async def _idle(self) -> None:
        idle_exit = self.context.settings.idle_exit
        loop = asyncio.get_running_loop()
        if idle_exit is None:
            await asyncio.Event().wait()
            return
        while True:
            left = self._last_call + idle_exit - loop.time()
            if self._in_flight or self.scheduler.busy:
                left = idle_exit
            if left <= 0:
                return
            await asyncio.sleep(left)

    @web.middleware
    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        dialect: events.Dialect = "anthropic" if request.path.startswith("/anthropic/") else "openai"
        request["request_id"] = "req_" + derive_id(os.urandom(12).hex(), 24)
        request["dialect"] = dialect
        request["arrived"] = self.context.clock.now()
        # A web page in a browser can send requests to this port with its own host name, but not with ours.
        if request.headers.get("host", "") not in self._host_names():
            return web.Response(status=403, text="This server accepts only its loopback address as Host.\n")
        signed = request.path.startswith(SIGNED)
        if not signed and (info := self._authentication_error(request, dialect)):
            return error_response(dialect, info, request["request_id"])
        self._in_flight += 1
        try:
            return await handler(request)
        except ErrorReply as error:
            return error_response(dialect, error.info, request["request_id"], error.headers)
        except web.HTTPException as error:
            message = f"Invalid URL ({request.method} {request.path})"
            kind = "not_found_error" if dialect == "anthropic" else "invalid_request_error"
            return error_response(dialect, ErrorInfo(error.status, message, kind), request["request_id"])
        finally:
            self._in_flight -= 1
            self._last_call = asyncio.get_running_loop().time()

    def _host_names(self) -> tuple[str, str]:
        return f"{HOST}:{self.context.port}", f"localhost:{self.context.port}"

    def _authentication_error(self, request: web.Request, dialect: events.Dialect) -> ErrorInfo | None:
        """None if the request has the right token."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = request.headers.get("x-api-key") if dialect == "anthropic" else None
        token = key if key is not None else bearer
        if hmac.compare_digest(token.encode(), self.context.settings.token.encode()):
            return None
        if dialect == "anthropic":
            missing = "x-api-key header is required"
            return ErrorInfo(401, "invalid x-api-key" if token else missing, "authentication_error")
        if not token:
            message = "You didn't provide an API key: send it as 'Authorization: Bearer YOUR_KEY'."
            return ErrorInfo(401, message, "invalid_request_error")
        return ErrorInfo(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key")

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        # Virtual time, like every other time in the responses.
        response.headers["date"] = formatdate(min(self.context.clock.now(), LAST_DATE), usegmt=True)
        request_id = request.get("request_id", "")
        if request.get("dialect") == "anthropic":
            response.headers["request-id"] = request_id
        else:
            response.headers["x-request-id"] = request_id
            response.headers["openai-version"] = "2020-10-01"
            response.headers["openai-organization"] = "org-emulator"

    # The emulator's own controls.

    async def _clock(self, _request: web.Request) -> web.StreamResponse:
        return json_response({"now": self.context.clock.now(), "offset": self.context.clock.offset})

    async def _advance(self, request: web.Request) -> web.StreamResponse:
        try:
            seconds = msgspec.json.decode(await read_body(request, 1024), type=Advance).advance
        except (ValueError, RecursionError) as error:
            raise error_reply(400, f'Expected {{"advance": seconds}}: {error}') from None
        if not 0 <= seconds < 1e12:
            raise error_reply(400, "The clock only moves forward: `advance` must be 0 or more seconds.")
        t, wall = self.context.now()
        self.context.record(events.ClockAdvanced(t=t, wall=wall, advance=seconds))
        self.context.clock.advance(seconds)
        self.context.changed.set()
        await self.context.sync()
        return await self._clock(request)

    async def _ledger(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self.context.settings.ledger, headers={"content-type": "application/x-ndjson"})

    async def _stats(self, _request: web.Request) -> web.StreamResponse:
        state = self.context.state
        return json_response(
            {
                "events": dict(state.event_counts),
                "batches": len(state.batches),
                "open": len(state.open),
                "files": len(state.files),
                "billed": state.billed,
                "busy": self.scheduler.busy,
                "pid": os.getpid(),
            }
        )


def serve(settings: Settings, announce: Callable[[Endpoint], None]) -> None:
    """Run an emulator in this process until it is stopped. `announce` gets the endpoint when the server is ready."""
    os.umask(0o077)
    try:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"{settings.state}: cannot be used as a state folder ({error.strerror})") from None
    with open(settings.state / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{settings.state}: another emulator uses this state folder") from None

        async def main() -> None:
            await Server(Context(settings)).run(announce)

        # Answering creates no reference cycles, so frequent garbage collection only costs time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        asyncio.run(main())


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"port {port} on {HOST} cannot be used ({error.strerror}): choose another --port") from None
    return listener
