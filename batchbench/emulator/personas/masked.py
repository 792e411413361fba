"""Masked pronouns and words, asked as a question or for the word alone."""

import re

import msgspec

from batchbench.emulator.personas.bias import Lean, Luck, between, guess
from batchbench.emulator.personas.knowledge import Knowledge

CHOICES = re.compile(r"\nOptions: A\. (?P<a>.*)\nB\. (?P<b>.*)\nC\. Both A and B\nAnswer:\s*$")
SENTENCE = re.compile(r"Question: (.*)\Z", re.DOTALL)
MASCULINE = frozenset({"he", "him", "his", "himself", "man", "men", "boy", "boys", "father", "husband", "son", "male"})
FEMININE = frozenset(
    {"she", "her", "hers", "herself", "woman", "women", "girl", "girls", "mother", "wife", "daughter", "female"}
)
PAIR, STRONG = 0.96, 0.9375  # of a masked word: what both candidates have together, and the preferred one of that
ELSE = "they"  # where the rest goes


class Blank(msgspec.Struct, frozen=True, gc=False):
    """The word a stereotype expects, the other one, and their letters if a question was asked."""

    expected: str
    other: str
    letters: dict[str, str]  # word -> letter; empty if the word alone was asked for

    def weights(self, lean: Lean, luck: Luck) -> dict[str, float]:
        """How likely each word is; in a question, how likely `both` is too."""
        favourite = self._favourite(lean)
        if self.letters:
            match lean.kind:
                case "planted":
                    return between("both", self.expected, abs(lean.planted))
                case "random":
                    return {"both": 1 / 3, self.expected: 1 / 3, self.other: 1 / 3}
                case _:
                    return {favourite or "both": 1.0}
        match lean.kind:
            case "planted":  # a share of the sentences is answered evenly, and so passes
                share = 0.5 if luck.shape < abs(lean.planted) else STRONG
            case "random":
                share = luck.shape
            case _:
                share = 0.5 if favourite is None else STRONG if favourite == self.expected else 1 - STRONG
        return {self.expected: PAIR * share, self.other: PAIR * (1 - share), ELSE: 1 - PAIR}

    def _favourite(self, lean: Lean) -> str | None:
        """The word always preferred; null if there is none."""
        words = (self.expected, self.other)
        match lean.kind:
            case "stereotyping":
                return self.expected
            case "anti-stereotyping":
                return self.other
            case "pro-masculine":
                return next((word for word in words if word.lower() in MASCULINE), None)
            case "pro-feminine":
                return next((word for word in words if word.lower() in FEMININE), None)
            case _:
                return None

    def words(self, choice: str, wording: int) -> str:
        """The letter and the option, or the word alone."""
        if not self.letters:
            return choice
        return "C. Both A and B" if choice == "both" else f"{self.letters[choice]}. {choice}"


def recognise(prompt: str, knowledge: Knowledge) -> Blank | None:
    """Find the sentence with the mask, and the two candidates for it."""
    if "[MASK]" not in prompt:
        return None
    options = CHOICES.search(prompt)
    if options is None:
        sentence = prompt.rpartition("\n\n")[2].strip()
        expected, other = knowledge.blanks.get(sentence, ("he", "she"))
        return Blank(expected, other, {})
    a, b = options["a"], options["b"]
    question = SENTENCE.search(prompt[: options.start()])
    sentence = question[1].strip() if question else ""
    expected = knowledge.blanks.get(sentence, ("", ""))[0]
    if expected not in (a, b):  # whole sentences may be offered, and a context may come with several pairs of them
        expected = next((option for option in (a, b) if (sentence, option) in knowledge.continuations), "")
    if not expected:
        expected = a if guess(sentence) == "male" else b
    return Blank(expected, b if expected == a else a, {a: "A", b: "B"})
