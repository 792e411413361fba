"""The HTTP server: loopback only, token and Host checked first, then routes; and the emulator's own controls."""

import asyncio
import fcntl
import gc
import hmac
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from pathlib import Path

import msgspec
from aiohttp import web

from batchbench.emulator import HOST
from batchbench.emulator.dialects.anthropic import batches as anthropic_batches
from batchbench.emulator.dialects.anthropic import sync as anthropic_sync
from batchbench.emulator.dialects.openai import batches as openai_batches
from batchbench.emulator.dialects.openai import files as openai_files
from batchbench.emulator.dialects.openai import sync as openai_sync
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.jobs.scheduler import Foreman
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.ledger.state import spell
from batchbench.emulator.server.context import Desk, Settings
from batchbench.emulator.server.gate import read_body
from batchbench.emulator.server.replies import Fail, error, fail, reply
from batchbench.errors import LockedError, UsageError

BUFFER = 1 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a running emulator; also the line that `--json` prints."""

    openai: str
    anthropic: str
    token: str
    ledger: str
    pid: int


class Advance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    advance: float


class Server:
    """One running emulator."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.foreman = Foreman(desk)
        self._stop = asyncio.Event()
        self._in_flight = 0
        self._used = 0.0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        dialects = (
            openai_files.Files(self.desk),
            openai_batches.Batches(self.desk),
            openai_sync.Sync(self.desk),
            anthropic_batches.Batches(self.desk),
            anthropic_sync.Sync(self.desk),
        )
        for dialect in dialects:
            app.add_routes(dialect.routes())
        app.add_routes(
            [
                web.get("/__emu/clock", self._clock),
                web.post("/__emu/clock", self._advance),
                web.get("/__emu/ledger", self._ledger),
                web.get("/__emu/stats", self._stats),
            ]
        )
        app.on_response_prepare.append(self._sign)
        return app

    async def run(self, announce: Callable[[Endpoint], None]) -> None:
        """Serve until a signal comes or nobody has called for `idle_exit` seconds."""
        settings = self.desk.settings
        listener = _listen(settings.port)
        self.desk.port = listener.getsockname()[1]
        runner = web.AppRunner(
            self.app(), access_log=None, handle_signals=False, read_bufsize=BUFFER, shutdown_timeout=0.5
        )
        await runner.setup()
        await web.SockSite(runner, listener).start()
        endpoint = self._endpoint()
        target = settings.state / "endpoint.json"
        _write_private(target, msgspec.json.encode(endpoint))
        self._used = asyncio.get_running_loop().time()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        try:
            announce(endpoint)
            await self.desk.serve(self.foreman.drive, self._stopped, self._idle)
        finally:
            self.foreman.stop()
            target.unlink(missing_ok=True)
            await runner.cleanup()
            self.desk.ledger.close()

    def _endpoint(self) -> Endpoint:
        base = f"http://{HOST}:{self.desk.port}"
        settings = self.desk.settings
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
        patience = self.desk.settings.idle_exit
        loop = asyncio.get_running_loop()
        if patience is None:
            await asyncio.Event().wait()
            return
        while True:
            rest = self._used + patience - loop.time()
            if self._in_flight or self.foreman.busy:
                rest = patience
            if rest <= 0:
                return
            await asyncio.sleep(rest)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        dialect: ev.Dialect = "anthropic" if request.path.startswith("/anthropic/") else "openai"
        request["request_id"] = "req_" + spell(os.urandom(12).hex(), 24)
        request["dialect"] = dialect
        # A page in a browser can send requests here under a name that it controls, but not under ours.
        if request.headers.get("host", "") not in self._names():
            return web.Response(status=403, text="This server answers to its loopback address only.\n")
        if problem := self._stranger(request, dialect):
            return error(dialect, problem, request["request_id"])
        self._in_flight += 1
        try:
            return await handler(request)
        except Fail as refused:
            return error(dialect, refused.problem, request["request_id"], refused.headers)
        except web.HTTPException as refused:
            message = f"Invalid URL ({request.method} {request.path})"
            kind = "not_found_error" if dialect == "anthropic" else "invalid_request_error"
            return error(dialect, Problem(refused.status, message, kind), request["request_id"])
        finally:
            self._in_flight -= 1
            self._used = asyncio.get_running_loop().time()

    def _names(self) -> tuple[str, str]:
        return f"{HOST}:{self.desk.port}", f"localhost:{self.desk.port}"

    def _stranger(self, request: web.Request, dialect: ev.Dialect) -> Problem | None:
        """Why the caller is not let in, or null."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = request.headers.get("x-api-key") if dialect == "anthropic" else None
        given = key if key is not None else bearer
        if hmac.compare_digest(given.encode(), self.desk.settings.token.encode()):
            return None
        if dialect == "anthropic":
            missing = "x-api-key header is required"
            return Problem(401, "invalid x-api-key" if given else missing, "authentication_error")
        if not given:
            message = "You didn't provide an API key: send it as 'Authorization: Bearer YOUR_KEY'."
            return Problem(401, message, "invalid_request_error")
        return Problem(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key")

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        # A provider's clock and the times that it tells are one; beyond the year 9999 there is no date.
        response.headers["date"] = formatdate(min(self.desk.clock.now(), 253_402_300_799), usegmt=True)
        request_id = request.get("request_id", "")
        if request.get("dialect") == "anthropic":
            response.headers["request-id"] = request_id
        else:
            response.headers["x-request-id"] = request_id
            response.headers["openai-version"] = "2020-10-01"
            response.headers["openai-organization"] = "org-emulator"

    # The emulator's own controls.

    async def _clock(self, _request: web.Request) -> web.StreamResponse:
        return reply({"now": self.desk.clock.now(), "offset": self.desk.clock.offset})

    async def _advance(self, request: web.Request) -> web.StreamResponse:
        try:
            seconds = msgspec.json.decode(await read_body(request, 1024), type=Advance).advance
        except (ValueError, RecursionError) as wrong:
            raise fail(400, f'Expected {{"advance": seconds}}: {wrong}') from None
        if not 0 <= seconds < 1e12:
            raise fail(400, "Time only goes forward: `advance` is a number of seconds, 0 or more.")
        t, wall = self.desk.now()
        self.desk.record(ev.Moved(t=t, wall=wall, advance=seconds))
        self.desk.clock.advance(seconds)
        self.desk.bell.set()
        await self.desk.durable()
        return await self._clock(request)

    async def _ledger(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self.desk.settings.ledger, headers={"content-type": "application/x-ndjson"})

    async def _stats(self, _request: web.Request) -> web.StreamResponse:
        state = self.desk.state
        return reply(
            {
                "events": dict(state.counts),
                "batches": len(state.batches),
                "open": len(state.open),
                "files": len(state.files),
                "billed": state.billed,
                "busy": self.foreman.busy,
                "pid": os.getpid(),
            }
        )


def serve(settings: Settings, announce: Callable[[Endpoint], None]) -> None:
    """Run an emulator in this process; returns when it has been stopped."""
    os.umask(0o077)
    try:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as wrong:
        raise UsageError(f"{settings.state}: cannot be used as a state folder ({wrong.strerror})") from None
    with open(settings.state / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{settings.state}: another emulator uses this state folder") from None

        async def main() -> None:
            await Server(Desk(settings)).run(announce)

        # Answering makes no cycles; looking for them after every few hundred objects only costs time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        asyncio.run(main())


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as wrong:
        listener.close()
        raise UsageError(f"port {port} is not free on {HOST} ({wrong.strerror}): choose another --port") from None
    return listener


def _write_private(path: Path, data: bytes) -> None:
    scratch = path.with_suffix(".tmp")
    scratch.unlink(missing_ok=True)
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    scratch.replace(path)
