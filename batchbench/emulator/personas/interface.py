"""The types between the server and the personas.

A persona is a function: the same query gives the same reply, in every batch. `sample` distinguishes repetitions of one
prompt; it never contains the nonce of a submission.
"""

from collections.abc import Callable

import msgspec


class PersonaQuery(msgspec.Struct, frozen=True, gc=False):
    """What a persona may know about a request."""

    model: str
    prompt: str  # text of the last user message
    sample: str  # the body's `seed`, else the custom id after its first dash, else "0"
    seed: int  # of the emulator
    max_tokens: int | None  # the server cuts the answer to this length; None = the request sets no limit
    top_logprobs: int | None  # number of alternatives for the first token; None = no log-probabilities requested


class PersonaReply(msgspec.Struct, frozen=True, gc=False):
    """What the model says. The server cuts the text to the token limit and counts its tokens."""

    text: str
    refusal: bool = False
    top_logprobs: list[tuple[str, float]] | None = None  # alternatives for the first token, most likely first
    thoughts: int = 0  # tokens of thoughts that are not part of the text
    reasoning: str | None = None  # the text of these thoughts; None if the client does not see it


Persona = Callable[[PersonaQuery], PersonaReply]
FindPersona = Callable[[str], Persona | None]  # the persona with a model name; None if no persona has this name
