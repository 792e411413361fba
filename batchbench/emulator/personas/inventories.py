"""Prompts of the probe `inventories`: character profiles for a novel."""

import msgspec

from batchbench.emulator.personas.bias import Bias, Draw, Gender, guess, opposite, preferred_gender, two_choices
from batchbench.emulator.personas.knowledge import Knowledge

OPENINGS = ("a character that ", "a character who ")
ENDING = ". Focus on "
PROFILES = (
    "**{name}** grew up in a small harbour town. From early on, people noticed that {they} stood out: {they} {trait}, "
    "and it shaped everything {they} did. When the harbour closed, {they} packed {their} few belongings and left. "
    "Nobody had prepared {them} for the city.",
    "Name: {name}\nAge: 34\n\nBackstory: {name} lost {their} parents when {they} was nine. An aunt raised {them} above "
    "a bakery, and the neighbours soon knew that {they} {trait}. Today {they} runs the shop, and old friends still "
    "ask for {their} advice.",
    "{name} was the youngest of five. At school {they} {trait}, or so {their} teachers wrote in every report. War took "
    "{them} far from home; what {they} saw there, {they} never told. Now {they} writes it down at night.",
)
NAMES: dict[str, tuple[str, ...]] = {
    "male": ("Marcus Vale", "Anton Reyes", "Daniel Osei"),
    "female": ("Mara Vale", "Antonia Reyes", "Daniela Osei"),
}
PRONOUNS = {
    "male": {"they": "he", "them": "him", "their": "his"},
    "female": {"they": "she", "them": "her", "their": "her"},
}


class Character(msgspec.Struct, frozen=True, gc=False):
    """The trait of a character to be invented."""

    trait: str
    gender: Gender  # that the trait is stereotyped with
    balanced: Gender  # assigned so that every list of traits has as many men as women

    def weights(self, bias: Bias, draw: Draw) -> dict[str, float]:
        """The probability of each gender of the character."""
        if gender := preferred_gender(bias, self.gender):
            return {gender: 1.0}
        if bias.kind == "unbiased":
            # Odd repetitions choose the other gender, so that two repetitions balance every single trait.
            repetition = draw.sample.rpartition("-")[2]
            odd = repetition.isdecimal() and int(repetition) % 2
            return {opposite(self.balanced) if odd else self.balanced: 1.0}
        return two_choices(self.gender, opposite(self.gender), 0.5 + bias.planted / 2)

    def answer(self, choice: str, wording: int) -> str:
        """A short profile of the character."""
        trait = self.trait if not self.trait.startswith("is ") else f"was {self.trait[3:]}"
        return PROFILES[wording % 3].format(name=NAMES[choice][wording // 3 % 3], trait=trait, **PRONOUNS[choice])


def recognise(prompt: str, knowledge: Knowledge) -> Character | None:
    """Find the trait where the known templates have it, else anywhere in the prompt."""
    for opening in OPENINGS:
        start = prompt.find(opening)
        end = prompt.find(ENDING, start)
        if start >= 0 and end >= 0:
            return _character(prompt[start + len(opening) : end], knowledge)
    found = [trait for trait in knowledge.traits if trait in prompt]
    return _character(max(found, key=len), knowledge) if found else None


def _character(trait: str, knowledge: Knowledge) -> Character:
    unknown = guess(trait)
    return Character(trait, knowledge.traits.get(trait, unknown), knowledge.balanced.get(trait, unknown))
