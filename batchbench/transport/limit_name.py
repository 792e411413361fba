"""Pure: which name of the token limit a chat server accepts, learnt from its first refusal.

Most servers know `max_tokens`. OpenAI's newer models, also behind gateways, accept only `max_completion_tokens`.
"""

import re

from batchbench.transport.replies import Refused

NAMES = ("max_tokens", "max_completion_tokens")
WORDS = r"(?:parameter|argument|field|input|key|propert(?:y|ies))s?\b"
UNKNOWN = re.compile(
    rf"(?:unsupported|unrecogni[sz]ed|unknown|unexpected|extra|additional)[ _]+(?:\w+ ){{0,2}}?{WORDS}"
    rf"|{WORDS}[^.:]{{0,40}}\b(?:not supported|unsupported|not recogni[sz]ed|unknown)"
    r"|\bmax_(?:completion_)?tokens\W{0,3} (?:is|are) (?:not supported|unsupported|unknown|not recogni[sz]ed)",
    re.IGNORECASE,
)  # a refusal of the name; one of the value would be the same under any name
VALUE = re.compile(
    r"too (?:large|high|big|small|low)|at (?:most|least)|(?:greater|less) than|context length", re.IGNORECASE
)


class LimitName:
    """The name that one server takes. It changes at most once."""

    def __init__(self) -> None:
        self._changed = False

    def apply(self, body: bytes) -> bytes:
        """A request's body with the name that the server takes."""
        if self._changed:
            for name, other in (NAMES, NAMES[::-1]):
                if (old := _key(name)) in body:  # no prompt contains it: quotes in a prompt are escaped
                    return body.replace(old, _key(other), 1)
        return body

    def learn(self, refused: Refused, sent: bytes) -> bool:
        """Note a refusal of the body `sent`; returns whether the refusal is about the name of the limit."""
        text = refused.body.decode(errors="replace")
        sent_name = next((name for name in NAMES if _key(name) in sent), "")
        named = {name for name in NAMES if re.search(rf"\b{name}\b", text)}
        other = bool(sent_name and named - {sent_name}) and not VALUE.search(text)
        unknown = sent_name in named and UNKNOWN.search(text) is not None
        wrong = refused.problem.status in (400, 422) and (other or unknown)
        self._changed |= wrong
        return wrong


def _key(name: str) -> bytes:
    return f'"{name}":'.encode()
