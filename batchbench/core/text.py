"""Pure: make text from outside safe to print, and repair JSON that msgspec refuses."""

import json

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # characters that change the direction of text
INVISIBLE = frozenset(BIDI)


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


def repair_json(document: bytes) -> bytes:
    """Rewrite JSON that only the standard library accepts as strict JSON; raises ValueError if it is not JSON.

    For example, a token limit may cut an emoji in half; the half is replaced.
    """
    try:
        value = json.loads(document.decode("utf-8", "replace").removeprefix("\ufeff"))
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("too many levels of brackets") from None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
