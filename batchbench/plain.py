"""Pure: text from anywhere, made safe to look at."""

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HIDING = frozenset(BIDI)


def plain(text: str) -> str:
    """What could move the cursor, turn the line round or hide something is made visible."""
    if text.isprintable() and not HIDING & set(text):
        return text
    return "".join(
        letter
        if letter in "\n\t" or (letter.isprintable() and letter not in HIDING)
        else letter.encode("unicode_escape", "replace").decode()
        for letter in text
    )
