"""Any server with OpenAI's chat completions (vLLM, Ollama, llama.cpp ...): batchbench plays the batch itself.

The batches of such a server are files in the run's own folder, in OpenAI's formats, so everything said of OpenAI's
batches holds for them; `spool.py` carries them out, one call per request.
"""

import msgspec

from batchbench.providers import openai
from batchbench.providers.interface import Limits, Line, Problem, Verdict

LOST = "call_lost"  # the code of a line about a call that nobody knows the outcome of


def decode(lines: bytes) -> list[Line]:
    """Lines of the results; a lost call is asked again, and may have been charged."""
    return [msgspec.structs.replace(line, usage=False) if _is_lost(line) else line for line in openai.decode(lines)]


def _is_lost(line: Line) -> bool:
    return line.again and line.error is not None and line.error.startswith(LOST)


def verdict(problem: Problem) -> Verdict:
    """As OpenAI's, but that every such server has a format of its own for errors."""
    found = openai.verdict(problem)
    return "refused" if found == "garbled" else found


PROVIDER = msgspec.structs.replace(
    openai.PROVIDER,
    name="chat",
    key_variable="CHAT_API_KEY",
    url_variable="CHAT_BASE_URL",
    base_url="",  # part of the model's name
    limits=Limits(requests=5_000, bytes=200_000_000, open_batches=1, settle=0, poll=(0.2, 0.5)),
    headers=lambda key: {"Authorization": f"Bearer {key}"} if key else {},
    check=lambda _: None,
    decode=decode,
    verdict=verdict,
    half_price=False,
)
