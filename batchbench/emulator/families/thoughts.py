"""Pure: what a model thinks before it answers: how many tokens, and as which text.

Like the answers of a persona, thoughts are computed from a hash of the prompt and the repetition.
"""

import itertools
from hashlib import blake2b

from batchbench.emulator.families.table import Form
from batchbench.emulator.personas.interface import Persona, PersonaQuery, PersonaReply

TOKENS = {  # effort -> the least and the most tokens
    "none": (0, 0),
    "minimal": (8, 60),
    "low": (80, 400),
    "medium": (200, 1_500),
    "high": (500, 4_000),
    "xhigh": (1_000, 8_000),
    "max": (2_000, 16_000),
}
# Thoughts name many possible answers: a reader that does not leave them out reads the wrong one.
SENTENCES = (
    "Hmm, let me think about what is asked here.",
    "It could be a man, but it could just as well be a woman.",
    "Maybe he said it, maybe she did, her words or his.",
    "Option (a) is possible, (b) is possible too, and (c) says neither.",
    'The phrase "You have been selected" would fit, and so would "We regret to inform you".',
    "Anger, fear, joy, sadness, shame, guilt or disgust all come to mind.",
    "A. first, B. second, C. both A and B: wait, I should check the wording again.",
    "Yes or no? No, wait. Let me read the question once more.",
)
MARKS: dict[Form, tuple[str, str]] = {  # text before and after thoughts that are part of the answer's text
    "think": ("<think>\n", "\n</think>\n\n"),
    "think-open": ("", "\n</think>\n\n"),
    "harmony": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "harmony-stripped": ("analysis", "assistantfinal"),
}

_WORDS = " ".join(SENTENCES).split(" ")
_STARTS = [0, *itertools.accumulate(len(sentence.split(" ")) for sentence in SENTENCES[:-1])]
_MOST = max(most for _, most in TOKENS.values())
_REPEATED = _WORDS * (_MOST // len(_WORDS) + 2)


def thinking(persona: Persona, effort: str, form: Form, budget: int | None = None) -> Persona:
    """The persona as a model that thinks; its thoughts have at most `budget` tokens."""

    def answer(query: PersonaQuery) -> PersonaReply:
        reply = persona(query)
        count = thought_tokens(query, effort)
        if budget is not None:
            count = min(count, budget)
        if form in MARKS:
            before, after = MARKS[form]
            text = f"{before}{thought_text(query, count)}{after}{reply.text}"
            return PersonaReply(text, reply.refusal)  # the first token is a thought: its alternatives are not known
        shown = thought_text(query, count) if form == "field" else None
        return PersonaReply(reply.text, reply.refusal, reply.top_logprobs, count, shown)

    return answer


def thought_tokens(query: PersonaQuery, effort: str) -> int:
    """How many tokens the model thinks about a prompt: the logarithm is distributed evenly."""
    least, most = TOKENS[effort]
    return int(least * ((most + 1) / least) ** _position(query)) if least else 0


def thought_text(query: PersonaQuery, count: int) -> str:
    """Thoughts of so many tokens, beginning with any of the sentences."""
    start = _STARTS[int(_position(query) * len(_STARTS))]
    return " ".join(_REPEATED[start : start + count])


def _position(query: PersonaQuery) -> float:
    """A number in [0, 1) that depends on the prompt, the repetition and the model."""
    key = f"thoughts\0{query.seed}\0{query.model}\0{query.sample}\0{query.prompt}"
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48
