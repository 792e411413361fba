"""API keys: read from the environment, never printed, never passed to other programs."""

import os
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from batchbench.core.text import HIDDEN, SUFFIX, hide_key


class Secret:
    """A key that can be sent, but not printed, formatted or pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The key itself, for the request header and for the digest that identifies it."""
        return self._text

    def hide(self, text: str) -> str:
        """The text without this key, and without percent-encoded or base64 copies of it."""
        return hide_key(text, self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key must not be stored")


def url_secrets(url: str) -> list[Secret]:
    """What messages must not show of a URL with a password."""
    parts = urlsplit(url)
    password = unquote(parts.password or "")
    return [Secret(f"{unquote(parts.username or '')}:{password}"), Secret(password)] if password else []


def environment() -> dict[str, str]:
    """The environment for child processes: the environment of this process without the keys."""
    return {name: value for name, value in os.environ.items() if not name.endswith(SUFFIX)}
