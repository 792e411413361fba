"""Pure: what both dialects need to answer one request."""

import msgspec

from batchbench.emulator.jobs import tokens
from batchbench.emulator.personas.interface import PersonaReply

Json = dict[str, object]


class ErrorInfo(msgspec.Struct, frozen=True):
    """Why a request is refused; each dialect has its own format for it."""

    status: int
    message: str
    type: str
    code: str | int | None = None
    param: str | None = None


class LineResult(msgspec.Struct, frozen=True, gc=False):
    """One result line without its newline, and what to bill for it."""

    id: str
    line: bytes
    answered: bool  # only answered requests are billed
    input: int = 0
    output: int = 0
    text: str = ""
    thoughts: int = 0  # tokens of `output` that are not in the text


THOUGHTS = "I have thought about it and I will keep the answer to myself."
REFUSAL = "I'm sorry, but I can't help with that request."

# Texts that a fault puts before the answer.
_PREFIXES = {
    "line-u2028": "One\u2028two\u2029three\x85four. ",
    "line-nul": "Before\x00after. ",
    "line-ansi": "\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m ",
}
# Faults that change the model's reply. They apply before billing, so the ledger has the digest of the changed text.
REPLY_FAULTS = frozenset(
    {
        "line-refusal",
        "line-content-filter",
        "line-empty",
        "line-text-null",
        "line-max-tokens",
        "line-endless",
        "line-finish-error",
        "line-thoughts-only",
        "line-reasoning-only",
        *_PREFIXES,
    }
)
# Faults that change how many tokens are counted and billed.
COUNT_FAULTS = frozenset({"line-input-twice"})
ENDLESS = 100_000  # tokens of thoughts, more than a request allows


def changed_reply(fault: str, reply: PersonaReply) -> tuple[PersonaReply, str]:
    """The reply as a fault changes it, and OpenAI's finish reason."""
    match fault:
        case "line-refusal":
            return PersonaReply(REFUSAL, refusal=True), "stop"
        case "line-content-filter":
            return PersonaReply(""), "content_filter"
        case "line-empty" | "line-text-null":
            return PersonaReply(""), "stop"
        case "line-max-tokens":
            return PersonaReply(tokens.truncate(reply.text, tokens.output_tokens(reply.text) // 2)), "length"
        case "line-endless":
            return PersonaReply(reply.text + " and so on" * 1000), "stop"
        case "line-finish-error":
            return PersonaReply(tokens.truncate(reply.text, (tokens.output_tokens(reply.text) + 1) // 2)), "error"
        case "line-thoughts-only":
            return PersonaReply("", thoughts=ENDLESS), "length"
        case "line-reasoning-only":
            return PersonaReply("", thoughts=tokens.output_tokens(THOUGHTS), reasoning=THOUGHTS), "stop"
        case _ if fault in _PREFIXES:
            return PersonaReply(_PREFIXES[fault] + reply.text), "stop"
        case _:
            return reply, "stop"


def counted_input(fault: str, input_tokens: int) -> int:
    """The input tokens that the provider counts and bills."""
    return 2 * input_tokens if fault == "line-input-twice" else input_tokens


class FittedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply within the token limit of its request."""

    text: str
    used: int  # tokens, thoughts included
    thoughts: int
    cut: bool


def fit(reply: PersonaReply, limit: int | None) -> FittedReply:
    """Cut a reply to the token limit. Thoughts come first: if they use up the limit, no text is left."""
    used = reply.thoughts + tokens.output_tokens(reply.text)
    if limit is None or used <= limit:
        return FittedReply(reply.text, used, reply.thoughts, cut=False)
    thoughts = min(reply.thoughts, limit)
    return FittedReply(tokens.truncate(reply.text, limit - thoughts), limit, thoughts, cut=True)
