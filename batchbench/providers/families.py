"""Pure: families of models: how each thinks, how thinking is switched off, and which parameters each accepts.

Thinking tokens count against the token limit of a reply. A model that thinks with the limit of a short answer returns
no text. So thinking is switched off where the family allows it. Elsewhere the least effort is sent, with headroom.
The pilot of a run finds models that do not behave as this table says.
"""

import re
from typing import Literal

import msgspec

from batchbench.errors import UsageError

Fields = dict[str, object]  # fields of a request's body
# Tokens that a reply gets in addition for thinking, by effort: several times what thinking usually takes.
HEADROOM = {"minimal": 1_000, "low": 2_000, "medium": 8_000, "high": 16_000, "xhigh": 32_000, "max": 64_000}
# Thinking tokens of a usual reply, by effort: rough means of published measurements, for estimates only.
TYPICAL = {"minimal": 50, "low": 150, "medium": 400, "high": 800, "xhigh": 3_300, "max": 6_000}
BUDGET = 1_024  # thinking tokens that older Claude models may use; the least that the API accepts
UP_TO_HIGH = ("low", "medium", "high")
UP_TO_MAX = (*UP_TO_HIGH, "xhigh", "max")
NONE: Fields = {"reasoning_effort": "none"}
ADAPTIVE: Fields = {"thinking": {"type": "adaptive"}}
ENABLED: Fields = {"thinking": {"type": "enabled", "budget_tokens": BUDGET}}
DISABLED: Fields = {"thinking": {"type": "disabled"}}
BETWEEN_TOOLS: Fields = {"thinking": {"type": "between_tools"}}
ANY = (ADAPTIVE, ENABLED, DISABLED, BETWEEN_TOOLS)


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Models that think alike and accept the same parameters."""

    pattern: str  # of the beginning of a model's name
    thinks: Literal["never", "if asked", "by default", "always"]
    on: Fields = {}  # switches thinking on
    off: Fields | None = None  # switches thinking off; None: impossible
    others: tuple[Fields, ...] = ()  # further accepted values of `thinking`
    efforts: tuple[str, ...] | None = ()  # accepted; None: unknown, so any
    least: str = ""  # the effort that is sent if thinking cannot be switched off
    default: str = "medium"  # the provider's own effort while it thinks
    sampling: bool = True  # accepts temperature, top_p and log-probabilities while it does not think
    tokenizer: float = 1.0  # input tokens, relative to other models


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """How one target thinks."""

    fields: Fields  # of the request's body
    effort: str | None = None  # None: the model does not think

    @property
    def headroom(self) -> int:
        """Tokens that a reply needs for thinking at most."""
        return HEADROOM.get(self.effort, HEADROOM["medium"]) if self.effort else 0

    @property
    def typical(self) -> int:
        """Tokens that a reply usually uses for thinking."""
        return TYPICAL.get(self.effort, TYPICAL["medium"]) if self.effort else 0


END = r"($|-\d{4}-?\d\d-?\d\d|-latest)"  # a name may end with a date
OPENAI = (
    Family(pattern=r"gpt-5(\.\d)?-(chat|search)", thinks="never"),
    Family(pattern=r"o1-(mini|preview)", thinks="always"),
    Family(pattern=r"o\d", thinks="always", efforts=UP_TO_HIGH, least="low"),
    Family(pattern=r"gpt-oss", thinks="always", efforts=UP_TO_HIGH, least="low"),
    Family(pattern=rf"gpt-5(-mini|-nano)?{END}", thinks="always", efforts=("minimal", *UP_TO_HIGH), least="minimal"),
    Family(pattern=r"gpt-5\.1", thinks="if asked", off=NONE, efforts=("none", *UP_TO_HIGH)),
    Family(pattern=r"gpt-5\.[2-4]", thinks="if asked", off=NONE, efforts=("none", *UP_TO_HIGH, "xhigh")),
    Family(pattern=r"gpt-5\.5", thinks="by default", off=NONE, efforts=("none", *UP_TO_HIGH, "xhigh")),
    Family(pattern=r"gpt-(6-astra|6\.1-sol)", thinks="always", efforts=UP_TO_MAX, least="low"),
    Family(pattern=r"gpt-(5\.6|6-(sol|luna)|6\.1-terra)", thinks="by default", off=NONE, efforts=("none", *UP_TO_MAX)),
    Family(pattern=r"gpt-(5\.[7-9]|[6-9]|\d\d)", thinks="by default", off=NONE, efforts=None),  # later models
    Family(pattern=r"(chat)?gpt-[34]", thinks="never"),
    Family(pattern="", thinks="if asked", off=NONE, efforts=None),
)
ANTHROPIC = (
    Family(pattern=r"claude-3-7", thinks="if asked", on=ENABLED, off=DISABLED, default="low"),
    Family(pattern=r"claude-3", thinks="never"),
    Family(pattern=r"claude-(2|v1|instant)", thinks="never", sampling=False),
    Family(
        pattern=r"claude-(opus|sonnet)-4-[78]",
        thinks="if asked",
        on=ADAPTIVE,
        off=DISABLED,
        efforts=UP_TO_MAX,
        default="high",
        sampling=False,
        tokenizer=1.3,
    ),
    Family(
        pattern=r"claude-(opus|sonnet)-4-6",
        thinks="if asked",
        on=ADAPTIVE,
        off=DISABLED,
        others=(ENABLED,),
        efforts=(*UP_TO_HIGH, "max"),
        default="high",
    ),
    Family(pattern=r"claude-opus-4-5", thinks="if asked", on=ENABLED, off=DISABLED, efforts=UP_TO_HIGH, default="low"),
    Family(pattern=r"claude-(opus|sonnet|haiku)-4", thinks="if asked", on=ENABLED, off=DISABLED, default="low"),
    Family(
        pattern=r"claude-(fable|mythos)-",
        thinks="always",
        on=ADAPTIVE,
        efforts=UP_TO_MAX,
        least="low",
        default="high",
        sampling=False,
        tokenizer=1.3,
    ),
    Family(
        pattern=r"claude-opus-5-5",
        thinks="always",
        on=ADAPTIVE,
        efforts=UP_TO_MAX,
        least="low",
        sampling=False,
        tokenizer=1.3,
    ),
    Family(
        pattern=r"claude-sonnet-5-5",
        thinks="by default",
        on=ADAPTIVE,
        off=BETWEEN_TOOLS,
        efforts=UP_TO_MAX,
        default="high",
        sampling=False,
        tokenizer=1.3,
    ),
    Family(
        pattern=r"claude-haiku-5-5",
        thinks="by default",
        on=ADAPTIVE,
        off=DISABLED,
        efforts=UP_TO_MAX,
        sampling=False,
        tokenizer=1.3,
    ),
    Family(
        pattern=rf"claude-(opus|sonnet)-5{END}",
        thinks="by default",
        on=ADAPTIVE,
        off=DISABLED,
        efforts=UP_TO_MAX,
        default="high",
        sampling=False,
        tokenizer=1.3,
    ),
    Family(  # later models: `low` is accepted by all that think by default, `disabled` only by some
        pattern=r"claude-",
        thinks="always",
        on=ADAPTIVE,
        off=DISABLED,
        others=ANY,
        efforts=None,
        least="low",
        default="high",
        sampling=False,
        tokenizer=1.3,
    ),
    Family(pattern="", thinks="if asked", on=ADAPTIVE, off=DISABLED, others=ANY, efforts=None, sampling=False),
)
TEMPLATE_ON: Fields = {"chat_template_kwargs": {"enable_thinking": True}}  # as vLLM, SGLang and llama.cpp take it
TEMPLATE_OFF: Fields = {"chat_template_kwargs": {"enable_thinking": False}}
CHAT = (  # open models, whatever the server calls them
    Family(pattern=r".*(gpt-?oss|harmony)", thinks="always", efforts=UP_TO_HIGH, least="low"),
    Family(pattern=r".*(deepseek-?r\d|\br1\b|qwq|magistral|exaone-?deep)", thinks="always", efforts=None),
    Family(
        pattern=r".*(qwen-?3|think|reason|glm-?[4-9]|deepseek|granite|smollm-?3|hunyuan|nemotron|exaone|cogito)",
        thinks="by default",
        on=TEMPLATE_ON,
        off=TEMPLATE_OFF,
        efforts=None,
    ),
    Family(pattern="", thinks="if asked", on=TEMPLATE_ON, off=TEMPLATE_OFF, efforts=None),
)
FAMILIES = {"openai": OPENAI, "anthropic": ANTHROPIC, "chat": CHAT}
# Models of OpenAI that do not answer chat completions, and why.
UNASKABLE = (
    (r"(gpt-|o\d).*(-pro|codex|-deep-research)(-|$)|codex|computer-use", "exists only on /v1/responses"),
    (r"(chat)?gpt-.*(image|realtime|audio|tts|transcribe|instruct)", "is not a chat model for text"),
    (r"tts-|whisper|dall-e|sora|(omni|text)-(moderation|embedding)", "is not a chat model for text"),
    (r"(text-)?(ada|babbage|curie|davinci)(-|$)", "is not a chat model for text"),
)


def find(provider: str, model: str) -> Family:
    """The family of a model; the last family of each provider has every name."""
    name = model.removeprefix("ft:").lower()
    if provider != "chat":  # there the name may begin with an organization
        name = name.partition("/")[0]  # the emulator's names are FAMILY/PERSONA
    found = (family for family in FAMILIES.get(provider, CHAT) if re.match(family.pattern, name))
    return next(found)


def unaskable(provider: str, model: str) -> str | None:
    """Why a model cannot be asked with a chat completion; None if it can."""
    if provider != "openai":
        return None
    return next((why for pattern, why in UNASKABLE if re.match(pattern, model.lower())), None)


def resolve(provider: str, model: str, effort: str | None, thinking: str | None) -> Thinking:
    """How a model thinks with these options; raises UsageError if its family does not accept them.

    An effort asks for thinking, unless `thinking` switches it off.
    """
    family, name = find(provider, model), f"{provider}:{model}"
    if thinking == "default":  # of the provider
        if effort is not None:
            raise UsageError("--thinking default goes without --effort: leave one out")
        return Thinking(fields={}, effort=family.default if family.thinks in ("by default", "always") else None)
    switch = _switch(family, name, thinking)
    if effort is not None and family.efforts is not None and effort not in family.efforts:
        accepted = f"use one of {', '.join(family.efforts)}" if family.efforts else "leave it out"
        raise UsageError(f"{name} does not accept --effort {effort}: {accepted}")
    if thinking is not None and switch == (family.off or {}) and thinking != "on":
        if effort in ("xhigh", "max") or (provider == "openai" and effort not in (None, "none")):
            raise UsageError(f"{name} does not accept --effort {effort} with --thinking {thinking}: leave one out")
        return Thinking(fields={**switch, **_spelled(provider, effort)})
    if effort == "none":
        return Thinking(fields=_spelled(provider, effort))
    if thinking is not None or effort is not None:
        if family.thinks == "never":
            raise UsageError(f"{name} does not think: leave out --thinking and --effort")
        if thinking is None and family.thinks == "if asked" and provider == "anthropic":
            switch = family.on  # an effort alone does not make it think
        sent = effort or (family.default if provider == "openai" and family.efforts != () else None)
        return Thinking(fields={**switch, **_spelled(provider, sent)}, effort=effort or family.default)
    if family.thinks == "always":
        return Thinking(fields=_spelled(provider, family.least), effort=family.least or family.default)
    return Thinking(fields=dict(family.off or {}) if family.thinks == "by default" else {})


def _switch(family: Family, name: str, thinking: str | None) -> Fields:
    """The fields that a value of --thinking stands for."""
    if thinking is None:
        return {}
    if thinking == "off" and family.off is None and family.thinks == "always":
        least = f"; its least effort, {family.least}, is the default" if family.least else ""
        raise UsageError(f"{name} always thinks: leave out --thinking off{least}")
    words = {"on": family.on, "off": family.off or {}}
    for fields in (family.on, words["off"], *family.others):
        match fields.get("thinking"):
            case {"type": str(word)}:
                words[word] = fields
    if thinking not in words:
        accepted = ", ".join(sorted([*words, "default"]))
        raise UsageError(f"{name} does not accept --thinking {thinking}: use one of {accepted}")
    return words[thinking]


def _spelled(provider: str, effort: str | None) -> Fields:
    """The field of a request's body that holds the effort."""
    if not effort:
        return {}
    return {"output_config": {"effort": effort}} if provider == "anthropic" else {"reasoning_effort": effort}
