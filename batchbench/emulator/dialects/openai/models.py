"""The model routes of the OpenAI API."""

from aiohttp import web

from batchbench.emulator import LISTED, model_exists
from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.families.table import NAMES, OpenAIFamily, chat_family
from batchbench.emulator.jobs.answers import Json
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.injector import FaultInjector
from batchbench.emulator.server.responses import ErrorReply, json_response

ROOT = "/openai/v1/models"


class ModelRoutes:
    """Free calls about models."""

    def __init__(self, context: Context) -> None:
        self.injector = FaultInjector(context, "openai")

    def routes(self) -> list[web.RouteDef]:
        return [web.get(ROOT, self.models), web.get(f"{ROOT}/{{id:.+}}", self.model)]

    async def models(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            names = (*LISTED, *NAMES["openai"])
            return json_response({"object": "list", "data": [model_json(name) for name in names]})

        return await self.injector.handle(request, "models", "", action)

    async def model(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            name = request.match_info["id"]
            if not model_exists(name, "openai"):
                raise ErrorReply(wire.not_found(name))
            return json_response(model_json(name))

        return await self.injector.handle(request, "models", "", action)


def model_json(name: str) -> Json:
    """The model object."""
    family = chat_family(name)
    shutdown = family.shutdown if isinstance(family, OpenAIFamily) else None
    model = {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "emulator"}
    return {**model, "shutdown_date": shutdown}
