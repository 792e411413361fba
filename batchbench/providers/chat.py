"""Any server with OpenAI's chat completions but no batch API: vLLM, Ollama, llama.cpp and others.

Its batches are files in the run's folder, in OpenAI's formats. `transport/single_calls.py` executes them with one call
per request. Servers of this kind agree on answers, but not on errors: `problem` reads the known formats.
"""

import msgspec

from batchbench.core.text import describe_body
from batchbench.providers import openai
from batchbench.providers.interface import Http, Limits, Line, ModelInfo, Problem, Verdict, decoded
from batchbench.providers.openai_results import error_object
from batchbench.providers.target import Target

LOST = "call_lost"  # error code of a call with an unknown outcome
INTERRUPTED = "the process ended while it was being made"  # the message of a call that a kill interrupted


def check(target: Target) -> None:
    """Refuse fields that batchbench sets itself; the server decides about the rest."""
    openai.body(target)


def decode(lines: bytes) -> list[Line]:
    """Decode result lines; a lost call is asked again and may have been charged."""
    return [msgspec.structs.replace(line, usage=False) if _is_lost(line) else line for line in openai.decode(lines)]


def _is_lost(line: Line) -> bool:
    return line.again and line.error is not None and line.error.startswith(LOST)


def problem(status: int, content: bytes) -> Problem:
    """Decode an error reply of any server: OpenAI's format, a text, a nested message, or no JSON at all."""
    try:
        whole = error_object(content)
    except msgspec.DecodeError:
        return Problem(status=status, message=f"the server sent {describe_body(content)}", in_format=False)
    error = whole.get("error") or whole
    fields = error if isinstance(error, dict) else {}
    metadata = fields.get("metadata")
    details = metadata if isinstance(metadata, dict) else {}
    kind = fields.get("type") or ("moderation" if "reasons" in details else "")
    raw = (
        f" ({details['raw'][:200]})" if isinstance(details.get("raw"), str) else ""
    )  # what the server's own server said
    code = _text(fields.get("code") or "")
    code = "" if code == str(status) else code
    return Problem(status=status, type=_text(kind), code=code, message=_text(error) + raw)


def _text(value: object, levels: int = 5) -> str:
    """The message inside an error of any shape, at most some levels down."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and levels:
        for name in ("message", "msg", "detail", "error", "errors"):
            if value.get(name):
                return _text(value[name], levels - 1)
    if isinstance(value, list) and value and levels:
        return _text(value[0], levels - 1)
    return msgspec.json.encode(value).decode()


def verdict(problem: Problem) -> Verdict:
    """As for OpenAI, except that an error in another format is not garbled: each server has its own format."""
    found = openai.verdict(problem)
    return "refused" if found == "garbled" else found


async def describe(http: Http, target: Target) -> ModelInfo:
    """The models that a server lists; servers of this kind describe no single model."""
    models = decoded(await http.get("/models"), dict[str, object]).get("data")
    ids = [str(model.get("id")) for model in models if isinstance(model, dict)] if isinstance(models, list) else None
    return ModelInfo(id=target.model, listed=ids)


PROVIDER = msgspec.structs.replace(
    openai.PROVIDER,
    name="chat",
    key_variable="CHAT_API_KEY",
    url_variable="CHAT_BASE_URL",
    base_url="",  # part of the model's name
    limits=Limits(requests=5_000, bytes=200_000_000, open_batches=1, settle=0, poll=(0.2, 0.5)),
    headers=lambda key: {"Authorization": f"Bearer {key}"} if key else {},
    check=check,
    decode=decode,
    problem=problem,
    verdict=verdict,
    describe=describe,
    half_price=False,
)
