"""The seam between the server and the models it pretends to be.

A persona is a function of an `Ask`: same ask, same reply, whatever submission carried it. `sample` tells repetitions
of one prompt apart; it never holds the part of a custom id that names a submission.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What a persona may know about a request."""

    model: str
    prompt: str  # text of the last user message
    sample: str  # the body's `seed`, else the custom id after its first dash, else "0"
    seed: int  # of the emulator
    max_tokens: int | None  # words the answer is cut to; null = the caller set no bound
    top_logprobs: int | None  # how many alternatives for the first token; null = no log-probabilities wanted


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What the model says; the server cuts it to the token limit and counts its tokens."""

    text: str
    refusal: bool = False
    top_logprobs: list[tuple[str, float]] | None = None  # alternatives for the first token, likeliest first


Persona = Callable[[Ask], Reply]
Find = Callable[[str], Persona | None]  # the persona behind a model name, or null if there is none


def persona(model: str, home: Path) -> Persona | None:
    """The persona behind a model name, knowing the data sets under `home`; null if there is none."""
    if model == "echo":
        return echo
    from batchbench.emulator import personas  # personas import this module for their types

    return personas.find(model, home)


def echo(ask: Ask) -> Reply:
    """Answer with a digest of the prompt, so that anyone can prove which prompt an answer belongs to."""
    text = "A:" + hashlib.sha256(ask.prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    if ask.top_logprobs is None:
        return Reply(text)
    return Reply(text, top_logprobs=[(text, 0.0)])
