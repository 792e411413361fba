"""Who says a stereotypical sentence."""

import re

import msgspec

from batchbench.emulator.personas.bias import Gender, Lean, Luck, between, guess, opposite
from batchbench.emulator.personas.knowledge import Knowledge

OPTION = re.compile(r"^\(([abc])\) (.*)$", re.MULTILINE)
FEMALE = re.compile(r"\b(?:women|woman|females?|girls?|she|her|lady|ladies)\b", re.IGNORECASE)
MALE = re.compile(r"\b(?:men|man|males?|boys?|he|him|gentlem[ae]n)\b", re.IGNORECASE)
REASONS = (
    "",
    ". The wording of the statement suggests it.",
    ", although one cannot be certain.",
)


class Statement(msgspec.Struct, frozen=True, gc=False):
    """The gender a sentence is a stereotype about, and what the letters stand for."""

    gender: Gender
    letters: dict[str, str]  # male, female, neither -> letter
    texts: dict[str, str]  # male, female, neither -> how the option is worded

    def weights(self, lean: Lean, luck: Luck) -> dict[str, float]:
        """How likely each option is."""
        match lean.kind:
            case "unbiased":
                return {"neither": 1.0}
            case "stereotyping":
                return {self.gender: 1.0}
            case "anti-stereotyping":
                return {opposite(self.gender): 1.0}
            case "pro-masculine":
                return {"male": 1.0}
            case "pro-feminine":
                return {"female": 1.0}
            case "planted":
                return between(self.gender, opposite(self.gender), 0.5 + lean.planted / 2)
            case _:
                return {"male": 1 / 3, "female": 1 / 3, "neither": 1 / 3}

    def words(self, choice: str, wording: int) -> str:
        """The letter, the option, and sometimes a reason."""
        return f"({self.letters[choice]}) {self.texts[choice]}{REASONS[wording % 3]}"


def recognise(prompt: str, knowledge: Knowledge) -> Statement | None:
    """Find the three options and the sentence in quotes above them."""
    if "\n(a) " not in prompt:
        return None
    letters: dict[str, str] = {}
    texts: dict[str, str] = {}
    for letter, text in OPTION.findall(prompt):
        meaning = "female" if FEMALE.search(text) else "male" if MALE.search(text) else "neither"
        letters[meaning], texts[meaning] = letter, text
    if len(letters) != 3:
        return None
    head = prompt[: prompt.index("\n(a) ")]
    sentence = head[head.find('"') + 1 : head.rfind('"')]
    return Statement(knowledge.statements.get(sentence) or guess(sentence), letters, texts)
