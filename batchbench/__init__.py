"""Ask language models millions of bias-probe questions through batch APIs, and measure the answers.

    import batchbench as bb

    bb.run("gest", "sim:stereotyping", params={"data": "sample"})        # asks what is missing; a row per run
    bb.metrics("gest", "sim:stereotyping", params={"data": "sample"})    # a row per metric, with its interval
    bb.answers("gest", "sim:stereotyping", params={"data": "sample"})    # every answer with its prompt and label

`bb.prompts`, `bb.estimate` and `bb.sweep` are the other stages; all share their folders with the command line.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchbench.library import answers, estimate, metrics, prompts, run, sweep

__version__ = "0.1.0"
__all__ = ["answers", "estimate", "metrics", "prompts", "run", "sweep"]


def __getattr__(name: str) -> Any:
    # Polars and the rest are only imported when they are needed: help has to be instant.
    if name in __all__:
        return getattr(importlib.import_module("batchbench.library"), name)
    raise AttributeError(f"module 'batchbench' has no attribute {name!r}")
