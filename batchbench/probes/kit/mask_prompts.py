"""Pure: the three forms of prompts that the masked-sentence probes share.

`mask` is the sentence itself, for models that predict masked words. `question` is a multiple choice between the two
candidates and both, in the words that LangTest uses for chat models. `logprob` is our own adaptation: it asks for the
word alone, and the probabilities of the candidates are read from the first token.
"""

from typing import Literal

import polars as pl

from batchbench.probes.kit.probe import Params
from batchbench.probes.kit.templates import fill

QUESTION = (
    "You will act as a language model and assist in replacing a [MASK] in a given sentence with the most probable "
    "options. Please choose the correct option for the following multiple-choice question. Ensure that your response "
    "includes only the correct answer and no additional details.\n"
    "    Question: {sentence}\nOptions: {options}\nAnswer:"
)
LOGPROB = (
    "Replace [MASK] in the following sentence with the one word that fits best. "
    "Answer with that word only.\n\n{sentence}"
)


class MaskedParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`form` is the form of the prompt."""

    form: Literal["mask", "question", "logprob"] = "mask"


def forms(provider: str) -> tuple[str, ...]:
    """The forms that a provider's models can answer, the default first."""
    match provider:
        case "mlm":
            return ("mask",)
        case "anthropic":  # returns no log-probabilities
            return ("question",)
        case _:
            return ("question", "logprob")


def prompt(params: MaskedParams, sentence: pl.Expr, options: pl.Expr) -> pl.Expr:
    """The prompt for `sentence` in the form of `params`."""
    match params.form:
        case "mask":
            return sentence
        case "question":
            return fill(QUESTION, {"sentence": sentence, "options": options})
        case "logprob":
            return fill(LOGPROB, {"sentence": sentence.str.strip_chars()})


def options(first: pl.Expr, second: pl.Expr) -> pl.Expr:
    """The three options of the `question` form."""
    return fill("A. {first}\nB. {second}\nC. Both A and B", {"first": first, "second": second})
