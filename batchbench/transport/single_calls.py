"""IO: execute batches as single calls, for a server that has chat completions but no batch API.

Such a server cannot report the outcome of a call later. So a batch never repeats a call that may have been charged:
its result is that the call was lost. The dispatcher asks such a request again in another batch, with a reservation of
its own. Every call is noted on disk before it is made, so this also holds for calls that a kill interrupted.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

import anyio
import msgspec

from batchbench.core import crash_points
from batchbench.core.clock import time_of_day
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError
from batchbench.providers.chat import LOST
from batchbench.providers.openai import PATH
from batchbench.transport.call_log import INTERRUPTED, CallLog, error_line, result_line
from batchbench.transport.client import Client
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.replies import LostReply, Refused, Unsent, failure
from batchbench.transport.spool import BatchSpool, Request

NOTE_INTERVAL = 0.005  # seconds between writes of notes: calls that may begin in the meantime are noted together
TRIES = 5  # of a call that the server refuses, before the refusal is its result


class CallSpool(BatchSpool):
    """Executes batches with one call per request, as fast as the server's rate limit allows."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        client: Client,
        note: Callable[[str], None] = lambda _: None,
        rate_limit: RateLimit | None = None,
    ) -> None:
        super().__init__(folder, store)
        self.client = client
        self._note = note
        self.rate_limit = rate_limit or RateLimit()  # of the server, which several runs may call
        self._pause_reported = float("-inf")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Execute batches inside this context."""
        async with self.client.running(), super().running():
            yield self

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Create a batch, or make a chat completion immediately."""
        return await (self.client.once(path, body) if path == PATH else super().once(path, body))

    async def _execute(self, name: str) -> None:
        requests = self._unfinished(name)
        log = CallLog(self._results(name), self._calls(name))
        try:
            for request in requests:
                if request.custom_id in log.interrupted:
                    log.write(error_line(request.custom_id, LOST, INTERRUPTED))
            waiting = deque(request for request in requests if request.custom_id not in log.interrupted)
            await _Calls(self, log).make(waiting, lambda: self.failure is not None or self._cancelled(name))
        finally:
            log.close()
            self._executing.discard(name)

    def report_pause(self, pause: float) -> None:
        """Tell the user about a long pause, at most every 30 seconds."""
        if pause > 2 and time.monotonic() - self._pause_reported > 30:
            self._pause_reported = time.monotonic()
            self._note(f"the server's rate limit allows the next call at {time_of_day(time.time() + pause)}")


class _Calls:
    """The calls of one batch: each is noted in the log, made, repeated while it is refused, and its result written."""

    def __init__(self, spool: CallSpool, log: CallLog) -> None:
        self._spool, self._log = spool, log
        self._client, self._rate_limit = spool.client, spool.rate_limit
        self._in_flight = 0  # calls that are noted and have no result yet
        self._call_ended = anyio.Event()
        self._last_note = float("-inf")

    async def make(self, waiting: deque[Request], stopped: Callable[[], bool]) -> None:
        """Make the calls of `waiting`; once `stopped`, begin no more of them, and wait for those in flight."""
        async with anyio.create_task_group() as group:
            while waiting and not stopped():
                if not self._has_room():
                    self._call_ended = anyio.Event()
                    await self._call_ended.wait()
                elif (pause := max(self._pause(waiting[0]), self._last_note + NOTE_INTERVAL - time.monotonic())) > 0:
                    await anyio.sleep(pause)
                else:
                    for request in await self._note_next(waiting):
                        group.start_soon(self._complete, request)

    def _has_room(self) -> bool:
        return self._in_flight < int(self._rate_limit.concurrency)

    def _pause(self, request: Request) -> float:
        """Seconds until the rate limit allows this call."""
        pause = self._rate_limit.wait(request.tokens)
        self._spool.report_pause(pause)
        return pause

    async def _note_next(self, waiting: deque[Request]) -> list[Request]:
        """Remove the requests that may be called now from `waiting`, and note them on disk."""
        allowed: list[Request] = []
        while waiting and self._has_room() and self._rate_limit.wait(tokens := waiting[0].tokens) <= 0:
            self._rate_limit.consume(tokens)
            self._in_flight += 1
            allowed.append(waiting.popleft())
        with anyio.CancelScope(shield=True):  # a call that is noted is made
            await self._log.begin([request.custom_id for request in allowed])
        self._last_note = time.monotonic()
        return allowed

    async def _complete(self, request: Request) -> None:
        """Make a call that is noted until it has a result; a stop interrupts the pauses between tries only."""
        try:
            with anyio.CancelScope(shield=True):
                await self._try(request)
        except (Refused, Unsent) as refusal:
            await self._retry(request, refusal)
        finally:
            self._in_flight -= 1
            self._call_ended.set()

    async def _retry(self, request: Request, refusal: Refused | Unsent) -> None:
        """Repeat a refused call; the last refusal is its result, or an error that concerns every call."""
        try:
            await self._client.retry(partial(self._try_again, request), TRIES, refusal)
        except Unsent as error:
            why = f"the server cannot be reached ({error}): start it and run the same command"
            self._spool.failure = BatchbenchError(why)
        except Refused as refused:
            if refused.verdict == "fatal":
                self._spool.failure = failure(refused)
                return
            problem = refused.problem
            body = {"error": {"message": problem.message, "type": problem.type, "code": problem.code}}
            self._log.write(result_line(request.custom_id, problem.status, msgspec.json.encode(body)))

    async def _try_again(self, request: Request) -> None:
        while (pause := self._pause(request)) > 0:  # noqa: ASYNC110 - other calls may use up the limit meanwhile
            await anyio.sleep(pause)
        self._rate_limit.consume(request.tokens)
        with anyio.CancelScope(shield=True):
            await self._log.begin([request.custom_id])
            await self._try(request)

    async def _try(self, request: Request) -> None:
        """Make a call that is noted, and write its result; raises Refused or Unsent if it cost nothing."""
        name = request.custom_id
        crash_points.point("spool-call")
        began = time.monotonic()
        try:
            reply = await self._client.send_once(PATH, [request.body])
            line = result_line(name, 200, reply.content)
        except Refused as refused:
            self._log.refused(name)
            self._rate_limit.read_headers(refused.headers)
            if refused.verdict in ("retry", "slot"):
                self._rate_limit.failed(began, refused.retry_after)
            raise
        except Unsent:
            self._log.refused(name)
            self._rate_limit.failed(began)
            raise
        except (LostReply, ValueError, RecursionError) as lost:  # ValueError, RecursionError: an unreadable answer
            self._rate_limit.failed(began, lost.retry_after if isinstance(lost, LostReply) else None)
            self._log.write(error_line(name, LOST, str(lost)))
            if self._rate_limit.failures >= TRIES:
                why = f"the server does not answer ({lost}): repair it and run the same command"
                self._spool.failure = BatchbenchError(why)
        else:
            self._rate_limit.succeeded()
            self._rate_limit.read_headers(reply.headers)
            self._log.write(line)
