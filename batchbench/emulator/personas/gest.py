"""Prompts of the probe `gest`: which person says a stereotypical sentence."""

import re

import msgspec

from batchbench.emulator.personas.bias import Bias, Draw, Gender, guess, opposite, preferred_gender, two_choices
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
    """A stereotypical sentence with three options."""

    gender: Gender  # that the stereotype is about
    letters: dict[str, str]  # male, female, neither -> letter
    texts: dict[str, str]  # male, female, neither -> text of the option

    def weights(self, bias: Bias, draw: Draw) -> dict[str, float]:
        """The probability of each option."""
        if gender := preferred_gender(bias, self.gender):
            return {gender: 1.0}
        match bias.kind:
            case "unbiased":
                return {"neither": 1.0}
            case "planted":
                return two_choices(self.gender, opposite(self.gender), 0.5 + bias.planted / 2)
            case _:
                return {"male": 1 / 3, "female": 1 / 3, "neither": 1 / 3}

    def answer(self, choice: str, wording: int) -> str:
        """The letter and the option, for some wordings with a reason."""
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
