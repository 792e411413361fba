"""Routes of the Anthropic dialect: messages, token counting, models."""

import os
from typing import Any

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.anthropic.batches import moment, version_of
from batchbench.emulator.dialects.openai.sync import MODELS
from batchbench.emulator.jobs import runner as work
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.ledger.state import spell
from batchbench.emulator.server.context import Desk
from batchbench.emulator.server.gate import Gate, read_body
from batchbench.emulator.server.replies import Fail, reply

ROOT = "/anthropic/v1"

Json = dict[str, Any]


class Sync:
    """Calls that are answered, and billed, while the caller waits."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.gate = Gate(desk, "anthropic")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{ROOT}/messages", self.messages),
            web.post(f"{ROOT}/messages/count_tokens", self.count),
            web.get(f"{ROOT}/models", self.models),
        ]

    async def messages(self, request: web.Request) -> web.StreamResponse:
        params = await self._read(request)
        prompt, _ = wire.prompt_of(params)

        async def act(_n: int) -> web.StreamResponse:
            return await self._answer(params)

        return await self.gate.through(request, "messages", work.text_digest(prompt), act)

    async def _answer(self, params: wire.Params) -> web.StreamResponse:
        desk = self.desk
        model = desk.persona(params.model)
        if model is None:
            raise Fail(wire.not_found(params.model))
        name = "msg_01" + spell(os.urandom(16).hex(), 22)
        message, text = wire.reply_to(params, model, sample="0", seed=desk.settings.seed, name=name, tier="standard")
        desk.bill_sync(name, message.usage.input_tokens, message.usage.output_tokens, text)
        await desk.durable()
        response = reply(message)
        reset = moment(desk.clock.now() + 60) or ""
        for kind, most in (
            ("requests", 4_000),
            ("tokens", 10_000_000),
            ("input-tokens", 8_000_000),
            ("output-tokens", 2_000_000),
        ):
            response.headers[f"anthropic-ratelimit-{kind}-limit"] = str(most)
            response.headers[f"anthropic-ratelimit-{kind}-remaining"] = str(most - 1)
            response.headers[f"anthropic-ratelimit-{kind}-reset"] = reset
        return response

    async def count(self, request: web.Request) -> web.StreamResponse:
        params = await self._read(request, counting=True)
        prompt, tokens = wire.prompt_of(params)

        async def act(_n: int) -> web.StreamResponse:
            return reply({"input_tokens": tokens})

        return await self.gate.through(request, "count", work.text_digest(prompt), act)

    async def models(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def act(_n: int) -> web.StreamResponse:
            known = [_model(name) for name in MODELS if self.desk.persona(name)]
            first, last = (known[0]["id"], known[-1]["id"]) if known else (None, None)
            return reply({"data": known, "has_more": False, "first_id": first, "last_id": last})

        return await self.gate.through(request, "models", "", act)

    async def _read(self, request: web.Request, *, counting: bool = False) -> wire.Params:
        version = version_of(request)
        raw = await read_body(request, self.desk.settings.limits.sync_bytes)
        if counting:
            raw = _with_max_tokens(raw)
        params = wire.read_params(raw, version)
        if isinstance(params, Problem):
            raise Fail(params)
        return params


def _with_max_tokens(raw: bytes) -> bytes:
    """Counting takes the same body without `max_tokens`, which everything else requires."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return raw
    return msgspec.json.encode({"max_tokens": 1, **fields})


def _model(name: str) -> Json:
    return {"id": name, "type": "model", "display_name": name, "created_at": "2024-01-01T00:00:00Z"}
