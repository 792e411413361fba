"""Make text safe to print: without keys, and without control characters. Repair JSON that msgspec refuses."""

import base64
import json
import os
import re
from urllib.parse import quote

SUFFIX = "_API_KEY"  # of the names of variables that contain a key
MIN_LENGTH = 8  # characters; a shorter value may be an ordinary word in the text
HIDDEN = "[key]"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # characters that change the direction of text
INVISIBLE = frozenset(BIDI)
# Characters that show nothing: white space, and those of no width that models and web pages add.
BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\u200c\u200d\u2060\ufeff"
FIRST_BYTES = 80  # of an unreadable reply, shown in messages
FORMULA = tuple("=+-@\t|%\uff1d\uff0b\uff0d\uff20")  # a spreadsheet takes a text that starts with these for a formula
_FORMULA_LINE = rf"(?=[ ']*[{re.escape(''.join(FORMULA))}])"


def sanitize(text: str) -> str:
    """Escape every character that could move the cursor, reverse the text or hide something."""
    if text.isprintable() and not INVISIBLE & set(text):
        return text
    return "".join(char if _harmless(char) else char.encode("unicode_escape", "replace").decode() for char in text)


def sanitize_json(document: str) -> str:
    """The same for a JSON document, with JSON's own escapes, so that its value does not change."""
    if document.isprintable():
        return document
    return "".join(char if _harmless(char) else _json_escape(char) for char in document)


def _harmless(char: str) -> bool:
    return char in "\n\t" or (char.isprintable() and char not in INVISIBLE)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def guard_formulas(text: str) -> str:
    """The text with an apostrophe before each line that a spreadsheet would take for a formula.

    Some programs start a new cell at a line break within quotes.
    """
    return re.sub(rf"(?m)^{_FORMULA_LINE}", "'", text)


def unguard_formulas(text: str) -> str:
    """The text without the apostrophes of `guard_formulas`."""
    return re.sub(rf"(?m)^'{_FORMULA_LINE}", "", text)


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read: it is empty, or all its characters are invisible."""
    return not text.strip(BLANKS)


def repair_json(document: bytes) -> bytes:
    """Rewrite JSON that only the standard library accepts as strict JSON; raises ValueError if it is not JSON.

    For example, a token limit may cut an emoji in half; the half is replaced. NaN and infinity become null.
    """
    try:
        text = document.decode("utf-8", "replace").removeprefix("\ufeff")
        value = json.loads(text, parse_constant=lambda _: None)
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("too many levels of brackets") from None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def describe_body(content: bytes) -> str:
    """What a reply is that should have been JSON, with its first bytes."""
    start = content.lstrip()[:FIRST_BYTES]
    if not start:
        return "an empty reply"
    if start.startswith(b"<"):
        kind = "HTML"
    elif is_event_stream(start):
        kind = "an event stream"
    else:
        kind = "a text"
    return f"{kind} instead of JSON ({' '.join(start.decode(errors='replace').split())})"


def is_event_stream(content: bytes) -> bool:
    """Whether a reply is sent piece by piece, as for `stream`."""
    return content.lstrip().startswith((b"data:", b"event:", b"id:", b": "))


def hide(text: str) -> str:
    """The text without any key from this process's environment."""
    for name, value in os.environ.items():
        if name.endswith(SUFFIX) and len(value.strip()) >= MIN_LENGTH:
            text = hide_key(text, value.strip())
    return text


def hide_key(text: str, key: str) -> str:
    """The text without this key, also where it is percent-encoded or in base64."""
    if not key:
        return text
    in_base64 = [base64.b64encode(text.encode()).decode().rstrip("=") for text in (key, f"Bearer {key}")]
    spellings = sorted({key, quote(key, safe=""), *in_base64}, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, spellings)), HIDDEN, text, flags=re.IGNORECASE)
