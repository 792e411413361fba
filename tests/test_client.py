"""Errors are classified, and a call that buys is sent once, whatever happens on the network."""

import gzip
import inspect
import sys
import zlib
from collections.abc import Awaitable, Callable
from typing import get_args

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from aiohttp import client_exceptions, web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from batchbench.core.keys import Secret
from batchbench.errors import BatchbenchError
from batchbench.providers import load_provider
from batchbench.providers.interface import Problem, Verdict
from batchbench.transport.client import Client
from batchbench.transport.network_errors import SENT
from batchbench.transport.redirects import next_address, same_origin
from batchbench.transport.replies import Incomplete, LostReply, ProviderError, Refused, Unsent, retry_after

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KEY = "sk-canary-4f1d"


def test_every_exception_of_aiohttp_is_in_the_table() -> None:
    named = {
        item
        for module in (aiohttp, client_exceptions)
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, aiohttp.ClientError)
    }
    assert named <= set(SENT), named - set(SENT)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "37s"}, None),
        ({"retry-after": "1000000000"}, None),
        ({"retry-after": "5000"}, 900.0),
    ],
)
def test_retry_after_is_parsed_or_ignored(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, 10.0) == seconds


@given(st.text(max_size=30))
def test_retry_after_of_any_text_is_a_pause_or_none(text: str) -> None:
    found = retry_after({"retry-after": text}, 10.0)
    assert found is None or 0 <= found <= 900


OPENAI = [
    (408, "", "", "", "retry"),
    (409, "", "", "", "retry"),
    (429, "requests", "rate_limit_exceeded", "", "retry"),
    (429, "", "slow_down", "", "retry"),
    (500, "server_error", "", "", "retry"),
    (502, "", "", "", "retry"),
    (503, "", "server_is_overloaded", "", "retry"),
    (504, "", "", "", "retry"),
    (
        400,
        "invalid_request_error",
        "",
        "Cannot find file file-1, or project proj_1 does not have access to it.",
        "retry",
    ),
    (413, "", "", "", "split"),
    (401, "", "invalid_api_key", "", "fatal"),
    (403, "", "", "", "fatal"),
    (404, "invalid_request_error", "model_not_found", "", "fatal"),
    (404, "", "", "", "refused"),
    (400, "invalid_request_error", "", "Missing required parameter", "refused"),
    (429, "insufficient_quota", "insufficient_quota", "", "fatal"),
    (429, "", "credit_balance_exhausted", "", "fatal"),
    (429, "", "organization_spend_limit_exceeded", "", "fatal"),
    (429, "", "project_spend_limit_exceeded", "", "fatal"),
    (429, "", "organization_usage_limit_exceeded", "", "fatal"),
    (429, "", "billing_hard_limit_reached", "", "fatal"),
    (400, "invalid_request_error", "", "We could not parse the JSON body of your request.", "garbled"),
]
ANTHROPIC = [
    (408, "", "", "", "retry"),
    (409, "conflict_error", "", "", "retry"),
    (429, "rate_limit_error", "", "", "retry"),
    (429, "rate_limit_error", "ramp_limit_exceeded", "", "retry"),
    (500, "api_error", "", "", "retry"),
    (504, "timeout_error", "", "", "retry"),
    (529, "overloaded_error", "", "", "retry"),
    (429, "rate_limit_error", "", "Too many requests in the processing queue", "slot"),
    (400, "invalid_request_error", "", "", "refused"),
    (404, "not_found_error", "", "", "refused"),
    (404, "not_found_error", "", "model: nobody", "fatal"),
    (413, "request_too_large", "", "", "split"),
    (401, "authentication_error", "", "", "fatal"),
    (402, "billing_error", "", "", "fatal"),
    (403, "permission_error", "", "", "fatal"),
    (429, "rate_limit_error", "enforced_spend_limit_reached", "", "fatal"),
    (400, "invalid_request_error", "", "You have reached your specified API usage limits.", "fatal"),
    (400, "invalid_request_error", "", "The request body is not valid JSON: unexpected end of data.", "garbled"),
]


@pytest.mark.parametrize(
    ("provider", "status", "kind", "code", "message", "verdict"),
    [("openai", *row) for row in OPENAI] + [("anthropic", *row) for row in ANTHROPIC],
)
def test_every_known_error_has_its_verdict(
    provider: str, status: int, kind: str, code: str, message: str, verdict: str
) -> None:
    module = load_provider(provider)
    assert module.verdict(Problem(status=status, type=kind, code=code, message=message)) == verdict


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@given(status=st.integers(300, 599), body=st.binary(max_size=200))
def test_an_error_of_any_bytes_has_a_verdict(provider: str, status: int, body: bytes) -> None:
    module = load_provider(provider)
    assert module.verdict(module.problem(status, body)) in get_args(Verdict)


# -- over HTTP -----------------------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def against(handler: Handler, act: Callable[[Client, list[str]], Awaitable[None]]) -> list[str]:
    """Run `act` with a client of a server that answers with `handler`; returns the calls that arrived."""
    calls: list[str] = []

    async def counted(request: web.Request) -> web.StreamResponse:
        calls.append(f"{request.method} {request.path}")
        await request.read()
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", counted)
    async with TestServer(app) as server:
        pauses: list[str] = []

        async def sleep(seconds: float) -> None:
            pauses.append(f"{seconds:.3f}")
            await anyio.lowlevel.checkpoint()

        client = Client(
            load_provider("openai"), str(server.make_url("")).rstrip("/"), Secret(KEY), sleep=sleep, give_up_after=5.0
        )
        async with client.running():
            await act(client, pauses)
    return calls


def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _reset(request: web.Request) -> web.StreamResponse:
    return reset(request)


def answering(status: int, text: str = "{}", **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return handler


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 408, 409, 301, 302, 307, 308])
def test_a_create_is_sent_once_and_an_unclear_reply_is_lost(status: int) -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(LostReply):
            await client.once("/batches", b"{}")

    assert anyio.run(against, answering(status, Location="http://127.0.0.1:9/"), act) == ["POST /batches"]


def test_a_create_that_is_reset_is_lost_and_not_sent_again() -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(LostReply):
            await client.once("/batches", b"{}")

    assert anyio.run(against, _reset, act) == ["POST /batches"]


NO = '{"error": {"message": "no", "type": "invalid_request_error"}}'


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429])
def test_a_clear_refusal_proves_that_nothing_was_bought(status: int) -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Refused):
            await client.once("/batches", b"{}")

    assert anyio.run(against, answering(status, NO), act) == ["POST /batches"]


@pytest.mark.parametrize("text", ["<html>", "{}", NO.replace('"no"', '"The request body is not valid JSON"')])
def test_a_refusal_of_a_damaged_request_proves_nothing(text: str) -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(LostReply) as lost:
            await client.once("/batches", b"{}")
        assert lost.value.garbled

    assert anyio.run(against, answering(400, text), act) == ["POST /batches"]


def test_the_providers_clock_is_known_after_its_first_reply() -> None:
    async def act(client: Client, _: list[str]) -> None:
        assert client.provider_time() is None
        await client.get("/batches")
        time = client.provider_time()
        assert time is not None
        assert 100 <= time < 110

    anyio.run(against, answering(200, Date="Thu, 01 Jan 1970 00:01:40 GMT"), act)


def test_a_refused_connection_proves_that_nothing_was_sent() -> None:
    async def act() -> None:
        client = Client(load_provider("openai"), "http://127.0.0.1:9", Secret(KEY))
        async with client.running():
            with pytest.raises(Unsent):
                await client.once("/batches", b"{}")

    anyio.run(act)


def test_reading_is_repeated_after_the_pause_that_the_server_asks_for() -> None:
    answers = [429, 503, 200]

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=answers.pop(0), text="{}", headers={"retry-after": "2"})

    async def act(client: Client, pauses: list[str]) -> None:
        assert await client.get("/x") == b"{}"
        assert [float(pause) >= 2 for pause in pauses] == [True, True]

    assert len(anyio.run(against, handler, act)) == 3


def test_reading_that_never_succeeds_ends_with_the_reason() -> None:
    async def act(client: Client, _: list[str]) -> None:
        client._give_up_after = 0.05
        with pytest.raises(BatchbenchError, match="the provider refuses: 503"):
            await client.get("/x")

    anyio.run(against, answering(503, '{"error":{"message":"busy"}}'), act)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_its_host_is_named(status: int) -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(
            ProviderError, match=r"redirect to elsewhere\.example, which is not followed: check the base"
        ):
            await client.get("/x")

    calls = anyio.run(against, answering(status, Location="https://elsewhere.example/x"), act)
    assert calls == ["GET /x"]


def test_no_error_shows_the_key() -> None:
    async def act(client: Client, _: list[str]) -> None:
        for call in (client.get("/x"), client.once("/y", b""), client.post("/z")):
            with pytest.raises((BatchbenchError, Refused)) as error:
                await call
            shown = f"{error.value} {error.value!r} {error.getrepr(showlocals=False)}"
            assert KEY not in shown
            assert "[key]" in str(error.value)

    body = '{"error":{"message":"Incorrect API key provided: ' + KEY + '","type":"invalid_request_error"}}'
    anyio.run(against, answering(401, body), act)


TEXT = bytes(range(256)) * 20_000
PACKED = {
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:]),  # two members
    "deflate": zlib.compress(TEXT),
    "zstd": zstd.compress(TEXT),
}


def sending(body: bytes, encoding: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Encoding": encoding})

    return handler


@pytest.mark.parametrize("encoding", PACKED)
def test_a_compressed_reply_is_decoded_although_it_was_not_asked_for(encoding: str) -> None:
    async def act(client: Client, _: list[str]) -> None:
        pieces: list[bytes] = []
        assert await client.download("/x", pieces.append, len(TEXT)) == len(TEXT)
        assert b"".join(pieces) == TEXT
        assert await client.get("/x") == TEXT
        assert await client.once("/x", b"{}") == TEXT

    anyio.run(against, sending(PACKED[encoding], encoding), act)


def test_a_deflated_reply_without_its_header_is_decoded() -> None:
    packer = zlib.compressobj(wbits=-15)
    body = packer.compress(TEXT) + packer.flush()

    async def act(client: Client, _: list[str]) -> None:
        assert await client.get("/x") == TEXT

    anyio.run(against, sending(body, "deflate"), act)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "deflate", "br"])
@pytest.mark.parametrize("body", [b"plain", b"cut"])
def test_a_reply_that_cannot_be_decoded_is_incomplete_or_lost(encoding: str, body: bytes) -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Incomplete):
            await client.download("/x", lambda _: None, 1 << 30)
        with pytest.raises(LostReply):
            await client.once("/x", b"{}")

    sent = PACKED.get(encoding, TEXT)[:-20] if body == b"cut" else body
    anyio.run(against, sending(sent, encoding), act)


def test_a_compressed_download_above_its_maximum_is_stopped() -> None:
    received = 0

    async def act(client: Client, _: list[str]) -> None:
        nonlocal received

        def count(piece: bytes) -> None:
            nonlocal received
            received += len(piece)

        with pytest.raises(Incomplete, match="cannot be right"):
            await client.download("/x", count, 3 << 20)
        assert received <= 3 << 20

    anyio.run(against, sending(gzip.compress(bytes(1 << 26)), "gzip"), act)


@pytest.mark.parametrize("status", [201, 202, 204])
def test_any_status_of_success_is_a_success(status: int) -> None:
    async def act(client: Client, _: list[str]) -> None:
        for call in (
            client.get("/x"),
            client.post("/x"),
            client.once("/x", b"{}"),
            client.upload("/x", {}, "f", [b"x"]),
        ):
            assert await call == (b"" if status == 204 else b"{}")

    anyio.run(against, answering(status, "" if status == 204 else "{}"), act)


REFUSED_REDIRECTS = [
    ("https://a.example/x", "http://b.example/", "https to http"),
    ("https://a.example/x", "http://a.example/x", "https to http"),
    ("http://a.example/x", "ftp://b.example/", "no http"),
    ("http://a.example/x", "", "no http"),
    ("https://a.example/x", "https://u:p@b.example/", "user name"),
    ("https://a.example/x", "https://@b.example/", "user name"),
    ("https://a.example/x", "https://b.example:99999/", "out of range"),
    ("https://a.example/x", "https://b.example/\n", "no http"),
]


@pytest.mark.parametrize(("current", "location", "why"), REFUSED_REDIRECTS)
def test_a_redirect_to_an_unsafe_address_is_refused(current: str, location: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        next_address(current, location)


def test_a_redirect_leads_to_another_path_or_host() -> None:
    assert next_address("https://a.example/v1/x", "/y?z=%2F") == "https://a.example/y?z=%2F"
    assert next_address("https://a.example/v1/x", "https://b.example/y") == "https://b.example/y"
    assert same_origin("https://a.example/x", "https://a.example:443/y")
    for other in ("http://a.example/", "https://a.example:8443/", "https://b.example/", "https://a.example.b.example/"):
        assert not same_origin("https://a.example/", other)


def test_a_download_follows_redirects_and_the_key_stays_at_its_address() -> None:
    seen: list[tuple[str, str | None]] = []

    async def storage(request: web.Request) -> web.StreamResponse:
        seen.append((request.raw_path, request.headers.get("Authorization")))
        return web.Response(body=b"lines")

    async def scene() -> list[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", storage)
        async with TestServer(app) as other:
            address = f"{other.make_url('/')}signed?sig=a%2Bb%2Fc"

            async def handler(request: web.Request) -> web.StreamResponse:
                seen.append((request.path, request.headers.get("Authorization")))
                there = "/second" if request.path == "/first" else address
                return web.Response(status=302, headers={"Location": there})

            async def act(client: Client, _: list[str]) -> None:
                pieces: list[bytes] = []
                await client.download("/first", pieces.append, 1000)
                assert pieces == [b"lines"]

            return await against(handler, act)

    assert anyio.run(scene) == ["GET /first", "GET /second"]
    assert seen == [("/first", f"Bearer {KEY}"), ("/second", f"Bearer {KEY}"), ("/signed?sig=a%2Bb%2Fc", None)]


def test_a_download_that_is_redirected_for_ever_is_given_up() -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Incomplete, match="more than 5 redirects"):
            await client.download("/x", lambda _: None, 1000)

    assert len(anyio.run(against, answering(302, Location="/x"), act)) == 6


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_by_the_host_of_a_redirect_is_not_about_the_key(status: int) -> None:
    async def scene() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answering(status, "<Error>expired</Error>"))
        async with TestServer(app) as other:

            async def act(client: Client, _: list[str]) -> None:
                with pytest.raises(Refused, match="has no such file") as refused:
                    await client.download("/x", lambda _: None, 1000)
                assert refused.value.verdict == "retry"

            await against(answering(302, Location=str(other.make_url("/y"))), act)

    anyio.run(scene)


def test_a_call_without_an_answer_is_lost_after_the_time_that_the_user_gives_it() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        await anyio.sleep(5)
        return web.Response()

    async def act(client: Client, _: list[str]) -> None:
        client._timeout = 0.1
        with pytest.raises(LostReply, match=r"no answer within 0\.1 s: --timeout"):
            await client.once("/x", b"{}")

    anyio.run(against, handler, act)


@pytest.mark.parametrize("header", ["3", "0"])
def test_402_with_a_time_to_wait_is_not_about_money(header: str) -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Refused) as refused:
            await client.once("/x", b"{}")
        assert (refused.value.verdict, refused.value.retry_after) == ("retry", float(header))

    anyio.run(against, answering(402, NO, Retry_After=header), act)


def test_a_download_above_its_maximum_is_stopped() -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Incomplete, match="cannot be right"):
            await client.download("/x", lambda _: None, 1000)

    anyio.run(against, answering(200, "x" * 5000), act)


def test_a_date_to_wait_for_is_compared_with_the_clock_of_the_provider() -> None:
    date, later = "Wed, 18 Nov 2026 03:00:00 GMT", "Wed, 18 Nov 2026 03:00:07 GMT"
    assert retry_after({"retry-after": later, "date": date}, 10.0) == 7.0
