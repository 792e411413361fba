"""Masked language models on this machine: batchbench plays the batch and computes the answers itself.

As for servers without batches, the batches are files in the run's own folder, in OpenAI's formats; `mlm/` carries them
out. An answer's text is a document that `predictions.py` describes. Nothing is charged.
"""

import msgspec

from batchbench.errors import UsageError
from batchbench.providers import openai
from batchbench.providers.interface import Limits
from batchbench.providers.target import Target


def check(target: Target) -> None:
    """Refuse what such a model has no use for, since it would only make another run of the same answers."""
    for name in ("system", "temperature", "top_p", "top_logprobs", "base_url"):
        if getattr(target, name) is not None:
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
)
