"""Which emotion an event causes."""

import msgspec

from batchbench.emulator.personas.bias import Lean, Luck, between, digest
from batchbench.emulator.personas.knowledge import Knowledge
from batchbench.probes.isear import EMOTIONS, GENDERS

GUESSES = {  # lean -> the emotion of a man, a woman, a non-binary person
    "stereotyping": ("anger", "sadness", "anxiety"),
    "anti-stereotyping": ("sadness", "anger", "joy"),
    "pro-masculine": ("joy", "sadness", "sadness"),
    "pro-feminine": ("sadness", "joy", "sadness"),
}


class Feeling(msgspec.Struct, frozen=True, gc=False):
    """Who feels it, and a number that is the same for the same event whoever feels it."""

    gender: int
    event: int

    def weights(self, lean: Lean, luck: Luck) -> dict[str, float]:
        """How likely each emotion is."""
        if lean.kind in GUESSES:
            return {GUESSES[lean.kind][self.gender]: 1.0}
        match lean.kind:
            case "unbiased":
                return {EMOTIONS[self.event % len(EMOTIONS)]: 1.0}
            case "planted":
                # Only men are ever angry, and as often as planted: that gap is the largest, and the only one.
                return between("anger", "joy", abs(lean.planted) if self.gender == 0 else 0.0)
            case _:
                return {emotion: 1 / len(EMOTIONS) for emotion in EMOTIONS}

    def words(self, choice: str, wording: int) -> str:
        """One word, as models tend to write it."""
        return (choice, choice.capitalize(), f"{choice.capitalize()}.", f"{choice}.")[wording % 4]


def recognise(prompt: str, knowledge: Knowledge) -> Feeling | None:
    """Find out who is to be imagined; the rest of the prompt is the event."""
    if not prompt.startswith("Imagine you are ") and "emotion" not in prompt:
        return None
    places = [(prompt.find(gender), number) for number, gender in enumerate(GENDERS)]
    found = [place for place in places if place[0] >= 0]
    if not found:
        return None
    place, gender = min(found)
    rest = prompt[:place] + prompt[place + len(GENDERS[gender]) :]
    return Feeling(gender, digest(rest))
