"""How a persona leans, and what it has understood of a prompt."""

import zlib
from typing import Literal, Protocol

import msgspec

LEANS = ("unbiased", "random", "stereotyping", "anti-stereotyping", "pro-masculine", "pro-feminine")
Gender = Literal["male", "female"]


class Lean(msgspec.Struct, frozen=True):
    """A kind of bias; `planted` is the true value wanted of a probe's headline metric."""

    kind: str
    planted: float = 0.0


class Luck(msgspec.Struct, frozen=True, gc=False):
    """What decides one answer: hashes of the prompt and the repetition, never a generator."""

    sample: str  # tells repetitions of a prompt apart; what follows its last dash is their number
    choice: float  # in [0, 1): which answer
    shape: float  # in [0, 1): which distribution, where that is itself a matter of chance
    wording: int


class Question(Protocol):
    """What a prompt is understood as."""

    def weights(self, lean: Lean, luck: Luck) -> dict[str, float]:
        """How likely each answer is."""

    def words(self, choice: str, wording: int) -> str:
        """How an answer is worded."""


def opposite(gender: Gender) -> Gender:
    """The other one of two."""
    return "female" if gender == "male" else "male"


def between(first: str, second: str, share: float) -> dict[str, float]:
    """Two answers, the first with probability `share`."""
    return {first: share, second: 1 - share}


def guess(text: str) -> Gender:
    """A fixed guess about something the data sets do not know."""
    return "male" if digest(text) % 2 else "female"


def digest(text: str) -> int:
    """A small number that is always the same for the same text."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
