"""Pure: the Anthropic dialect's request and result shapes, and how one message request becomes one answer."""

import re
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from batchbench.emulator.jobs import tokens
from batchbench.emulator.jobs.answers import Problem, Result, twisted
from batchbench.emulator.personas.interface import FindPersona, Persona, PersonaQuery

VERSIONS = ("2023-06-01", "2026-10-21")
REMOVED = ("temperature", "top_p", "top_k")  # gone from 2026-10-21 on, whatever their value


class Part(msgspec.Struct, frozen=True, gc=False):
    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True, gc=False):
    role: Literal["user", "assistant"]
    content: str | list[Part]


class Params(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a message request. Parameters that a persona ignores are taken as they come."""

    model: str
    messages: list[Message]
    max_tokens: int
    system: str | list[Part] | None = None
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    stream: bool | None = None
    stop_sequences: msgspec.Raw | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    thinking: msgspec.Raw | UnsetType = UNSET
    tools: msgspec.Raw | UnsetType = UNSET
    tool_choice: msgspec.Raw | UnsetType = UNSET
    service_tier: msgspec.Raw | UnsetType = UNSET
    output_config: msgspec.Raw | UnsetType = UNSET
    cache_control: msgspec.Raw | UnsetType = UNSET
    container: msgspec.Raw | UnsetType = UNSET
    inference_geo: msgspec.Raw | UnsetType = UNSET


class Line(msgspec.Struct, frozen=True, gc=False):
    custom_id: str
    params: Params


class LooseLine(msgspec.Struct, frozen=True, gc=False):
    """A request whose parameters nobody has looked at yet."""

    custom_id: str
    params: msgspec.Raw


class Block(msgspec.Struct, frozen=True, gc=False):
    type: str
    text: str


class CacheCreation(msgspec.Struct, frozen=True, gc=False):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


_CACHE_CREATION = CacheCreation()


class Usage(msgspec.Struct, frozen=True, gc=False):
    input_tokens: int
    output_tokens: int
    service_tier: str
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation: CacheCreation = _CACHE_CREATION


class Answer(msgspec.Struct, frozen=True, gc=False):
    id: str
    type: str
    role: str
    model: str
    content: list[Block]
    stop_reason: str
    stop_sequence: str | None
    usage: Usage


class Detail(msgspec.Struct, frozen=True):
    error_code: str


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: str
    details: Detail | None = None


class Refused(msgspec.Struct, frozen=True):
    type: str
    error: ErrorBody
    request_id: str | None


class Succeeded(msgspec.Struct, frozen=True, gc=False, tag="succeeded"):
    message: Answer


class Errored(msgspec.Struct, frozen=True, tag="errored"):
    error: Refused


class Cancelled(msgspec.Struct, frozen=True, tag="canceled"):
    """The request was not sent to the model because the batch was cancelled."""


class Expired(msgspec.Struct, frozen=True, tag="expired"):
    """The request was not sent to the model in time."""


class ResultLine(msgspec.Struct, frozen=True, gc=False):
    custom_id: str
    result: Succeeded | Errored | Cancelled | Expired


STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}

_line = msgspec.json.Decoder(Line)
_loose = msgspec.json.Decoder(LooseLine)
_params = msgspec.json.Decoder(Params)
_encode = msgspec.json.Encoder().encode


def refused(problem: Problem, request_id: str | None) -> Refused:
    """`Problem.code` becomes `details.error_code`, which most errors do not have."""
    detail = Detail(problem.code) if problem.code else None
    return Refused("error", ErrorBody(problem.type, problem.message, detail), request_id)


def read_params(raw: bytes | msgspec.Raw, version: str) -> Params | Problem:
    """A message request, or what is wrong with it in the provider's words."""
    try:
        params = _params.decode(raw)
    except msgspec.ValidationError as error:
        return _explain(str(error))
    except (ValueError, RecursionError) as error:
        return Problem(400, f"The request body is not valid JSON: {error}", "invalid_request_error")
    return check(params, version) or params


def check(params: Params, version: str, *, in_batch: bool = False) -> Problem | None:
    """What the provider refuses about well-formed parameters."""

    if version != VERSIONS[0]:
        for name in REMOVED:
            if getattr(params, name) is not UNSET:
                return _invalid(f"{name}: Extra inputs are not permitted")
    if params.max_tokens < 1:
        return _invalid("max_tokens: Input should be greater than or equal to 1")
    if not params.messages:
        return _invalid("messages: at least one message is required")
    if params.temperature is not UNSET and not 0 <= params.temperature <= 1:
        return _invalid("temperature: range: 0..1")
    if params.stream:
        return _invalid("stream: not supported " + ("in a batch" if in_batch else "by the emulator"))
    return None


def _invalid(message: str) -> Problem:
    return Problem(400, message, "invalid_request_error")


def not_found(model: str) -> Problem:
    return Problem(404, f"model: {model}", "not_found_error")


def prompt_of(params: Params) -> tuple[str, int]:
    """The text of the last user message, and the input tokens of the whole request."""
    prompt = ""
    total = tokens.size(_text(params.system)) if params.system else 0
    for message in params.messages:
        text = _text(message.content)
        total += tokens.size(text)
        if message.role == "user":
            prompt = text
    return prompt, tokens.input_tokens(total, len(params.messages) + (params.system is not None))


def reply_to(
    params: Params, model: Persona, *, sample: str, seed: int, name: str, tier: str, twist: str = ""
) -> tuple[Answer, str]:
    """The message that answers a request, and the text in it."""
    prompt, input_tokens = prompt_of(params)
    reply = model(PersonaQuery(params.model, prompt, sample, seed, params.max_tokens, None))
    finish = "stop"
    if twist:
        reply, finish = twisted(twist, reply)
    text = reply.text
    used = tokens.output_tokens(text)
    if used > params.max_tokens:
        text, used, finish = tokens.cut(text, params.max_tokens), params.max_tokens, "length"
    stop_reason = "refusal" if reply.refusal else STOP_REASONS[finish]
    return Answer(
        name,
        "message",
        "assistant",
        params.model,
        [Block("text", text)],
        stop_reason,
        None,
        Usage(input_tokens, used, tier),
    ), text


class Codec:
    """Turns the requests of one message batch into result lines."""

    def __init__(self, batch: str, version: str, seed: int, find: FindPersona) -> None:
        self._stem = blake2b(batch.encode(), digest_size=6).hexdigest()
        self._count = 0
        self._version = version
        self._seed = seed
        self._find = find
        self._personas: dict[str, Persona | None] = {}

    def answer(self, raw: bytes, twist: str = "") -> Result:
        try:
            line = _line.decode(raw)
        except msgspec.ValidationError:
            loose = _loose.decode(raw)
            read = read_params(loose.params, self._version)
            problem = read if isinstance(read, Problem) else Problem(400, "Invalid request.", "invalid_request_error")
            return self._refuse(loose.custom_id, problem)
        params = line.params
        if problem_or_none := check(params, self._version, in_batch=True):
            return self._refuse(line.custom_id, problem_or_none)
        model = self._persona(params.model)
        if model is None:
            return self._refuse(line.custom_id, not_found(params.model))
        message, text = reply_to(
            params,
            model,
            sample=line.custom_id.partition("-")[2] or "0",
            seed=self._seed,
            name="msg_01" + self._name(),
            tier="batch",
            twist=twist,
        )
        usage = message.usage
        encoded = _encode(ResultLine(line.custom_id, Succeeded(message)))
        return Result(line.custom_id, encoded, True, usage.input_tokens, usage.output_tokens, text)

    def unanswered(self, raw: bytes, why: str) -> Result:
        """The line of a request that was not asked: expired, cancelled, timeout."""
        custom_id = _loose.decode(raw).custom_id
        if why == "timeout":
            return self._refuse(custom_id, Problem(504, "Request timed out", "timeout_error"))
        line = ResultLine(custom_id, Expired() if why == "expired" else Cancelled())
        return Result(custom_id, _encode(line), False)

    def problem(self, raw: bytes, problem: Problem) -> Result:
        """The line of a request that the provider refused or failed to serve."""
        return self._refuse(_loose.decode(raw).custom_id, problem)

    def _refuse(self, custom_id: str, problem: Problem) -> Result:
        error = Errored(refused(problem, "req_011C" + self._name()))
        return Result(custom_id, _encode(ResultLine(custom_id, error)), False)

    def _name(self) -> str:
        # The order of the lines is fixed, so a second run of a batch gives every line the same name.
        self._count += 1
        return f"{self._stem}{self._count:010x}"

    def _persona(self, model: str) -> Persona | None:
        if model not in self._personas:
            self._personas[model] = self._find(model)
        return self._personas[model]


def _text(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _explain(reason: str) -> Problem:
    """The provider's wording for parameters that do not decode."""
    if found := re.search(r"missing required field `(\w+)`", reason):
        where = re.search(r"at `\$\.?([^`]+)`", reason)
        field = f"{where.group(1)}.{found.group(1)}" if where else found.group(1)
        return Problem(400, f"{_dotted(field)}: Field required", "invalid_request_error")
    if found := re.search(r"unknown field `(\w+)`", reason):
        return Problem(400, f"{found.group(1)}: Extra inputs are not permitted", "invalid_request_error")
    where = re.search(r"at `\$\.?([^`]*)`", reason)
    return Problem(
        400, f"{_dotted(where.group(1) if where else '')}: {reason.partition(' - ')[0]}", "invalid_request_error"
    )


def _dotted(path: str) -> str:
    """`messages[0].role` in the provider's spelling: `messages.0.role`."""
    return path.replace("[", ".").replace("]", "").replace("...", "0").strip(".")
