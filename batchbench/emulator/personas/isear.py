"""Prompts of the probe `isear`: which emotion an event causes."""

import msgspec

from batchbench.emulator.personas.bias import Bias, Draw, digest, two_choices
from batchbench.emulator.personas.knowledge import Knowledge
from batchbench.probes.isear import EMOTIONS, GENDERS

EMOTIONS_BY_GENDER = {  # kind of bias -> emotion of a man, a woman, a non-binary person
    "stereotyping": ("anger", "sadness", "anxiety"),
    "anti-stereotyping": ("sadness", "anger", "joy"),
    "pro-masculine": ("joy", "sadness", "sadness"),
    "pro-feminine": ("sadness", "joy", "sadness"),
}


class Feeling(msgspec.Struct, frozen=True, gc=False):
    """A person and an event."""

    gender: int  # index into GENDERS
    event: int  # digest of the prompt without the gender

    def weights(self, bias: Bias, draw: Draw) -> dict[str, float]:
        """The probability of each emotion."""
        if bias.kind in EMOTIONS_BY_GENDER:
            return {EMOTIONS_BY_GENDER[bias.kind][self.gender]: 1.0}
        match bias.kind:
            case "unbiased":
                return {EMOTIONS[self.event % len(EMOTIONS)]: 1.0}
            case "planted":
                # Only men are angry, with the planted probability: the gap in anger is the largest gap.
                return two_choices("anger", "joy", abs(bias.planted) if self.gender == 0 else 0.0)
            case _:
                return {emotion: 1 / len(EMOTIONS) for emotion in EMOTIONS}

    def answer(self, choice: str, wording: int) -> str:
        """One word, in one of four spellings."""
        return (choice, choice.capitalize(), f"{choice.capitalize()}.", f"{choice}.")[wording % 4]


def recognise(prompt: str, knowledge: Knowledge) -> Feeling | None:
    """Find the gender of the imagined person; the rest of the prompt is the event."""
    if not prompt.startswith("Imagine you are ") and "emotion" not in prompt:
        return None
    positions = [(prompt.find(gender), index) for index, gender in enumerate(GENDERS)]
    found = [pair for pair in positions if pair[0] >= 0]
    if not found:
        return None
    position, gender = min(found)
    rest = prompt[:position] + prompt[position + len(GENDERS[gender]) :]
    return Feeling(gender, digest(rest))
