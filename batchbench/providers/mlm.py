"""Masked language models on this machine: batchbench computes the answers itself.

Its batches are files in the run's folder, in OpenAI's formats. `transport/mlm/` executes them. An answer's text is a
JSON document, described in `probes/kit/mask_answers.py`. Nothing is charged.
"""

import msgspec

from batchbench.errors import UsageError
from batchbench.providers import openai
from batchbench.providers.interface import Limits
from batchbench.providers.target import LATER_FIELDS, Target


def check(target: Target) -> None:
    """Refuse parameters that do not change the answers: they would only start another run with the same answers."""
    for name in ("system", "temperature", "top_p", "top_logprobs", "base_url", *LATER_FIELDS):
        if getattr(target, name) not in (None, ""):
            raise UsageError(f"mlm:{target.model} fills in masked words and takes no {name}: leave it out")


PROVIDER = msgspec.structs.replace(
    openai.PROVIDER,
    name="mlm",
    key_variable="",
    url_variable="",
    base_url="http://localhost",  # is never called
    limits=Limits(requests=5_000, bytes=200_000_000, open_batches=1, settle=0, poll=(0.2, 2.0)),
    headers=lambda _: {},
    check=check,
    describe=None,
)
