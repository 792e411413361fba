"""Errors are classified, and a call that buys is sent once, whatever happens on the network."""

import inspect
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
from batchbench.errors import BatchbenchError, KeyRefusedError
from batchbench.providers import load_provider
from batchbench.providers.interface import Problem, Verdict
from batchbench.transport.client import SENT, Client
from batchbench.transport.replies import Incomplete, LostReply, Refused, Unsent, retry_after

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
        with pytest.raises(KeyRefusedError, match=r"redirect to elsewhere\.example"):
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


def test_a_compressed_download_is_refused() -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Incomplete):
            await client.download("/x", lambda _: None, 1000)

    anyio.run(against, answering(200, "x", Content_Encoding="gzip"), act)


def test_a_download_above_its_maximum_is_stopped() -> None:
    async def act(client: Client, _: list[str]) -> None:
        with pytest.raises(Incomplete, match="cannot be right"):
            await client.download("/x", lambda _: None, 1000)

    anyio.run(against, answering(200, "x" * 5000), act)
