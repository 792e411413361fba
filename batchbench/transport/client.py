"""IO: the only importer of the HTTP client and of tenacity: keys, timeouts, retries, error mapping, redaction.

Three kinds of outcome, never mixed up: an answer; a refusal, which proves that nothing was done (`Refused`); and
silence, after which nobody knows (`LostReply`). Reading may be repeated. Buying is sent once, on a connection of its
own, and what is not a plain answer or a plain refusal is a lost reply.
"""

import hmac
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
import tenacity
from aiohttp import client_exceptions

from batchbench.core import crash_points as crash
from batchbench.core.clock import time_of_day, uptime
from batchbench.core.keys import Secret
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Problem, Provider
from batchbench.transport.replies import Incomplete, LostReply, Refused, Reply, Unsent, failure, moment, retry_after

CONNECT = 15.0  # seconds
SILENT = 120.0  # seconds without a byte after which a connection is given up
LONGEST = 2000  # letters of a complaint that are kept
PATIENCE = 600.0  # seconds of nothing but failures after which the program stops and says why
CHUNK = 1 << 20
MOST = 64 << 20  # bytes of an answer that is no file; the longest honest one is a page of a thousand batches
IDLE = 4.0  # seconds after which a connection is not used again: many servers close theirs after five, as we send
GLANCE = 1 << 16  # bytes of a result file that tell whose it is
T = TypeVar("T")
SLOWEST = 1024  # bytes per second; a download slower than this over a minute is given up
UPHILL = 16 * 1024  # bytes per second; a request that takes longer than this on its way, and a pause, is given up
LIMITED = 86_400.0  # seconds for which a provider may say that it is too much just now

# What each exception of the client says about a request that was meant to buy something. `unsent` is proof that
# nothing left this machine; everything else may have arrived. tests/test_api.py fails on a class missing here.
SENT: dict[type[BaseException], bool] = {
    aiohttp.ClientConnectorError: False,
    aiohttp.ClientConnectorDNSError: False,
    aiohttp.ClientConnectorSSLError: False,
    aiohttp.ClientConnectorCertificateError: False,
    aiohttp.ClientSSLError: False,
    aiohttp.ClientProxyConnectionError: False,
    aiohttp.ConnectionTimeoutError: False,
    client_exceptions.UnixClientConnectorError: False,
    client_exceptions.UploadAbortedError: True,
    aiohttp.InvalidURL: False,
    aiohttp.InvalidUrlClientError: False,
    aiohttp.NonHttpUrlClientError: False,
    aiohttp.NonHttpUrlRedirectClientError: True,
    aiohttp.InvalidUrlRedirectClientError: True,
    aiohttp.RedirectClientError: True,
    aiohttp.TooManyRedirects: True,
    aiohttp.ClientError: True,
    aiohttp.ClientConnectionError: True,
    aiohttp.ClientConnectionResetError: True,
    aiohttp.ClientOSError: True,
    aiohttp.ClientPayloadError: True,
    aiohttp.ClientResponseError: True,
    aiohttp.ClientHttpProxyError: True,
    aiohttp.ContentTypeError: True,
    aiohttp.ServerConnectionError: True,
    aiohttp.ServerDisconnectedError: True,
    aiohttp.ServerFingerprintMismatch: False,
    aiohttp.ServerTimeoutError: True,
    aiohttp.SocketTimeoutError: True,
    aiohttp.WSServerHandshakeError: True,
    aiohttp.WSMessageTypeError: True,
    TimeoutError: True,
    ConnectionError: True,
    OSError: True,
}
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class _EnoughError(Exception):
    pass


class Client:
    """Calls to one provider at one address with one key."""

    def __init__(
        self,
        provider: Provider,
        base_url: str,
        key: Secret,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        patience: float = PATIENCE,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._provider = provider
        self._base = base_url
        self._key = key
        self._sleep = sleep
        self._patience = patience
        self._note = note
        self._session: aiohttp.ClientSession | None = None
        self._there: tuple[float, float] | None = None  # the provider's time, and our uptime when it was told
        self._told: str | None = None  # the header that it was read from

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Client"]:
        """Hold a connection open between calls."""
        # Nothing from the environment: a proxy or a certificate bundle is never picked up by accident.
        async with aiohttp.ClientSession(
            timeout=_timeout(None),
            connector=aiohttp.TCPConnector(keepalive_timeout=IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        ) as session:
            self._session = session
            yield self
        self._session = None

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """Read something, again and again until it works."""

        async def call() -> bytes:
            return (await self._call("GET", path, query=query)).content

        return await self._repeated(call)

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """Change something in a way that may be repeated without harm; a conflict will not go away by itself."""

        async def call() -> bytes:
            try:
                return (await self._call("POST", path, body=[body])).content
            except Refused as refused:
                if refused.problem.status == 409:
                    raise failure(refused) from None
                raise

        return await self._repeated(call)

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Send a file as a form; a second copy does no harm."""
        boundary = "batchbench-form-boundary"
        head = b""
        for name, value in fields.items():
            head += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        head += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        form = [head, *body, f"\r\n--{boundary}--\r\n".encode()]
        kind = f"multipart/form-data; boundary={boundary}"

        async def call() -> bytes:
            return (await self._call("POST", path, body=form, kind=kind)).content

        return await self._repeated(call)

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Buy something: sent exactly once, on a fresh connection that nobody reuses."""
        parts = [body] if isinstance(body, bytes) else body
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False) as session:
            crash.point("once-before-send")
            answer = await self.reply(path, parts, session)
            crash.point("once-after-reply")
            return answer.content

    async def reply(self, path: str, parts: Sequence[bytes], session: aiohttp.ClientSession | None = None) -> Reply:
        """Make one call that may cost something, not repeated; raises Refused, Unsent or LostReply."""
        try:
            return await self._call("POST", path, body=parts, session=session)
        except Refused as refused:
            status = refused.problem.status
            garbled = refused.verdict == "garbled" or status < 400
            if status >= 500 or status in (408, 409) or garbled:
                raise LostReply(str(refused), garbled=garbled, retry_after=refused.retry_after) from None
            raise
        except FAILURES as error:
            if not SENT.get(type(error), True):
                raise Unsent(self._words(error)) from None
            raise LostReply(self._words(error)) from None

    async def download(self, path: str, take: Callable[[bytes], None], most: int) -> int:
        """Read a file piece by piece; its length, which proves nothing about its completeness."""
        assert self._session is not None  # noqa: S101 - a call outside `running` is a mistake of ours
        received, minute, since = 0, 0, time.monotonic()
        headers = {**self._headers(), "Accept": "application/binary, */*;q=0.1"}
        with anyio.fail_after(2 * SILENT):
            answer = await self._session.get(self._url(path), headers=headers, allow_redirects=False)
        async with answer as response:
            self._set_clock(response.headers)
            if response.status != 200:
                raise self._refused(response, await response.content.read(8192))
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Incomplete("the provider compressed a file that was asked for as it is")
            async for piece in response.content.iter_chunked(CHUNK):
                received += len(piece)
                minute += len(piece)
                if received > most:
                    raise Incomplete(f"more than {most:,} bytes, which cannot be right")
                if time.monotonic() - since > 60:
                    if minute < 60 * SLOWEST:
                        raise Incomplete("slower than a kilobyte a second")
                    minute, since = 0, time.monotonic()
                take(piece)
                crash.point("download-piece")
        return received

    async def read_start(self, path: str) -> bytes:
        """The beginning of a file."""
        found = b""

        def take(piece: bytes) -> None:
            nonlocal found
            found += piece
            if len(found) >= GLANCE:
                raise _EnoughError

        with suppress(_EnoughError):
            await self.download(path, take, 1 << 24)
        return found[:GLANCE]

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Sequence[bytes] = (),
        kind: str = "application/json",
        session: aiohttp.ClientSession | None = None,
    ) -> Reply:
        session = session or self._session
        assert session is not None  # noqa: S101 - a call outside `running` is a mistake of ours
        headers = self._headers()
        data: bytes | io.BytesIO | None = None
        size = 0
        if method == "POST":
            data = b"".join(body)
            size = len(data)
            headers["Content-Type"] = kind
            if size > CHUNK:  # else the client would put it on the wire in one piece, and warn about it
                data = io.BytesIO(data)
        # A server that sends a byte now and then is never silent, and never done.
        timeout = _timeout(2 * SILENT + size / UPHILL)
        async with session.request(
            method, self._url(path), params=query, data=data, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            self._set_clock(response.headers)
            content = await _body(response)
            if response.status != 200:
                raise self._refused(response, content)
            return Reply(content, response.headers)

    def signature(self, salt: str) -> str:
        """What tells one key from another, and nothing else about it."""
        return hmac.new(salt.encode(), self._key.reveal().encode(), "sha256").hexdigest()[:8]

    def provider_time(self) -> float | None:
        """What time it is by the provider's own clock; null before it has told, and ours if it never does."""
        return self._there and self._there[0] + uptime() - self._there[1]

    def _set_clock(self, headers: Mapping[str, str]) -> None:
        # Times in a provider's answers are compared with this one, for our own clock may be years off.
        told = headers.get("Date", "")
        if told == self._told and self._there and uptime() - self._there[1] < 1:
            return  # the second has not passed: to read it again would say nothing new
        self._told = told
        then = moment(told)
        if then is not None:
            self._there = then, uptime()
        else:
            self._there = self._there or (time.time(), uptime())

    def _url(self, path: str) -> str:
        return self._base + path

    def _headers(self) -> dict[str, str]:
        # Made for each call and never kept on a session, whose errors would print them.
        return {**self._provider.headers(self._key.reveal()), "Accept-Encoding": "identity"}

    def _refused(self, response: aiohttp.ClientResponse, content: bytes) -> Refused:
        problem = self._provider.problem(response.status, content[:65_536])
        verdict = self._provider.verdict(problem)
        if 300 <= response.status < 400:
            host = _host(response.headers.get("Location", "")) or "somewhere else"
            problem = Problem(status=response.status, message=f"a redirect to {host}, which is not followed")
            verdict = "fatal"
        pause = retry_after(response.headers, time.time())
        return Refused(self._hidden(problem), verdict, pause, response.headers)

    def _hidden(self, problem: Problem) -> Problem:
        """What a provider complains about, without the key that some repeat; a complaint's end is rarely its point."""
        words = {name: self._key.hide(getattr(problem, name))[:LONGEST] for name in ("type", "code", "message")}
        return msgspec.structs.replace(problem, **words)

    async def several(self, call: Callable[[], Awaitable[T]], tries: int, failed: Exception) -> T:
        """Repeat a call that has failed, so many tries at most with that one; raises what the last one raised."""
        first = [failed]

        async def another() -> T:
            if first:
                raise first.pop()
            return await call()

        return await self._again(another, tenacity.stop_after_attempt(tries))

    async def _repeated(self, call: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            return await self._again(call, _Enough(self._patience))
        except Refused as refused:
            raise failure(refused) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise BatchbenchError(
                f"{self._host()} cannot be trusted, and was sent nothing ({self._words(error)}): "
                "check its address, and this machine's date"
            ) from None
        except FAILURES as error:
            raise BatchbenchError(
                f"no answer from {self._host()} for {self._patience:.0f} s ({self._words(error)})"
            ) from None

    async def _again(self, call: Callable[[], Awaitable[T]], stop: Callable[[tenacity.RetryCallState], bool]) -> T:
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_passes),
            wait=_pause,
            stop=stop,
            sleep=self._sleep,
            before_sleep=self._explain,
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                return await call()
        raise AssertionError("tenacity returns or raises")  # pragma: no cover

    def _explain(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0
        if error is None or pause <= 2:
            return
        began, until = time_of_day(time.time() - (state.seconds_since_start or 0.0)), time_of_day(time.time() + pause)
        if isinstance(error, Refused) and error.problem.status == 429:
            self._note(
                f"{self._host()} has taken no more calls since {began} ({self._words(error)}); next try at {until}"
            )
        elif isinstance(error, Refused):
            self._note(f"{self._host()} has had a problem since {began} ({self._words(error)}); next try at {until}")
        else:
            self._note(f"no answer from {self._host()} since {began} ({self._words(error)}); next try at {until}")

    def _words(self, error: BaseException) -> str:
        # Never repr: an aiohttp error's repr shows the request's headers, and the key is among them.
        said = self._key.hide(str(error))
        return f"{type(error).__name__}: {said}"[:300] if said else type(error).__name__

    def _host(self) -> str:
        return _host(self._base) or self._base


class _Enough:
    """When to give up: soon on what may be broken, late on a provider that is well and asks for patience."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._well = 0.0  # seconds after the first call at which the provider last said that it is

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        error, waited = state.outcome.exception() if state.outcome else None, state.seconds_since_start or 0.0
        if isinstance(error, Refused) and error.problem.status == 429:
            self._well = waited
            return waited >= LIMITED
        return waited - self._well >= self._patience


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """A whole answer, unless it is without end."""
    pieces, size = [], 0
    async for piece in response.content.iter_chunked(CHUNK):
        pieces.append(piece)
        size += len(piece)
        if size > MOST:
            raise aiohttp.ClientPayloadError(f"more than {MOST:,} bytes, which cannot be right")
    return b"".join(pieces)


def _passes(error: BaseException) -> bool:
    """Whether a failure may be gone the next time."""
    if isinstance(error, Refused):
        return error.verdict in ("retry", "slot", "garbled")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return False
    return isinstance(error, (Unsent, *FAILURES))


_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=60)


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    floor = error.retry_after if isinstance(error, Refused) and error.retry_after else 0.0
    return max(_backoff(state), floor)


def _timeout(total: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total, connect=CONNECT, sock_connect=CONNECT, sock_read=SILENT)
