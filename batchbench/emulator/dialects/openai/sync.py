"""The synchronous route of the OpenAI API: chat completions."""

import os

from aiohttp import web

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.dialects.openai.reasoning import as_family
from batchbench.emulator.families.table import chat_family
from batchbench.emulator.faults.line import changed_answer, error_of
from batchbench.emulator.jobs.answers import ErrorInfo
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
        return [web.post(f"{ROOT}/chat/completions", self.chat)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await read_body(request, self.context.settings.limits.sync_bytes)
        chat = wire.read_chat(raw)
        if isinstance(chat, ErrorInfo):
            raise ErrorReply(chat)
        prompt, _ = wire.prompt_of(chat)
        key = text_digest(f"{chat.seed} {prompt}")

        async def action(n: int) -> web.StreamResponse:
            return await self._answer(chat, key, n)

        return await self.injector.handle(request, "chat", key, action)

    async def _answer(self, chat: wire.ChatRequest, key: str, n: int) -> web.StreamResponse:
        context = self.context
        persona = context.personas("openai")(chat.model)
        if persona is None:
            raise ErrorReply(wire.not_found(chat.model))
        model = as_family(chat, persona, chat_family(chat.model))
        if isinstance(model, ErrorInfo):
            raise ErrorReply(model)
        fault = context.select_fault("line", "openai", "chat", key, n)
        if fault and (error := error_of(fault.name, "openai")):
            raise ErrorReply(error)
        t, _ = context.now()
        name = "chatcmpl-" + derive_id(os.urandom(16).hex(), 24)
        reply_fault = fault.name if fault else ""
        body, text = wire.complete(
            chat, model, sample="0", seed=context.settings.seed, name=name, created=int(t), reply_fault=reply_fault
        )
        context.bill_synchronous_call(name, body.usage.prompt_tokens, body.usage.completion_tokens, text)
        await context.sync()
        response = json_response(changed_answer(fault.name, body, "openai") if fault else body)
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
