"""IO: HTTP calls to a provider: keys, timeouts, retries, error mapping, redaction. The only user of aiohttp's client.

A call has one of three outcomes: an answer; a refusal, which proves that the provider did nothing (`Refused`); or a
lost reply, after which the outcome is unknown (`LostReply`). Calls that only read are repeated. A call that buys is
sent once, on a separate connection; any reply except a clear answer or a clear refusal is a lost reply.
"""

import hmac
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
from aiohttp import client_exceptions

from batchbench.core import crash_points
from batchbench.core.clock import time_of_day, uptime
from batchbench.core.keys import Secret
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Problem, Provider
from batchbench.transport.replies import (
    DATE_ERRORS,
    Incomplete,
    LostReply,
    Refused,
    Reply,
    Unsent,
    failure,
    retry_after,
)
from batchbench.transport.retry import GIVE_UP_AFTER, AfterFailing, after_tries, retry

T = TypeVar("T")
CONNECT_TIMEOUT = 15.0  # seconds
READ_TIMEOUT = 120.0  # seconds without a byte
MAX_MESSAGE = 2000  # characters kept of a provider's error message
CHUNK = 1 << 20
MAX_REPLY = 64 << 20  # bytes of a reply that is not a file; the longest valid one is a page of a thousand batches
KEEPALIVE = 4.0  # seconds before an idle connection is closed: many servers close theirs after five
START_BYTES = 1 << 16  # of a result file, enough to read some request ids
MIN_DOWNLOAD_SPEED = 1024  # bytes per second, averaged over a minute
MIN_UPLOAD_SPEED = 16 * 1024  # bytes per second; a request gets this long to be sent, plus two read timeouts

# For each exception of aiohttp: whether the request may have reached the provider. False proves that no byte of it
# left this machine. tests/test_client.py fails on a class that is missing here.
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
    """Enough of a file has been read."""


class Client:
    """Calls to one provider at one address with one key."""

    def __init__(
        self,
        provider: Provider,
        base_url: str,
        key: Secret,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        give_up_after: float = GIVE_UP_AFTER,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._provider = provider
        self._base, self._host = base_url, _host(base_url) or base_url
        self._key = key
        self._sleep = sleep
        self._give_up_after = give_up_after
        self._note = note
        self._session: aiohttp.ClientSession | None = None
        self._provider_clock: tuple[float, float] | None = None  # the provider's time, and our uptime at that moment
        self._date_header: str | None = None  # that the clock was last set from

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Client"]:
        """Keep connections open between calls."""
        async with aiohttp.ClientSession(
            timeout=_timeout(None),
            connector=aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # use no proxy or certificate bundle from the environment
            auto_decompress=False,
        ) as session:
            self._session = session
            yield self
        self._session = None

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """Read something; repeated until it succeeds."""
        return await self._until_success(partial(self._call, "GET", path, query=query))

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """Change something in a way that may safely be repeated; a conflict (409) is not repeated."""

        async def call() -> Reply:
            try:
                return await self._call("POST", path, body=[body])
            except Refused as refused:
                if refused.problem.status == 409:
                    raise failure(refused) from None
                raise

        return await self._until_success(call)

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Send a file as a multipart form; repeated until it succeeds, for a second copy does no harm."""
        boundary = "batchbench-form-boundary"
        head = b""
        for name, value in fields.items():
            head += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        head += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        form = [head, *body, f"\r\n--{boundary}--\r\n".encode()]
        content_type = f"multipart/form-data; boundary={boundary}"
        return await self._until_success(partial(self._call, "POST", path, body=form, content_type=content_type))

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Buy something: sent exactly once, on a new connection that is not used again."""
        parts = [body] if isinstance(body, bytes) else body
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False) as session:
            crash_points.point("once-before-send")
            answer = await self.send_once(path, parts, session)
            crash_points.point("once-after-reply")
            return answer.content

    async def send_once(self, path: str, parts: Sequence[bytes], session: aiohttp.ClientSession | None = None) -> Reply:
        """Make one call that may cost money, without repeating it; raises Refused, Unsent or LostReply."""
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
                raise Unsent(self._describe(error)) from None
            raise LostReply(self._describe(error)) from None

    async def download(self, path: str, write: Callable[[bytes], None], max_bytes: int) -> int:
        """Read a file in pieces and return its length, which does not prove that the file is complete."""
        assert self._session is not None  # noqa: S101 - a call outside `running` is a programming error
        received, this_minute, minute_began = 0, 0, time.monotonic()
        headers = {**self._headers(), "Accept": "application/binary, */*;q=0.1"}
        with anyio.fail_after(2 * READ_TIMEOUT):
            answer = await self._session.get(self._base + path, headers=headers, allow_redirects=False)
        async with answer as response:
            self._set_clock(response.headers)
            if response.status != 200:
                raise self._refused(response, await response.content.read(8192))
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Incomplete("the provider compressed the file, although it was asked not to")
            async for piece in response.content.iter_chunked(CHUNK):
                received += len(piece)
                this_minute += len(piece)
                if received > max_bytes:
                    raise Incomplete(f"more than {max_bytes:,} bytes, which cannot be right")
                if time.monotonic() - minute_began > 60:
                    if this_minute < 60 * MIN_DOWNLOAD_SPEED:
                        raise Incomplete("slower than a kilobyte a second")
                    this_minute, minute_began = 0, time.monotonic()
                write(piece)
                crash_points.point("download-piece")
        return received

    async def read_start(self, path: str) -> bytes:
        """The beginning of a file."""
        found = b""

        def keep(piece: bytes) -> None:
            nonlocal found
            found += piece
            if len(found) >= START_BYTES:
                raise _EnoughError

        with suppress(_EnoughError):
            await self.download(path, keep, 1 << 24)
        return found[:START_BYTES]

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Sequence[bytes] = (),
        content_type: str = "application/json",
        session: aiohttp.ClientSession | None = None,
    ) -> Reply:
        session = session or self._session
        assert session is not None  # noqa: S101 - a call outside `running` is a programming error
        headers = self._headers()
        data: bytes | io.BytesIO | None = None
        size = 0
        if method == "POST":
            data = b"".join(body)
            size = len(data)
            headers["Content-Type"] = content_type
            if size > CHUNK:  # aiohttp sends bytes in one piece and warns about it; it sends a file in chunks
                data = io.BytesIO(data)
        # A total limit too: a server that sends one byte now and then would never run into the read timeout.
        timeout = _timeout(2 * READ_TIMEOUT + size / MIN_UPLOAD_SPEED)
        async with session.request(
            method, self._base + path, params=query, data=data, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            self._set_clock(response.headers)
            content = await _body(response)
            if response.status != 200:
                raise self._refused(response, content)
            return Reply(content, response.headers)

    def signature(self, salt: str) -> str:
        """A digest that identifies the key and reveals nothing else about it."""
        return hmac.new(salt.encode(), self._key.reveal().encode(), "sha256").hexdigest()[:8]

    def provider_time(self) -> float | None:
        """The time by the provider's clock, or by ours if its replies have no date; None before its first reply."""
        return self._provider_clock and self._provider_clock[0] + uptime() - self._provider_clock[1]

    def _set_clock(self, headers: Mapping[str, str]) -> None:
        # Times in a provider's replies are compared with this clock, because ours may be wrong by years.
        date = headers.get("Date", "")
        if date == self._date_header and self._provider_clock and uptime() - self._provider_clock[1] < 1:
            return  # the header counts whole seconds: reading it again would lose precision
        self._date_header = date
        try:
            self._provider_clock = parsedate_to_datetime(date).timestamp(), uptime()
        except DATE_ERRORS:
            self._provider_clock = self._provider_clock or (time.time(), uptime())

    def _headers(self) -> dict[str, str]:
        # Made for each call and not kept on the session: errors print a session's headers.
        return {**self._provider.headers(self._key.reveal()), "Accept-Encoding": "identity"}

    def _refused(self, response: aiohttp.ClientResponse, content: bytes) -> Refused:
        problem = self._provider.problem(response.status, content[:65_536])
        verdict = self._provider.verdict(problem)
        if 300 <= response.status < 400:
            host = _host(response.headers.get("Location", "")) or "somewhere else"
            problem = Problem(status=response.status, message=f"a redirect to {host}, which is not followed")
            verdict = "fatal"
        pause = retry_after(response.headers, time.time())
        return Refused(self._redacted(problem), verdict, pause, response.headers)

    def _redacted(self, problem: Problem) -> Problem:
        """The problem without the key, which some providers repeat in their messages, and without overlong text."""
        texts = {name: self._key.hide(getattr(problem, name))[:MAX_MESSAGE] for name in ("type", "code", "message")}
        return msgspec.structs.replace(problem, **texts)

    async def retry(self, call: Callable[[], Awaitable[T]], tries: int, failed: Exception) -> T:
        """Repeat a call after its first try has `failed`, up to `tries` tries in total; raises the last error."""
        first = [failed]

        async def next_try() -> T:
            if first:
                raise first.pop()
            return await call()

        return await retry(next_try, _is_transient, after_tries(tries), self._sleep, self._report_pause)

    async def _until_success(self, call: Callable[[], Awaitable[Reply]]) -> bytes:
        try:
            stop = AfterFailing(self._give_up_after)
            return (await retry(call, _is_transient, stop, self._sleep, self._report_pause)).content
        except Refused as refused:
            raise failure(refused) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise BatchbenchError(
                f"{self._host} has no valid certificate, so nothing was sent ({self._describe(error)}): "
                "check its address and this machine's date"
            ) from None
        except FAILURES as error:
            raise BatchbenchError(
                f"no answer from {self._host} for {self._give_up_after:.0f} s ({self._describe(error)}): "
                "check the network and run the same command"
            ) from None

    def _report_pause(self, error: BaseException, failing_for: float, pause: float) -> None:
        if pause <= 2:
            return
        since, until = time_of_day(time.time() - failing_for), time_of_day(time.time() + pause)
        if not isinstance(error, Refused):
            what = f"no answer from {self._host} since {since}"
        elif error.problem.status == 429:
            what = f"{self._host} has taken no more calls since {since}"
        else:
            what = f"{self._host} has had a problem since {since}"
        self._note(f"{what} ({self._describe(error)}); next try at {until}")

    def _describe(self, error: BaseException) -> str:
        # Never repr: an aiohttp error's repr shows the request's headers, and the key is among them.
        message = self._key.hide(str(error))
        return f"{type(error).__name__}: {message}"[:300] if message else type(error).__name__


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """A whole reply; raises on one of more than MAX_REPLY bytes."""
    pieces, size = [], 0
    async for piece in response.content.iter_chunked(CHUNK):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_REPLY:
            raise aiohttp.ClientPayloadError(f"more than {MAX_REPLY:,} bytes, which cannot be right")
    return b"".join(pieces)


def _is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, Refused):
        return error.verdict in ("retry", "slot", "garbled")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return False
    return isinstance(error, (Unsent, *FAILURES))


def _timeout(total: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=total, connect=CONNECT_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT
    )
