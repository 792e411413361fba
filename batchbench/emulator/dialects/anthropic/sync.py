"""The synchronous routes of the Anthropic API: messages, token counting and models."""

import os

import msgspec
from aiohttp import web

from batchbench.emulator import LISTED
from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.anthropic.batches import rfc3339, version_of
from batchbench.emulator.jobs.answers import ErrorInfo, Json
from batchbench.emulator.jobs.runner import text_digest
from batchbench.emulator.ledger.state import derive_id
from batchbench.emulator.server.bodies import read_body
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.injector import FaultInjector
from batchbench.emulator.server.responses import ErrorReply, json_response

ROOT = "/anthropic/v1"


class MessageRoutes:
    """Calls that are answered and billed immediately."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.injector = FaultInjector(context, "anthropic")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{ROOT}/messages", self.messages),
            web.post(f"{ROOT}/messages/count_tokens", self.count),
            web.get(f"{ROOT}/models", self.models),
        ]

    async def messages(self, request: web.Request) -> web.StreamResponse:
        params = await self._read(request)
        prompt, _ = wire.prompt_of(params)

        async def action(_n: int) -> web.StreamResponse:
            return await self._answer(params)

        return await self.injector.handle(request, "messages", text_digest(prompt), action)

    async def _answer(self, params: wire.MessageParams) -> web.StreamResponse:
        context = self.context
        model = context.persona(params.model)
        if model is None:
            raise ErrorReply(wire.not_found(params.model))
        name = "msg_01" + derive_id(os.urandom(16).hex(), 22)
        message, text = wire.reply_to(params, model, sample="0", seed=context.settings.seed, name=name, tier="standard")
        context.bill_synchronous_call(name, message.usage.input_tokens, message.usage.output_tokens, text)
        await context.sync()
        response = json_response(message)
        reset = rfc3339(context.clock.now() + 60) or ""
        for kind, limit in (
            ("requests", 4_000),
            ("tokens", 10_000_000),
            ("input-tokens", 8_000_000),
            ("output-tokens", 2_000_000),
        ):
            response.headers[f"anthropic-ratelimit-{kind}-limit"] = str(limit)
            response.headers[f"anthropic-ratelimit-{kind}-remaining"] = str(limit - 1)
            response.headers[f"anthropic-ratelimit-{kind}-reset"] = reset
        return response

    async def count(self, request: web.Request) -> web.StreamResponse:
        params = await self._read(request, counting=True)
        prompt, tokens = wire.prompt_of(params)

        async def action(_n: int) -> web.StreamResponse:
            return json_response({"input_tokens": tokens})

        return await self.injector.handle(request, "count", text_digest(prompt), action)

    async def models(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def action(_n: int) -> web.StreamResponse:
            names = LISTED
            models = [_model(name) for name in names]
            return json_response({"data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]})

        return await self.injector.handle(request, "models", "", action)

    async def _read(self, request: web.Request, *, counting: bool = False) -> wire.MessageParams:
        version = version_of(request)
        raw = await read_body(request, self.context.settings.limits.sync_bytes)
        if counting:
            raw = _with_max_tokens(raw)
        params = wire.read_params(raw, version)
        if isinstance(params, ErrorInfo):
            raise ErrorReply(params)
        return params


def _with_max_tokens(raw: bytes) -> bytes:
    """Token counting takes the same body, but without `max_tokens`, which a message requires."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return raw
    return msgspec.json.encode({"max_tokens": 1, **fields})


def _model(name: str) -> Json:
    return {"id": name, "type": "model", "display_name": name, "created_at": "2024-01-01T00:00:00Z"}
