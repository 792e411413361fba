"""The models that the emulator pretends to be, besides `echo`.

A persona reads a prompt as a person would: it recognises the kind of question, knows what the data sets say
about the people and things in it, and answers with a known lean, so that the true value of every metric is
known. One module per kind of question says how likely each answer is for a given lean and how it is worded.
The answer is drawn by a hash of the prompt and
the repetition, never by a generator, so it does not depend on what else was asked.
"""

import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from struct import Struct

from batchbench.emulator.personas import gest, hiring, inventories, isear, masked
from batchbench.emulator.personas.bias import LEANS, Lean, Luck, Question
from batchbench.emulator.personas.interface import Ask, Persona, Reply
from batchbench.emulator.personas.knowledge import Knowledge, known

RECOGNISERS: tuple[Callable[[str, Knowledge], Question | None], ...] = (  # the most telling prompts first
    hiring.recognise,
    masked.recognise,
    gest.recognise,
    isear.recognise,
    inventories.recognise,
)
_NUMBERS = Struct(">HIHII").unpack
REFUSAL = "I'm sorry, but I can't help with that request."
SILENCE = "…"
ABOUT = {
    "unbiased": "gender makes no difference to its answers",
    "random": "every possible answer is equally likely",
    "stereotyping": "follows the stereotype every time",
    "anti-stereotyping": "does the opposite of the stereotype every time",
    "pro-masculine": "favours men every time",
    "pro-feminine": "favours women every time",
    "refusing": "refuses every request",
    "silent": "answers, but says nothing that can be read",
    "planted/X": "answers so that the probe's headline metric has the true value X, e.g. planted/0.12",
}


def find(model: str, home: Path = Path()) -> Persona | None:
    """The persona of that name, knowing the data sets under `home`; null if there is none."""
    name, _, value = model.partition("/")
    if name == "refusing" and not value:
        return lambda ask: _worded(REFUSAL, ask, refusal=True)
    if name == "silent" and not value:
        return lambda ask: _worded(SILENCE, ask)
    lean = _lean(name, value)
    if lean is None:
        return None
    knowledge = known(home)
    return lambda ask: answer(ask, lean, knowledge)


def _lean(name: str, value: str) -> Lean | None:
    if name == "planted":
        try:
            planted = float(value)
        except ValueError:
            return None
        return Lean("planted", planted) if -1 <= planted <= 1 else None
    return Lean(name) if name in LEANS and not value else None


def answer(ask: Ask, lean: Lean, knowledge: Knowledge) -> Reply:
    """What a persona with that lean says."""
    question = understood(ask.prompt, knowledge)
    if question is None:
        return _worded("That is hard to say without knowing more.", ask)
    luck = _luck(ask)
    weights = question.weights(lean, luck)
    text = question.words(_chosen(weights, luck.choice), luck.wording)
    if ask.top_logprobs is None:
        return Reply(text)
    return Reply(text, top_logprobs=_first_tokens(question, weights, luck.wording, ask.top_logprobs))


def understood(prompt: str, knowledge: Knowledge) -> Question | None:
    """What is asked; null if it is none of the probes' questions."""
    for recognise in RECOGNISERS:
        if question := recognise(prompt, knowledge):
            return question
    return None


def _worded(text: str, ask: Ask, *, refusal: bool = False) -> Reply:
    first = [(text.split()[0], 0.0)] if ask.top_logprobs is not None else None
    return Reply(text, refusal=refusal, top_logprobs=first)


def _luck(ask: Ask) -> Luck:
    key = f"{ask.seed}\0{ask.model}\0{ask.sample}\0{ask.prompt}"
    content = key.encode() if key.isascii() else key.encode("utf-8", "surrogatepass")
    a, b, c, d, wording = _NUMBERS(blake2b(content, digest_size=16).digest())
    return Luck(ask.sample, (a << 32 | b) / 2**48, (c << 32 | d) / 2**48, wording)


def _chosen(weights: dict[str, float], draw: float) -> str:
    for choice, weight in weights.items():
        draw -= weight
        if draw < 0:
            return choice
    return max(weights, key=lambda choice: weights[choice])  # the weights' sum may fall short of 1 by rounding


def _first_tokens(question: Question, weights: dict[str, float], wording: int, most: int) -> list[tuple[str, float]]:
    """The first words of all answers with their log-probabilities, likeliest first."""
    tokens: dict[str, float] = {}
    for choice, weight in weights.items():
        if weight > 0:
            token = question.words(choice, wording).split()[0]
            tokens[token] = tokens.get(token, 0.0) + weight
    ranked = sorted(tokens.items(), key=lambda pair: (-pair[1], pair[0]))[: max(most, 1)]
    return [(token, math.log(weight)) for token, weight in ranked]
