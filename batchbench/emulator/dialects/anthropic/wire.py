"""Pure: the request and result formats of the Anthropic API, and the answer to one message request."""

import re
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from batchbench.emulator.jobs import tokens
from batchbench.emulator.jobs.answers import ErrorInfo, changed_reply, counted_input, fit
from batchbench.emulator.personas.interface import Persona, PersonaQuery

VERSIONS = ("2023-06-01", "2026-10-21")
REMOVED = ("temperature", "top_p", "top_k")  # refused from version 2026-10-21 on


class ContentPart(msgspec.Struct, frozen=True, gc=False):
    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True, gc=False):
    role: Literal["user", "assistant"]
    content: str | list[ContentPart]


class ThinkingConfig(msgspec.Struct, frozen=True, gc=False):
    type: str
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(msgspec.Struct, frozen=True, gc=False):
    effort: str | None = None


class MessageParams(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a message request. Parameters that personas ignore are not checked."""

    model: str
    messages: list[Message]
    max_tokens: int
    system: str | list[ContentPart] | None = None
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    stream: bool | None = None
    stop_sequences: msgspec.Raw | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    thinking: ThinkingConfig | None = None
    tools: msgspec.Raw | UnsetType = UNSET
    tool_choice: msgspec.Raw | UnsetType = UNSET
    service_tier: msgspec.Raw | UnsetType = UNSET
    output_config: OutputConfig | None = None
    cache_control: msgspec.Raw | UnsetType = UNSET
    container: msgspec.Raw | UnsetType = UNSET
    inference_geo: msgspec.Raw | UnsetType = UNSET


class RequestLine(msgspec.Struct, frozen=True, gc=False):
    custom_id: str
    params: MessageParams


class UncheckedLine(msgspec.Struct, frozen=True, gc=False):
    """A request with unchecked parameters."""

    custom_id: str
    params: msgspec.Raw


class TextBlock(msgspec.Struct, frozen=True, gc=False):
    type: str
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, gc=False):
    type: str
    thinking: str
    signature: str


class CacheCreation(msgspec.Struct, frozen=True, gc=False):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


_CACHE_CREATION = CacheCreation()


class OutputDetails(msgspec.Struct, frozen=True, gc=False):
    thinking_tokens: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    input_tokens: int
    output_tokens: int
    service_tier: str
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation: CacheCreation = _CACHE_CREATION
    output_tokens_details: OutputDetails | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, gc=False):
    id: str
    type: str
    role: str
    model: str
    content: list[ThinkingBlock | TextBlock]
    stop_reason: str
    stop_sequence: str | None
    usage: Usage


class Detail(msgspec.Struct, frozen=True):
    error_code: str


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: str
    details: Detail | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    type: str
    error: ErrorBody
    request_id: str | None


class SucceededResult(msgspec.Struct, frozen=True, gc=False, tag="succeeded"):
    message: Answer


class ErroredResult(msgspec.Struct, frozen=True, tag="errored"):
    error: ErrorResponse


class CanceledResult(msgspec.Struct, frozen=True, tag="canceled"):
    """The request was not sent to the model because the batch was cancelled."""


class ExpiredResult(msgspec.Struct, frozen=True, tag="expired"):
    """The request was not sent to the model in time."""


class ResultLine(msgspec.Struct, frozen=True, gc=False):
    custom_id: str
    result: SucceededResult | ErroredResult | CanceledResult | ExpiredResult


STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}

_params = msgspec.json.Decoder(MessageParams)


def error_body(info: ErrorInfo, request_id: str | None) -> ErrorResponse:
    """`info.code` becomes `details.error_code`; most errors have none."""
    detail = Detail(str(info.code)) if info.code else None
    return ErrorResponse("error", ErrorBody(info.type, info.message, detail), request_id)


def read_params(raw: bytes | msgspec.Raw, version: str) -> MessageParams | ErrorInfo:
    """A message request, or the provider's error message for it."""
    try:
        params = _params.decode(raw)
    except msgspec.ValidationError as error:
        return _explain(str(error))
    except (ValueError, RecursionError) as error:
        return ErrorInfo(400, f"The request body is not valid JSON: {error}", "invalid_request_error")
    return check(params, version) or params


def check(params: MessageParams, version: str, *, in_batch: bool = False) -> ErrorInfo | None:
    """The provider's error for parameters that decode but are not allowed."""
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


def _invalid(message: str) -> ErrorInfo:
    return ErrorInfo(400, message, "invalid_request_error")


def not_found(model: str) -> ErrorInfo:
    return ErrorInfo(404, f"model: {model}", "not_found_error")


def prompt_of(params: MessageParams) -> tuple[str, int]:
    """The text of the last user message, and the input tokens of the whole request."""
    prompt = ""
    total = tokens.utf8_bytes(_text(params.system)) if params.system else 0
    for message in params.messages:
        text = _text(message.content)
        total += tokens.utf8_bytes(text)
        if message.role == "user":
            prompt = text
    return prompt, tokens.input_tokens(total, len(params.messages) + (params.system is not None))


def reply_to(
    params: MessageParams, model: Persona, *, sample: str, seed: int, name: str, tier: str, reply_fault: str = ""
) -> tuple[Answer, str]:
    """The message that answers a request, and its text."""
    prompt, input_tokens = prompt_of(params)
    input_tokens = counted_input(reply_fault, input_tokens)
    reply = model(PersonaQuery(params.model, prompt, sample, seed, params.max_tokens, None))
    finish = "stop"
    if reply_fault:
        reply, finish = changed_reply(reply_fault, reply)
    fitted = fit(reply, params.max_tokens)
    text = fitted.text
    stop_reason = "refusal" if reply.refusal else STOP_REASONS["length" if fitted.cut else finish]
    content: list[ThinkingBlock | TextBlock] = [TextBlock("text", text)] if text or not fitted.thoughts else []
    usage = Usage(input_tokens, fitted.used, tier)
    if fitted.thoughts:
        usage = Usage(input_tokens, fitted.used, tier, output_tokens_details=OutputDetails(fitted.thoughts))
        shown = tokens.truncate(reply.reasoning, fitted.thoughts) if reply.reasoning else ""
        content.insert(0, ThinkingBlock("thinking", shown, f"sig{name}"))
    return Answer(name, "message", "assistant", params.model, content, stop_reason, None, usage), text


def _text(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _explain(reason: str) -> ErrorInfo:
    """The provider's error for parameters that do not decode."""
    if found := re.search(r"missing required field `(\w+)`", reason):
        where = re.search(r"at `\$\.?([^`]+)`", reason)
        field = f"{where.group(1)}.{found.group(1)}" if where else found.group(1)
        return ErrorInfo(400, f"{_dotted(field)}: Field required", "invalid_request_error")
    if found := re.search(r"unknown field `(\w+)`", reason):
        return ErrorInfo(400, f"{found.group(1)}: Extra inputs are not permitted", "invalid_request_error")
    where = re.search(r"at `\$\.?([^`]*)`", reason)
    return ErrorInfo(
        400, f"{_dotted(where.group(1) if where else '')}: {reason.partition(' - ')[0]}", "invalid_request_error"
    )


def _dotted(path: str) -> str:
    """`messages[0].role` in the provider's spelling: `messages.0.role`."""
    return path.replace("[", ".").replace("]", "").replace("...", "0").strip(".")
