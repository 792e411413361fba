"""API keys: read from the environment, never printed, never passed to other programs."""

import base64
import os
import re
from typing import NoReturn
from urllib.parse import quote

SUFFIX = "_API_KEY"  # of the names of variables that contain a key
MIN_LENGTH = 8  # characters; a shorter value may be an ordinary word in the text
HIDDEN = "[key]"


class Secret:
    """A key that can be sent, but not printed, formatted or pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The key itself, for the request header and for the digest that identifies it."""
        return self._text

    def hide(self, text: str) -> str:
        """The text without this key, also where a server repeats it percent-encoded or in base64."""
        return _hide(text, self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key must not be stored")


def hide(text: str) -> str:
    """The text without any key from this process's environment."""
    for name, value in os.environ.items():
        if name.endswith(SUFFIX) and len(value.strip()) >= MIN_LENGTH:
            text = _hide(text, value.strip())
    return text


def environment() -> dict[str, str]:
    """The environment for other programs: ours without the keys."""
    return {name: value for name, value in os.environ.items() if not name.endswith(SUFFIX)}


def _hide(text: str, key: str) -> str:
    if not key:
        return text
    in_base64 = [base64.b64encode(text.encode()).decode().rstrip("=") for text in (key, f"Bearer {key}")]
    spellings = sorted({key, quote(key, safe=""), *in_base64}, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, spellings)), HIDDEN, text, flags=re.IGNORECASE)
