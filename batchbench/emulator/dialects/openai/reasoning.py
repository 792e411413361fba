"""Pure: what a family of chat models accepts, and how much it thinks about a request."""

from msgspec import UNSET

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.families.table import ChatFamily, LocalFamily, OpenAIFamily
from batchbench.emulator.families.thoughts import thinking
from batchbench.emulator.jobs.answers import ErrorInfo
from batchbench.emulator.personas.interface import Persona

NEVER = ("stop", "presence_penalty", "frequency_penalty", "logit_bias")  # refused by every model that can reason


def as_family(chat: wire.ChatRequest, persona: Persona, family: ChatFamily | None) -> Persona | ErrorInfo:
    """The persona as a model of this family, or the provider's error. A model that does not think is the persona."""
    if isinstance(family, LocalFamily):
        return _local(chat, persona, family)
    if chat.chat_template_kwargs is not None:
        return wire.unknown_argument("chat_template_kwargs")
    if family is None:
        return persona
    if not family.efforts:
        return wire.unknown_argument("reasoning_effort") if chat.reasoning_effort is not None else persona
    effort = family.effort if chat.reasoning_effort is None else chat.reasoning_effort
    if refused := _refused(chat, family, effort):
        return refused
    return persona if effort == "none" else thinking(persona, effort, "hidden")


def _refused(chat: wire.ChatRequest, family: OpenAIFamily, effort: str) -> ErrorInfo | None:
    """The error for a parameter that a reasoning model does not accept."""
    if effort not in family.efforts:
        return _unsupported_effort(effort, family.efforts)
    if chat.max_tokens is not None:
        return _unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    for name in NEVER:
        if getattr(chat, name) is not UNSET:
            return _unsupported(name)
    if effort == "none":
        return None
    if chat.temperature not in (None, 1):
        value = f"{chat.temperature:g}"
        message = f"'temperature' does not support {value} with this model. Only the default (1) value is supported."
        return _error(f"Unsupported value: {message}", "unsupported_value", "temperature")
    if chat.top_p not in (None, 1):
        return _unsupported("top_p")
    if chat.logprobs:
        return _unsupported("logprobs")
    return None


def _local(chat: wire.ChatRequest, persona: Persona, family: LocalFamily) -> Persona | ErrorInfo:
    effort = family.effort if chat.reasoning_effort is None else chat.reasoning_effort
    if effort not in family.efforts:
        return _unsupported_effort(effort, family.efforts)
    template = chat.chat_template_kwargs
    can_stop = "none" in family.efforts
    if effort == "none" or (can_stop and template is not None and template.enable_thinking is False):
        return persona
    return thinking(persona, effort, family.form)


def _unsupported(name: str, advice: str = "") -> ErrorInfo:
    message = f"Unsupported parameter: '{name}' is not supported with this model.{advice}"
    return _error(message, "unsupported_parameter", name)


def _unsupported_effort(effort: str, efforts: tuple[str, ...]) -> ErrorInfo:
    *first, last = (f"'{name}'" for name in efforts)
    message = (
        f"Unsupported value: 'reasoning_effort' does not support '{effort}' with this model. "
        f"Supported values are: {', '.join(first)}, and {last}."
    )
    return _error(message, "unsupported_value", "reasoning_effort")


def _error(message: str, code: str, param: str) -> ErrorInfo:
    return ErrorInfo(400, message, "invalid_request_error", code, param)
