"""IO: HTTP calls to a provider: keys, timeouts, retries, error mapping, redaction. The only user of aiohttp's client.

A call has one of three outcomes: an answer; a refusal, which proves that the provider did nothing (`Refused`); or a
lost reply, after which the outcome is unknown (`LostReply`). Calls that only read are repeated. A call that buys is
sent once, on a separate connection; any reply except a clear answer or a clear refusal is a lost reply. Only downloads
follow redirects, and the key does not go with them to another address.
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
from yarl import URL

from batchbench.core import crash_points
from batchbench.core.clock import time_of_day, uptime
from batchbench.core.keys import Secret, url_secrets
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Problem, Provider
from batchbench.transport.encodings import Decoder
from batchbench.transport.forms import multipart
from batchbench.transport.network_errors import SENT, describe
from batchbench.transport.redirects import MAX_REDIRECTS, STATUSES, next_address, same_origin
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
READ_TIMEOUT = 120.0  # seconds without a byte, in calls that only read
CALL_TIMEOUT = 600.0  # seconds without a byte, in calls that buy: a slow model sends its whole answer at once
MAX_ERROR = 65_536  # bytes read of an error reply
MAX_MESSAGE = 2000  # characters kept of a provider's error message
CHUNK = 1 << 20
MAX_HEADER = 1 << 16  # bytes; some gateways send headers that are longer than aiohttp's 8 KB
MAX_REPLY = 64 << 20  # bytes of a reply that is not a file; the longest valid one is a page of a thousand batches
KEEPALIVE = 4.0  # seconds before an idle connection is closed: many servers close theirs after five
START_BYTES = 1 << 16  # of a result file, enough to read some request ids
DOWNLOAD = "application/binary, */*;q=0.1"  # the kinds of content that a download accepts
MIN_DOWNLOAD_SPEED = 1024  # bytes per second, averaged over a minute
MIN_UPLOAD_SPEED = 16 * 1024  # bytes per second; a request gets this long to be sent, plus two read timeouts

FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """How calls travel."""

    timeout: float = CALL_TIMEOUT  # seconds to wait for the answer to a call that buys
    proxy: Secret | None = None  # its URL, which may have a password


_session = partial(  # without a proxy or certificate bundle from the environment
    aiohttp.ClientSession, trust_env=False, auto_decompress=False, max_line_size=MAX_HEADER, max_field_size=MAX_HEADER
)


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
        network: Network | None = None,
    ) -> None:
        self._provider = provider
        self._base, self._host = base_url, _host(base_url) or base_url
        self.base_url = base_url
        self._key = key
        network = network or Network()
        self._timeout = network.timeout
        self._proxy = network.proxy.reveal() if network.proxy else None
        self._passwords = url_secrets(self._proxy or "")
        self._sleep = sleep
        self._give_up_after = give_up_after
        self._note = note
        self._session: aiohttp.ClientSession | None = None
        self._provider_clock: tuple[float, float] | None = None  # the provider's time, and our uptime at that moment
        self._date_header: str | None = None  # that the clock was last set from

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Client"]:
        """Keep connections open between calls."""
        async with _session(
            timeout=_timeout(READ_TIMEOUT, total=None),
            connector=aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
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
        content_type, form = multipart(fields, filename, body)
        return await self._until_success(partial(self._call, "POST", path, body=form, content_type=content_type))

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Buy something: sent exactly once, on a new connection that is not used again."""
        parts = [body] if isinstance(body, bytes) else body
        connector = aiohttp.TCPConnector(force_close=True)
        async with _session(connector=connector) as session:
            crash_points.point("once-before-send")
            answer = await self.send_once(path, parts, session)
            crash_points.point("once-after-reply")
            return answer.content

    async def send_once(self, path: str, parts: Sequence[bytes], session: aiohttp.ClientSession | None = None) -> Reply:
        """Make one call that may cost money, without repeating it; raises Refused, Unsent or LostReply."""
        try:
            return await self._call("POST", path, body=parts, session=session, silence=self._timeout)
        except Refused as refused:
            status = refused.problem.status
            garbled = refused.verdict == "garbled" or status < 400
            if status >= 500 or status in (408, 409) or garbled:
                raise LostReply(str(refused), garbled=garbled, retry_after=refused.retry_after) from None
            raise
        except FAILURES as error:
            if not SENT.get(type(error), True):
                raise Unsent(self._describe(error)) from None
            if isinstance(error, TimeoutError):
                raise LostReply(f"no answer within {self._timeout:g} s: --timeout") from None
            raise LostReply(self._describe(error)) from None

    async def download(self, path: str, write: Callable[[bytes], None], max_bytes: int) -> int:
        """Read a file in pieces and return its length, which does not prove that the file is complete."""
        received, this_minute, minute_began = 0, 0, time.monotonic()
        async with self._open(path) as response:
            decoder = Decoder(response.headers.get("Content-Encoding"))
            async for arrived in response.content.iter_chunked(CHUNK):
                this_minute += len(arrived)
                if time.monotonic() - minute_began > 60:
                    if this_minute < 60 * MIN_DOWNLOAD_SPEED:
                        raise Incomplete("slower than a kilobyte a second")
                    this_minute, minute_began = 0, time.monotonic()
                for piece in decoder.decode(arrived):
                    received += len(piece)
                    if received > max_bytes:
                        raise Incomplete(f"more than {max_bytes:,} bytes, which cannot be right")
                    write(piece)
                    crash_points.point("download-piece")
            decoder.finish()
        return received

    @asynccontextmanager
    async def _open(self, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """A file's reply. Redirects are followed; only the address that the user named gets the key."""
        assert self._session is not None  # noqa: S101 - a call outside `running` is a programming error
        url, headers = self._base + path, {**self._headers(), "Accept": DOWNLOAD}
        for _ in range(MAX_REDIRECTS + 1):
            address = URL(url, encoded=True)  # a signed address must arrive unchanged
            with anyio.fail_after(2 * READ_TIMEOUT):
                answer = await self._session.get(address, headers=headers, allow_redirects=False, proxy=self._proxy)
            async with answer as response:
                if 200 <= response.status < 300:
                    yield response
                    return
                if response.status not in STATUSES:
                    with anyio.fail_after(2 * READ_TIMEOUT):
                        raise self._refused(response, await _body(response))
                url = self._redirected(url, response)
                if not same_origin(url, self._base):
                    headers = {"Accept": DOWNLOAD, "Accept-Encoding": "identity"}
        raise Incomplete(f"more than {MAX_REDIRECTS} redirects")

    def _redirected(self, url: str, response: aiohttp.ClientResponse) -> str:
        try:
            return next_address(url, response.headers.get("Location", ""))
        except ValueError as error:
            raise self._refused(response, b"", f" ({error})") from None

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
        silence: float = READ_TIMEOUT,
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
        limits = _timeout(silence, total=2 * silence + size / MIN_UPLOAD_SPEED)
        async with session.request(
            method,
            self._base + path,
            params=query,
            data=data,
            headers=headers,
            allow_redirects=False,
            timeout=limits,
            proxy=self._proxy,
        ) as response:
            self._set_clock(response.headers)
            content = await _body(response)
            if not 200 <= response.status < 300:
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

    def _refused(self, response: aiohttp.ClientResponse, content: bytes, why: str = "") -> Refused:
        status, pause = response.status, retry_after(response.headers, time.time())
        if not same_origin(str(response.url), self._base):  # the host of a redirected download; it got no key
            return Refused(Problem(status=status, message=f"{response.url.host} has no such file"), "retry", pause)
        problem = self._provider.problem(status, content[:MAX_ERROR])
        verdict = self._provider.verdict(problem)
        if 300 <= status < 400:
            host = _host(response.headers.get("Location", "")) or "somewhere else"
            what = f"a redirect to {host}, which is not followed{why}: check the base URL"
            problem, verdict = Problem(status=status, message=what), "refused"
        elif status == 402 and pause is not None:  # the server asks to wait, not to pay
            verdict = "retry"
        body = self._hide(content[:MAX_ERROR].decode(errors="replace")).encode()
        return Refused(self._redacted(problem), verdict, pause, response.headers, body)

    def _redacted(self, problem: Problem) -> Problem:
        """The problem without the key, which some providers repeat in their messages, and without overlong text."""
        texts = {name: self._hide(getattr(problem, name))[:MAX_MESSAGE] for name in ("type", "code", "message")}
        return msgspec.structs.replace(problem, **texts)

    def _hide(self, text: str) -> str:
        for secret in (self._key, *self._passwords):
            text = secret.hide(text)
        return text

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
        except aiohttp.ClientHttpProxyError as error:
            raise BatchbenchError(
                f"the proxy refuses the connection ({self._describe(error)}): check --proxy"
            ) from None
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
        return self._hide(describe(error))[:300]


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """A whole reply; raises on one of more than MAX_REPLY bytes."""
    pieces, size = [], 0
    try:
        decoder = Decoder(response.headers.get("Content-Encoding"))
        async for arrived in response.content.iter_chunked(CHUNK):
            for piece in decoder.decode(arrived):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_REPLY:
                    raise Incomplete(f"more than {MAX_REPLY:,} bytes, which cannot be right")
        decoder.finish()
    except Incomplete as error:
        raise aiohttp.ClientPayloadError(str(error)) from None
    return b"".join(pieces)


def _is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, Refused):
        return error.verdict in ("retry", "slot", "garbled")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientHttpProxyError):
        return False
    return isinstance(error, (Unsent, *FAILURES))


def _timeout(read: float, *, total: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total, connect=CONNECT_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=read)
