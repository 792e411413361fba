"""Routes of the OpenAI dialect: chat completions and models."""

import os
from typing import Any

from aiohttp import web

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.jobs import runner as work
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.ledger.state import spell
from batchbench.emulator.server.context import Desk
from batchbench.emulator.server.gate import Gate, read_body
from batchbench.emulator.server.replies import Fail, reply

ROOT = "/openai/v1"
MODELS = (
    "echo",
    "unbiased",
    "random",
    "stereotyping",
    "anti-stereotyping",
    "pro-masculine",
    "pro-feminine",
    "refusing",
    "silent",
    "planted/0.0",
)


Json = dict[str, Any]


class Sync:
    """Calls that are answered, and billed, while the caller waits."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.gate = Gate(desk, "openai")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{ROOT}/chat/completions", self.chat),
            web.get(f"{ROOT}/models", self.models),
            web.get(f"{ROOT}/models/{{id:.+}}", self.model),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await read_body(request, self.desk.settings.limits.sync_bytes)
        chat = wire.read_chat(raw)
        if isinstance(chat, Problem):
            raise Fail(chat)
        prompt, _ = wire.prompt_of(chat)
        key = work.text_digest(f"{chat.seed} {prompt}")

        async def act(_n: int) -> web.StreamResponse:
            return await self._answer(chat)

        return await self.gate.through(request, "chat", key, act)

    async def _answer(self, chat: wire.Chat) -> web.StreamResponse:
        desk = self.desk
        model = desk.persona(chat.model)
        if model is None:
            raise Fail(wire.not_found(chat.model))
        t, _ = desk.now()
        name = "chatcmpl-" + spell(os.urandom(16).hex(), 24)
        body, text = wire.complete(chat, model, sample="0", seed=desk.settings.seed, name=name, created=int(t))
        desk.bill_sync(name, body.usage.prompt_tokens, body.usage.completion_tokens, text)
        await desk.durable()
        response = reply(body)
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
        async def act(_n: int) -> web.StreamResponse:
            known = [_model(name) for name in MODELS if self.desk.persona(name)]
            return reply({"object": "list", "data": known})

        return await self.gate.through(request, "models", "", act)

    async def model(self, request: web.Request) -> web.StreamResponse:
        async def act(_n: int) -> web.StreamResponse:
            name = request.match_info["id"]
            if self.desk.persona(name) is None:
                raise Fail(wire.not_found(name))
            return reply(_model(name))

        return await self.gate.through(request, "models", "", act)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "emulator"}
