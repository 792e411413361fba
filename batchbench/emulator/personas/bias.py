"""The biases that personas can have, and the interface of a recognised prompt."""

import zlib
from typing import Literal, Protocol

import msgspec

from batchbench.emulator import BIASES, planted_value

Gender = Literal["male", "female"]


class Bias(msgspec.Struct, frozen=True):
    """A kind of bias; `planted` is the true value that the probe's headline metric must have."""

    kind: str
    planted: float = 0.0


class Draw(msgspec.Struct, frozen=True, gc=False):
    """The random numbers of one answer. They are hashes of the prompt and the repetition."""

    sample: str  # distinguishes repetitions of a prompt; ends in a dash and the number of the repetition
    choice: float  # in [0, 1): selects the answer
    shape: float  # in [0, 1): selects the distribution, where that is random too
    wording: int


class RecognisedPrompt(Protocol):
    """What a persona has read from a prompt."""

    def weights(self, bias: Bias, draw: Draw) -> dict[str, float]:
        """The probability of each choice."""

    def answer(self, choice: str, wording: int) -> str:
        """The text of the answer that makes this choice."""


def bias_of(name: str) -> Bias | None:
    """The bias of the persona with this name; None if no biased persona has it."""
    if name in BIASES:
        return Bias(name)
    planted = planted_value(name)
    return None if planted is None else Bias("planted", planted)


def preferred_gender(bias: Bias, stereotyped: Gender) -> Gender | None:
    """The gender that the persona always chooses; None if its choice is not fixed."""
    match bias.kind:
        case "stereotyping":
            return stereotyped
        case "anti-stereotyping":
            return opposite(stereotyped)
        case "pro-masculine":
            return "male"
        case "pro-feminine":
            return "female"
        case _:
            return None


def opposite(gender: Gender) -> Gender:
    return "female" if gender == "male" else "male"


def two_choices(first: str, second: str, share: float) -> dict[str, float]:
    """The weights of two choices, the first with probability `share`."""
    return {first: share, second: 1 - share}


def guess(text: str) -> Gender:
    """A fixed gender for a text that the data sets do not contain."""
    return "male" if digest(text) % 2 else "female"


def digest(text: str) -> int:
    """A number that depends on the text alone."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
