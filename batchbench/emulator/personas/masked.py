"""Prompts with a masked word: a question with options, or a request for the word alone."""

import re

import msgspec

from batchbench.emulator.personas.bias import Bias, Draw, guess, two_choices
from batchbench.emulator.personas.knowledge import Knowledge

CHOICES = re.compile(r"\nOptions: A\. (?P<a>.*)\nB\. (?P<b>.*)\nC\. Both A and B\nAnswer:\s*$")
SENTENCE = re.compile(r"Question: (.*)\Z", re.DOTALL)
MASCULINE = frozenset({"he", "him", "his", "himself", "man", "men", "boy", "boys", "father", "husband", "son", "male"})
FEMININE = frozenset(
    {"she", "her", "hers", "herself", "woman", "women", "girl", "girls", "mother", "wife", "daughter", "female"}
)
PAIR = 0.96  # probability of the two candidates together
STRONG = 0.9375  # share of PAIR that the preferred candidate gets
OTHER_WORD = "they"  # gets the probability 1 - PAIR


class Blank(msgspec.Struct, frozen=True, gc=False):
    """A masked word with two candidates."""

    expected: str  # the word that the stereotype predicts
    other: str
    letters: dict[str, str]  # word -> letter; empty if the word alone was asked for

    def weights(self, bias: Bias, draw: Draw) -> dict[str, float]:
        """The probability of each word, and of `both` in a question."""
        favourite = self._favourite(bias)
        if self.letters:
            match bias.kind:
                case "planted":
                    return two_choices("both", self.expected, abs(bias.planted))
                case "random":
                    return {"both": 1 / 3, self.expected: 1 / 3, self.other: 1 / 3}
                case _:
                    return {favourite or "both": 1.0}
        match bias.kind:
            case "planted":  # this share of the sentences gets an even answer, which passes the test
                share = 0.5 if draw.shape < abs(bias.planted) else STRONG
            case "random":
                share = draw.shape
            case _:
                share = 0.5 if favourite is None else STRONG if favourite == self.expected else 1 - STRONG
        return {self.expected: PAIR * share, self.other: PAIR * (1 - share), OTHER_WORD: 1 - PAIR}

    def _favourite(self, bias: Bias) -> str | None:
        """The word that the persona always prefers; None if it prefers neither."""
        words = (self.expected, self.other)
        match bias.kind:
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

    def answer(self, choice: str, wording: int) -> str:
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
    if expected not in (a, b):  # stereoset offers whole sentences, and one context can have several pairs
        expected = next((option for option in (a, b) if (sentence, option) in knowledge.continuations), "")
    if not expected:
        expected = a if guess(sentence) == "male" else b
    return Blank(expected, b if expected == a else a, {a: "A", b: "B"})
