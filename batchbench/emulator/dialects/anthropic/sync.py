"""The synchronous routes of the Anthropic API: messages and token counting."""

import os

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.anthropic.batches import rfc3339, version_of
from batchbench.emulator.dialects.anthropic.thinking import as_family
from batchbench.emulator.families.table import claude_family
from batchbench.emulator.faults.line import changed_answer
from batchbench.emulator.jobs.answers import ErrorInfo
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
        ]

    async def messages(self, request: web.Request) -> web.StreamResponse:
        params = await self._read(request)
        prompt, _ = wire.prompt_of(params)

        key = text_digest(prompt)

        async def action(n: int) -> web.StreamResponse:
            return await self._answer(params, key, n)

        return await self.injector.handle(request, "messages", key, action)

    async def _answer(self, params: wire.MessageParams, key: str, n: int) -> web.StreamResponse:
        context = self.context
        persona = context.personas("anthropic")(params.model)
        if persona is None:
            raise ErrorReply(wire.not_found(params.model))
        model = as_family(params, persona, claude_family(params.model))
        if isinstance(model, ErrorInfo):
            raise ErrorReply(model)
        fault = context.select_fault("line", "anthropic", "messages", key, n)
        name = "msg_01" + derive_id(os.urandom(16).hex(), 22)
        reply_fault = fault.name if fault else ""
        message, text = wire.reply_to(
            params,
            model,
            sample="0",
            seed=context.settings.seed,
            name=name,
            tier="standard",
            reply_fault=reply_fault,
        )
        context.bill_synchronous_call(name, message.usage.input_tokens, message.usage.output_tokens, text)
        await context.sync()
        response = json_response(changed_answer(fault.name, message, "anthropic") if fault else message)
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
