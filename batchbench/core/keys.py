"""Keys: they come from the environment, are shown to nobody, and are handed on to no other program."""

import base64
import os
import re
from typing import NoReturn
from urllib.parse import quote

SUFFIX = "_API_KEY"  # ends the names of variables that hold a key
SHORTEST = 8  # letters; hiding every occurrence of less would make nonsense of the text around it
HIDDEN = "[key]"


class Secret:
    """A key: it can be sent, but not printed, formatted or pickled, whoever's error or log it ends up in."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The key itself, for the header that carries it and the digest that tells it from others."""
        return self._text

    def hide(self, text: str) -> str:
        """A text without this key, in whatever way a server may spell it when it complains about it."""
        return _hide(text, self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not to be stored")


def hide(text: str) -> str:
    """A text without any key of this process's environment."""
    for name, value in os.environ.items():
        if name.endswith(SUFFIX) and len(value.strip()) >= SHORTEST:
            text = _hide(text, value.strip())
    return text


def environment() -> dict[str, str]:
    """The environment for other programs, which need no key of ours."""
    return {name: value for name, value in os.environ.items() if not name.endswith(SUFFIX)}


def _hide(text: str, key: str) -> str:
    if not key:
        return text
    packed = [base64.b64encode(spelt.encode()).decode().rstrip("=") for spelt in (key, f"Bearer {key}")]
    spellings = sorted({key, quote(key, safe=""), *packed}, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, spellings)), HIDDEN, text, flags=re.IGNORECASE)
