"""The synchronous routes of the OpenAI API: chat completions and models."""

import os

from aiohttp import web

from batchbench.emulator import LISTED, persona_exists
from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.jobs.answers import ErrorInfo, Json
from batchbench.emulator.jobs.runner import text_digest
from batchbench.emulator.ledger.state import derive_id
from batchbench.emulator.server.bodies import read_body
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.injector import FaultInjector
from batchbench.emulator.server.responses import ErrorReply, json_response

ROOT = "/openai/v1"


class ChatRoutes:
    """Calls that are answered and billed immediately."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.injector = FaultInjector(context, "openai")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{ROOT}/chat/completions", self.chat),
            web.get(f"{ROOT}/models", self.models),
            web.get(f"{ROOT}/models/{{id:.+}}", self.model),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await read_body(request, self.context.settings.limits.sync_bytes)
        chat = wire.read_chat(raw)
        if isinstance(chat, ErrorInfo):
            raise ErrorReply(chat)
        prompt, _ = wire.prompt_of(chat)
        key = text_digest(f"{chat.seed} {prompt}")

        async def action(_n: int) -> web.StreamResponse:
            return await self._answer(chat)

        return await self.injector.handle(request, "chat", key, action)

    async def _answer(self, chat: wire.ChatRequest) -> web.StreamResponse:
        context = self.context
        model = context.persona(chat.model)
        if model is None:
            raise ErrorReply(wire.not_found(chat.model))
        t, _ = context.now()
        name = "chatcmpl-" + derive_id(os.urandom(16).hex(), 24)
        body, text = wire.complete(chat, model, sample="0", seed=context.settings.seed, name=name, created=int(t))
        context.bill_synchronous_call(name, body.usage.prompt_tokens, body.usage.completion_tokens, text)
        await context.sync()
        response = json_response(body)
        response.headers.update(
            {
                "x-ratelimit-limit-requests": "10000",
                "x-ratelimit-remaining-requests": "9999",
                "x-ratelimit-reset-requests": "6ms",
                "x-ratelimit-limit-tokens": "10000000",
                "x-ratelimit-remaining-tokens": str(10_000_000 - body.usage.total_tokens),
                "x-ratelimit-reset-tokens": "20ms",
            }
        )
        return response

    async def models(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            return json_response({"object": "list", "data": [_model(name) for name in LISTED]})

        return await self.injector.handle(request, "models", "", action)

    async def model(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            name = request.match_info["id"]
            if not persona_exists(name):
                raise ErrorReply(wire.not_found(name))
            return json_response(_model(name))

        return await self.injector.handle(request, "models", "", action)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "emulator"}
