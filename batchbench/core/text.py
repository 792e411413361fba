"""Pure: text from anywhere, made safe to look at, or fit to be read at all."""

import json

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HIDING = frozenset(BIDI)


def sanitize(text: str) -> str:
    """What could move the cursor, turn the line round or hide something is made visible."""
    if text.isprintable() and not HIDING & set(text):
        return text
    return "".join(
        letter if _harmless(letter) else letter.encode("unicode_escape", "replace").decode() for letter in text
    )


def sanitize_json(document: str) -> str:
    """The same of a JSON document, which stays the same document: JSON has its own way of spelling such letters."""
    if document.isprintable():
        return document
    return "".join(letter if _harmless(letter) else _spelt(letter) for letter in document)


def _harmless(letter: str) -> bool:
    return letter in "\n\t" or (letter.isprintable() and letter not in HIDING)


def _spelt(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def repair_json(document: bytes) -> bytes:
    """JSON that only the standard library reads, as JSON that everybody does; raises ValueError on what is no JSON.

    Half an emoji, cut off by a token limit, is such a thing: it cannot be kept as it is.
    """
    try:
        loose = json.loads(document.decode("utf-8", "replace").removeprefix("\ufeff"))
        whole = json.dumps(loose, ensure_ascii=False)
    except RecursionError:
        raise ValueError("too many levels of brackets") from None
    return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
