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
    code: str | None = None
    param: str | None = None


class LineResult(msgspec.Struct, frozen=True, gc=False):
    """One result line without its newline, and what to bill for it."""

    id: str
    line: bytes
    answered: bool  # only answered requests are billed
    input: int = 0
    output: int = 0
    text: str = ""


REFUSAL = "I'm sorry, but I can't help with that request."

# Texts that a fault puts before the answer.
_PREFIXES = {
    "line-u2028": "One\u2028two\u2029three\x85four. ",
    "line-nul": "Before\x00after. ",
    "line-ansi": "\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m ",
}
# Faults that change the model's reply. They apply before billing, so the ledger has the digest of the changed text.
REPLY_FAULTS = frozenset({"line-refusal", "line-content-filter", "line-empty", "line-max-tokens", *_PREFIXES})


def changed_reply(fault: str, reply: PersonaReply) -> tuple[PersonaReply, str]:
    """The reply as a fault changes it, and OpenAI's finish reason."""
    match fault:
        case "line-refusal":
            return PersonaReply(REFUSAL, refusal=True), "stop"
        case "line-content-filter":
            return PersonaReply(""), "content_filter"
        case "line-empty":
            return PersonaReply(""), "stop"
        case "line-max-tokens":
            return PersonaReply(tokens.truncate(reply.text, tokens.output_tokens(reply.text) // 2)), "length"
        case _ if fault in _PREFIXES:
            return PersonaReply(_PREFIXES[fault] + reply.text), "stop"
        case _:
            return reply, "stop"
