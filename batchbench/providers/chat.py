"""Any server with OpenAI's chat completions but no batch API: vLLM, Ollama, llama.cpp and others.

Its batches are files in the run's folder, in OpenAI's formats. `transport/single_calls.py` executes them with one call
per request.
"""

import msgspec

from batchbench.providers import openai
from batchbench.providers.interface import Limits, Line, Problem, Verdict

LOST = "call_lost"  # error code of a call with an unknown outcome


def decode(lines: bytes) -> list[Line]:
    """Decode result lines; a lost call is asked again and may have been charged."""
    return [msgspec.structs.replace(line, usage=False) if _is_lost(line) else line for line in openai.decode(lines)]


def _is_lost(line: Line) -> bool:
    return line.again and line.error is not None and line.error.startswith(LOST)


def verdict(problem: Problem) -> Verdict:
    """As for OpenAI, except that an error in another format is not garbled: each server has its own format."""
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
