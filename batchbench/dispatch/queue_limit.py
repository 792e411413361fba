"""Pure: how many tokens a provider queues for one model, from the text with which it refuses a batch."""

import re

UNITS = {"": 1, "k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000, "b": 10**9, "billion": 10**9}
AMOUNT = r"(\d++(?:,\d++)*+(?:\.\d++)?+)\s?(k|m|b|thousand|million|billion)?\b"
LIMIT = re.compile(rf"\b(?:limit|quota|maximum)(?:\s+(?:of|is|at)|\s*[:=(])?\s*{AMOUNT}(?!\s*requests)", re.IGNORECASE)
RATE = re.compile(r"\bper[ -]min|\b[TR]PM\b|/min\b", re.IGNORECASE)
MESSAGE_TOKENS = 8  # that a chat message has besides its text


def queue_limit(text: str) -> int | None:
    """The limit that a refusal names, in tokens; None if it names none."""
    found = LIMIT.search(text) if "token" in text.lower() and not names_rate(text) else None
    if found is None:
        return None
    number, unit = found.groups()
    limit = int(float(number.replace(",", "")) * UNITS[(unit or "").lower()])
    return limit or None


def names_rate(text: str) -> bool:
    """Whether a refusal is about calls or tokens per minute, which says nothing about the queue."""
    return RATE.search(text) is not None


def estimated_tokens(prompt_bytes: int, rows: int) -> int:
    """About how many tokens requests have: a token is about four bytes."""
    return prompt_bytes // 4 + rows * MESSAGE_TOKENS
