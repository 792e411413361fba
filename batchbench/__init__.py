"""Ask language models millions of bias-probe questions through batch APIs, and measure the answers.

    import batchbench as bb

    bb.run("gest", "sim:stereotyping", params={"data": "sample"})        # asks what is missing; a row per run
    bb.metrics("gest", "sim:stereotyping", params={"data": "sample"})    # a row per metric, with its interval
    bb.answers("gest", "sim:stereotyping", params={"data": "sample"})    # every answer with its prompt and label

`bb.prompts`, `bb.estimate` and `bb.sweep` are the other stages. All of them share their folders with the command line.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchbench.library import Swept, answers, estimate, metrics, prompts, run, sweep

__version__ = "0.1.0"
__all__ = ["Swept", "answers", "estimate", "metrics", "prompts", "run", "sweep"]
# An environment variable, set before polars is imported: its allocator then keeps the memory of one shard for the next
# one, and compiling is faster by a tenth.
ALLOCATOR = ("_RJEM_MALLOC_CONF", "dirty_decay_ms:60000,muzzy_decay_ms:60000")


def __getattr__(name: str) -> Any:
    # Polars and the rest are imported when they are needed: `batchbench --help` has to be instant.
    if name in __all__:
        os.environ.setdefault(*ALLOCATOR)
        return getattr(importlib.import_module("batchbench.library"), name)
    raise AttributeError(f"module 'batchbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
