"""Pure: what both dialects need to say about one request."""

import msgspec

from batchbench.emulator.jobs import tokens
from batchbench.emulator.personas.interface import PersonaReply


class Problem(msgspec.Struct, frozen=True):
    """Why a request is refused; each dialect words it in its own shape."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None


class Result(msgspec.Struct, frozen=True, gc=False):
    """One result line without its newline, and what it costs."""

    id: str
    line: bytes
    answered: bool  # answered requests are billed, others are not
    input: int = 0
    output: int = 0
    text: str = ""


REFUSAL = "I'm sorry, but I can't help with that request."

# Faults that change what the model says. They come before billing, so the ledger's digest is of the text that is sent.
_TEXTS = {
    "line-u2028": "One\u2028two\u2029three\x85four. ",
    "line-nul": "Before\x00after. ",
    "line-ansi": "\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m ",
}


def twisted(twist: str, reply: PersonaReply) -> tuple[PersonaReply, str]:
    """The reply as a fault changes it, and the finish reason (OpenAI's words)."""
    match twist:
        case "line-refusal":
            return PersonaReply(REFUSAL, refusal=True), "stop"
        case "line-content-filter":
            return PersonaReply(""), "content_filter"
        case "line-empty":
            return PersonaReply(""), "stop"
        case "line-max-tokens":
            return PersonaReply(tokens.cut(reply.text, tokens.output_tokens(reply.text) // 2)), "length"
        case "line-u2028" | "line-nul" | "line-ansi":
            return PersonaReply(_TEXTS[twist] + reply.text), "stop"
        case _:
            return reply, "stop"


TWISTS = frozenset(
    {
        "line-refusal",
        "line-content-filter",
        "line-empty",
        "line-max-tokens",
        "line-u2028",
        "line-nul",
        "line-ansi",
    }
)
