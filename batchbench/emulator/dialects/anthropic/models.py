"""The model routes of the Anthropic API: which models exist, until when, and what they can do."""

from aiohttp import web

from batchbench.emulator import LISTED, model_exists
from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.anthropic.batches import version_of
from batchbench.emulator.dialects.anthropic.thinking import TYPES
from batchbench.emulator.families.table import NAMES, NEVER_OFF, ClaudeFamily, claude_family
from batchbench.emulator.jobs.answers import Json
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.injector import FaultInjector
from batchbench.emulator.server.responses import ErrorReply, json_response

ROOT = "/anthropic/v1/models"
LINES = ("haiku", "sonnet", "opus", "fable")
PERSONA = ClaudeFamily(thinking=("disabled",), default="disabled", efforts=(), sampling=True)


class ModelRoutes:
    """Free calls about models."""

    def __init__(self, context: Context) -> None:
        self.injector = FaultInjector(context, "anthropic")

    def routes(self) -> list[web.RouteDef]:
        return [web.get(ROOT, self.models), web.get(f"{ROOT}/{{id:.+}}", self.model)]

    async def models(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def action(_n: int) -> web.StreamResponse:
            names = (*LISTED, *NAMES["anthropic"])
            models = [model_json(name) for name in names]
            return json_response({"data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]})

        return await self.injector.handle(request, "models", "", action)

    async def model(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def action(_n: int) -> web.StreamResponse:
            name = request.match_info["id"]
            if not model_exists(name, "anthropic"):
                raise ErrorReply(wire.not_found(name))
            return json_response(model_json(name))

        return await self.injector.handle(request, "models", "", action)


def model_json(name: str) -> Json:
    """The model object."""
    family = claude_family(name) or PERSONA
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": "2024-01-01T00:00:00Z",
        "lifecycle": family.lifecycle,
        "deprecated_at": family.deprecated,
        "retires_at": family.retires,
        "line": next((line for line in LINES if f"-{line}-" in name), None),
        "max_input_tokens": family.max_input_tokens,
        "max_tokens": family.max_tokens,
        "capabilities": _capabilities(family),
    }


def _capabilities(family: ClaudeFamily) -> Json:
    no = _support(False)
    thinks = any(kind in family.thinking for kind in ("adaptive", "enabled"))
    return {
        "batch": _support(True),
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**_support(bool(family.efforts)), **{name: _support(name in family.efforts) for name in NEVER_OFF}},
        "image_input": no,
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": no,
        "thinking": {**_support(thinks), "types": {kind: _support(kind in family.thinking) for kind in TYPES}},
    }


def _support(supported: bool) -> Json:
    return {"supported": supported}
