"""The table of families: what each model accepts, whether it thinks, and until when it exists.

A model name is FAMILY, FAMILY/PERSONA or PERSONA. The facts come from the providers' documentation and SDKs. The client
has a table of its own; the two must not share code, because the emulator is the judge of the client.
"""

from typing import Literal

import msgspec

from batchbench.emulator.ledger.events import Dialect

NEVER_OFF = ("low", "medium", "high", "xhigh", "max")
WITH_OFF = ("none", *NEVER_OFF)

Form = Literal["hidden", "field", "think", "think-open", "harmony", "harmony-stripped"]  # where the thoughts are
Lifecycle = Literal["active", "deprecated", "retired"]


class OpenAIFamily(msgspec.Struct, frozen=True, kw_only=True):
    efforts: tuple[str, ...] = ()  # accepted by `reasoning_effort`; empty: the model does not reason
    effort: str = "none"  # if the request does not say
    shutdown: str | None = None  # the emulator answers after this date, too


class LocalFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a chat server such as vLLM or llama.cpp, which answers calls in OpenAI's format."""

    form: Form
    efforts: tuple[str, ...] = ("none", "low", "medium", "high")
    effort: str = "medium"


class ClaudeFamily(msgspec.Struct, frozen=True, kw_only=True):
    thinking: tuple[str, ...]  # accepted by `thinking.type`
    default: str = "adaptive"  # `thinking.type` if the request does not say
    efforts: tuple[str, ...] = NEVER_OFF  # accepted by `output_config.effort`
    effort: str = "high"  # if the request does not say
    sampling: bool = False  # accepts temperature, top_p and top_k, in the API version that has them
    shows_thoughts: bool = False  # the thinking block has text, unless the request says otherwise
    max_tokens: int = 128_000
    max_input_tokens: int = 1_000_000
    lifecycle: Lifecycle = "active"
    deprecated: str | None = None
    retires: str | None = None


ChatFamily = OpenAIFamily | LocalFamily
Family = ChatFamily | ClaudeFamily

_GPT_5 = OpenAIFamily(efforts=("minimal", "low", "medium", "high"), effort="medium", shutdown="2026-12-11")
_GPT_5_1 = OpenAIFamily(efforts=("none", "low", "medium", "high"), shutdown="2027-04-01")
_GPT_6 = OpenAIFamily(efforts=WITH_OFF, effort="medium")
_GPT_6_ALWAYS = OpenAIFamily(efforts=NEVER_OFF, effort="medium")
_GPT_4 = OpenAIFamily(shutdown="2027-01-14")

OPENAI: dict[str, OpenAIFamily] = {
    "gpt-6.1-sol": _GPT_6_ALWAYS,
    "gpt-6.1-terra": _GPT_6,
    "gpt-6-astra": _GPT_6_ALWAYS,
    "gpt-6-sol": _GPT_6,
    "gpt-6-luna": _GPT_6,
    "gpt-5.5": _GPT_6,
    "gpt-5.1": _GPT_5_1,
    "gpt-5": _GPT_5,
    "gpt-5-mini": _GPT_5,
    "gpt-5-nano": _GPT_5,
    "o3": OpenAIFamily(efforts=("low", "medium", "high"), effort="medium", shutdown="2026-12-11"),
    "o4-mini": OpenAIFamily(efforts=("low", "medium", "high"), effort="medium", shutdown="2026-10-23"),
    "gpt-4.1-mini": _GPT_4,
    "gpt-4o-mini": _GPT_4,
}

_ALWAYS = ClaudeFamily(thinking=("adaptive",))
_UNLESS_DISABLED = ClaudeFamily(thinking=("adaptive", "disabled"))

CLAUDE: dict[str, ClaudeFamily] = {
    "claude-opus-5-5": _ALWAYS,
    "claude-fable-5-1": _ALWAYS,
    "claude-fable-5": _ALWAYS,
    "claude-sonnet-5-5": ClaudeFamily(thinking=("adaptive", "between_tools")),
    "claude-haiku-5-5": _UNLESS_DISABLED,
    "claude-opus-5": _UNLESS_DISABLED,
    "claude-opus-4-8": ClaudeFamily(thinking=("adaptive", "disabled"), default="disabled"),
    "claude-sonnet-4-6": ClaudeFamily(
        thinking=("adaptive", "enabled", "disabled"),
        default="disabled",
        efforts=("low", "medium", "high", "max"),
        sampling=True,
        shows_thoughts=True,
        max_tokens=64_000,
    ),
    "claude-haiku-4-5": ClaudeFamily(
        thinking=("enabled", "disabled"),
        default="disabled",
        efforts=(),
        sampling=True,
        shows_thoughts=True,
        max_tokens=64_000,
        max_input_tokens=200_000,
    ),
    "claude-sonnet-4-5": ClaudeFamily(
        thinking=("enabled", "disabled"),
        default="disabled",
        efforts=(),
        sampling=True,
        shows_thoughts=True,
        max_tokens=64_000,
        max_input_tokens=200_000,
        lifecycle="deprecated",
        deprecated="2026-06-01T00:00:00Z",
        retires="2026-11-30T00:00:00Z",
    ),
}

LOCAL: dict[str, LocalFamily] = {
    "local-think": LocalFamily(form="think"),  # <think>...</think>, then the answer
    "local-think-open": LocalFamily(form="think-open"),  # only </think>: the template wrote <think>
    "local-reasoning": LocalFamily(form="field"),  # thoughts in `reasoning_content`
    "local-harmony": LocalFamily(form="harmony", efforts=("low", "medium", "high")),  # markers in the text
    "local-harmony-stripped": LocalFamily(form="harmony-stripped", efforts=("low", "medium", "high")),
}

CHAT: dict[str, ChatFamily] = {**OPENAI, **LOCAL}
NAMES: dict[Dialect, tuple[str, ...]] = {"openai": tuple(CHAT), "anthropic": tuple(CLAUDE)}


def chat_family(model: str) -> ChatFamily | None:
    """The family that a model name of the OpenAI dialect begins with; None for a persona alone."""
    return CHAT.get(model.partition("/")[0])


def claude_family(model: str) -> ClaudeFamily | None:
    """The family that a model name of the Anthropic dialect begins with; None for a persona alone."""
    return CLAUDE.get(model.partition("/")[0])


def persona_of(model: str, dialect: Dialect, default: str) -> str | None:
    """The name of the persona that answers as this model; None if the family belongs to the other dialect."""
    family, slash, persona = model.partition("/")
    if family not in CHAT and family not in CLAUDE:
        return model
    if family not in NAMES[dialect]:
        return None
    return persona if slash else default
