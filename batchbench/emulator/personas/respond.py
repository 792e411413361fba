"""Finds personas by name and computes their replies.

A persona recognises the kind of prompt, looks up what the data sets say about the people and things in it, and answers
with a known bias, so that the true value of every metric is known. A hash of the prompt and the repetition selects the
answer, not a random generator, so an answer does not depend on the other requests.
"""

import math
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path
from struct import Struct

from batchbench.emulator.personas import gest, hiring, inventories, isear, masked
from batchbench.emulator.personas.bias import Bias, Draw, RecognisedPrompt, bias_of
from batchbench.emulator.personas.interface import Persona, PersonaQuery, PersonaReply
from batchbench.emulator.personas.knowledge import Knowledge, read_knowledge

RECOGNISERS: tuple[Callable[[str, Knowledge], RecognisedPrompt | None], ...] = (  # the strictest patterns first
    hiring.recognise,
    masked.recognise,
    gest.recognise,
    isear.recognise,
    inventories.recognise,
)
REFUSAL = "I'm sorry, but I can't help with that request."
SILENCE = "…"
NOT_RECOGNISED = "That is hard to say without knowing more."

_unpack_draw = Struct(">HIHII").unpack


def find_persona(name: str, home: Path) -> Persona | None:
    """The persona with this name, using the data sets under `home`; None if no persona has this name."""
    match name:
        case "echo":
            return echo
        case "refusing":
            return lambda query: _fixed_reply(REFUSAL, query, refusal=True)
        case "silent":
            return lambda query: _fixed_reply(SILENCE, query)
    bias = bias_of(name)
    if bias is None:
        return None
    knowledge = read_knowledge(home)
    return lambda query: respond(query, bias, knowledge)


def echo(query: PersonaQuery) -> PersonaReply:
    """Answer with a digest of the prompt, which shows to which prompt an answer belongs."""
    text = "A:" + sha256(query.prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    if query.top_logprobs is None:
        return PersonaReply(text)
    return PersonaReply(text, top_logprobs=[(text, 0.0)])


def respond(query: PersonaQuery, bias: Bias, knowledge: Knowledge) -> PersonaReply:
    """The reply of a persona with this bias."""
    prompt = recognise(query.prompt, knowledge)
    if prompt is None:
        return _fixed_reply(NOT_RECOGNISED, query)
    draw = draw_for(query)
    weights = prompt.weights(bias, draw)
    text = prompt.answer(choose(weights, draw.choice), draw.wording)
    if query.top_logprobs is None:
        return PersonaReply(text)
    return PersonaReply(text, top_logprobs=_first_tokens(prompt, weights, draw.wording, query.top_logprobs))


def recognise(prompt: str, knowledge: Knowledge) -> RecognisedPrompt | None:
    """What the prompt asks; None if it is not a prompt of a probe."""
    for recogniser in RECOGNISERS:
        if recognised := recogniser(prompt, knowledge):
            return recognised
    return None


def draw_for(query: PersonaQuery) -> Draw:
    key = f"{query.seed}\0{query.model}\0{query.sample}\0{query.prompt}"
    content = key.encode() if key.isascii() else key.encode("utf-8", "surrogatepass")
    a, b, c, d, wording = _unpack_draw(blake2b(content, digest_size=16).digest())
    return Draw(query.sample, (a << 32 | b) / 2**48, (c << 32 | d) / 2**48, wording)


def choose(weights: dict[str, float], position: float) -> str:
    """The choice at a position in [0, 1) when the choices are laid end to end."""
    for choice, weight in weights.items():
        position -= weight
        if position < 0:
            return choice
    return max(weights, key=lambda choice: weights[choice])  # rounding can leave the sum of the weights below 1


def _fixed_reply(text: str, query: PersonaQuery, *, refusal: bool = False) -> PersonaReply:
    first = [(text.split()[0], 0.0)] if query.top_logprobs is not None else None
    return PersonaReply(text, refusal=refusal, top_logprobs=first)


def _first_tokens(
    prompt: RecognisedPrompt, weights: dict[str, float], wording: int, count: int
) -> list[tuple[str, float]]:
    """The first words of all possible answers with their log-probabilities, most likely first."""
    tokens: dict[str, float] = {}
    for choice, weight in weights.items():
        if weight > 0:
            token = prompt.answer(choice, wording).split()[0]
            tokens[token] = tokens.get(token, 0.0) + weight
    ranked = sorted(tokens.items(), key=lambda pair: (-pair[1], pair[0]))[: max(count, 1)]
    return [(token, math.log(weight)) for token, weight in ranked]
