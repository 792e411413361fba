"""The emulator's tokenizer: simple rules that a person can apply by hand.

A prompt has one token per four UTF-8 bytes, rounded up, plus four per message and three per request. So its
tokens are at most its bytes plus that overhead. The tokens of an answer are its spaces and line breaks plus one; an
empty answer has none. So a one-word answer is one token, and truncation never cuts a word.
"""

import re
from functools import cache

PER_MESSAGE = 4
PER_REQUEST = 3

_BEFORE_BREAK = re.compile(r"(?=[ \n])")


def utf8_bytes(text: str) -> int:
    """The number of UTF-8 bytes; a lone surrogate counts as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def input_tokens(text_bytes: int, messages: int) -> int:
    return (text_bytes + 3) // 4 + PER_MESSAGE * messages + PER_REQUEST


def output_tokens(text: str) -> int:
    return text.count(" ") + text.count("\n") + 1 if text else 0


def split(text: str) -> list[str]:
    """The tokens of an answer. Each token except the first starts with its space or line break."""
    if not text:
        return []
    cuts = [found.start() for found in _BEFORE_BREAK.finditer(text)]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def truncate(text: str, limit: int) -> str:
    """The first `limit` tokens of a text."""
    found = _first_tokens(limit).match(text) if limit > 0 else None
    return found.group() if found else ""


@cache
def _first_tokens(limit: int) -> re.Pattern[str]:
    return re.compile(rf"[^ \n]*(?:[ \n][^ \n]*){{0,{limit - 1}}}")
