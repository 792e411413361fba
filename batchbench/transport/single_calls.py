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
from batchbench.core.text import describe_body, is_event_stream
from batchbench.errors import BatchbenchError
from batchbench.providers import chat
from batchbench.providers.chat import INTERRUPTED, LOST
from batchbench.providers.openai import PATH
from batchbench.transport.call_log import CallLog, error_line, refusal_line, result_line
from batchbench.transport.client import Client
from batchbench.transport.limit_name import LimitName
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.replies import LostReply, Refused, Reply, Unsent, failure, retry_after
from batchbench.transport.spool import BatchSpool, Request

NOTE_INTERVAL = 0.005  # seconds between writes of notes: calls that may begin in the meantime are noted together
TRIES = 5  # of a call that the server refuses, before the refusal is its result
FIRST_TRIES = 3  # of a server that has never answered and that cannot be the right one: a closed port, a web page


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
        self.limit_name = LimitName()
        self._pause_reported = float("-inf")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Execute batches inside this context."""
        async with self.client.running(), super().running():
            yield self

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Create a batch, or make a chat completion immediately."""
        if path != PATH:
            return await super().once(path, body)
        request = body if isinstance(body, bytes) else b"".join(body)
        sent = self.limit_name.apply(request)
        try:
            return await self.client.once(path, sent)
        except Refused as refused:
            if not self.limit_name.learn(refused, sent):
                raise
        return await self.client.once(path, self.limit_name.apply(request))

    async def _execute(self, name: str) -> None:
        requests = self._unfinished(name)
        log = CallLog(self._results(name), self._calls(name))
        self.rate_limit.proven |= log.has_answer()
        try:
            for request in requests:
                if request.custom_id in log.interrupted:
                    log.write(error_line(request.custom_id, LOST, INTERRUPTED))
            waiting = deque(request for request in requests if request.custom_id not in log.interrupted)
            await _Calls(self, log).make(waiting, lambda: self.failure is not None or self._cancelled(name))
        finally:
            log.close()
            self._executing.discard(name)

    def report_pause(self, pause: float, why: str) -> None:
        """Tell the user about a long pause, at most every 30 seconds; `why` is empty for a rate limit."""
        if pause > 2 and time.monotonic() - self._pause_reported > 30:
            self._pause_reported = time.monotonic()
            until = time_of_day(time.time() + pause)
            limit = f"the server's rate limit allows the next call at {until}"
            self._note(f"the server failed ({why}); next try at {until}" if why else limit)


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
        self._spool.report_pause(pause, self._rate_limit.failure(request.tokens))
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
        tries = FIRST_TRIES if isinstance(refusal, Unsent) and not self._rate_limit.proven else TRIES
        try:
            await self._client.retry(partial(self._try_again, request), tries, refusal)
        except Unsent as error:
            why = f"the server cannot be reached ({error}): start it and run the same command"
            self._spool.failure = BatchbenchError(why)
        except Refused as refused:
            if self._concerns_every_call(refused):
                self._spool.failure = failure(refused)
            else:
                self._log.write(refusal_line(request.custom_id, refused.problem, refused.body))

    def _concerns_every_call(self, refused: Refused) -> bool:
        """Whether no other call would succeed. If the key has worked before, 403 is about the prompt."""
        if refused.problem.status == 403 and self._rate_limit.proven:
            return False
        return refused.verdict == "fatal" or refused.problem.status == 402

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
            reply = await self._send(request)
            line = _line(name, reply)
        except Refused as refused:
            self._log.refused(name)
            self._rate_limit.read_headers(refused.headers)
            if refused.verdict in ("retry", "slot"):
                limited = refused.problem.status == 429
                self._rate_limit.failed(began, refused.retry_after, "" if limited else str(refused))
            raise
        except Unsent as error:
            self._log.refused(name)
            self._rate_limit.failed(began, why=str(error))
            raise
        except LostReply as lost:
            self._rate_limit.failed(began, lost.retry_after, str(lost))
            self._log.write(error_line(name, LOST, str(lost)))
            wrong_server = isinstance(lost, _NotJson) and not self._rate_limit.proven
            if self._rate_limit.failures >= (FIRST_TRIES if wrong_server else TRIES):
                why = f"the server failed {self._rate_limit.failures} times in a row: {str(lost).rstrip('.')}"
                self._spool.failure = BatchbenchError(f"{why}. Repair this and run the same command")
        else:
            self._rate_limit.succeeded()
            self._rate_limit.read_headers(reply.headers)
            self._log.write(line)

    async def _send(self, request: Request) -> Reply:
        """Make a call; once more if the server takes only the other name of the token limit."""
        limit_name, body = self._spool.limit_name, bytes(request.body)
        sent = limit_name.apply(body)
        try:
            return await self._client.send_once(PATH, [sent])
        except Refused as refused:
            if not limit_name.learn(refused, sent):
                raise
        self._log.refused(request.custom_id)
        await self._log.begin([request.custom_id])
        return await self._client.send_once(PATH, [limit_name.apply(body)])


class _NotJson(LostReply):
    """A reply with a status of success that is not JSON."""


class _Inside(msgspec.Struct):
    """The fields of a reply that show whether an error took the place of the answer."""

    error: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[msgspec.Raw] | None = None


class _Code(msgspec.Struct):
    code: int | str


def _line(name: str, reply: Reply) -> bytes:
    """The result line of a call; raises Refused if its reply holds a rate limit.

    Raises LostReply if it holds another temporary error, because the server may charge for what it generated, or if it
    is not JSON.
    """
    content = reply.content
    if b'"error"' in content and (status := _status_inside(content)) is not None:
        wait = retry_after(reply.headers, time.time())
        refused = Refused(chat.problem(status, content), "retry", wait, reply.headers, content)
        raise refused if status == 429 else LostReply(str(refused), retry_after=wait)
    try:
        return result_line(name, 200, content)
    except (ValueError, RecursionError):
        streams = is_event_stream(content)
        hint = "pass --extra stream=false" if streams else "check the URL path, for example /v1"
        raise _NotJson(f"the server sent {describe_body(content)}: {hint}") from None


def _status_inside(content: bytes) -> int | None:
    """The status of a temporary error that a reply holds instead of choices; None if it holds none."""
    try:
        inside = msgspec.json.decode(content, type=_Inside)
        status = int(msgspec.json.decode(inside.error, type=_Code).code)
    except (ValueError, RecursionError):
        return None
    return status if not inside.choices and (status in (408, 429) or 500 <= status < 600) else None
