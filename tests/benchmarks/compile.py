"""compile: the full HiringAn against polars writing the same finished text, and against GenderBench's own items.

The comparison with GenderBench needs a Python that has it (see tests/golden/reference.py), named by
BATCHBENCH_GENDERBENCH.
"""

import json
import os
import sys
from pathlib import Path

from tests.benchmarks.measure import Cost, Result, compared, run

GENDERBENCH = os.environ.get("BATCHBENCH_GENDERBENCH")
BATCHBENCH = [sys.executable, "-m", "batchbench"]
# Polars writes the finished text: to the same files one after the other, and to a single file at once.
FLOOR = """
import sys, time
import polars as pl
options = {"compression": "zstd", "compression_level": 1, "statistics": False}
parts = [pl.read_parquet(file, columns=["prompt"]) for file in sys.argv[2:]]
started = time.monotonic()
for number, part in enumerate(parts):
    part.write_parquet(f"{sys.argv[1]}/{number:05}.parquet", **options)
files = time.monotonic() - started
whole = pl.concat(parts)
started = time.monotonic()
whole.write_parquet(f"{sys.argv[1]}/whole.parquet", row_group_size=50_000, **options)
print(files, time.monotonic() - started)
"""
ITEMS = """
import os, sys
from unittest.mock import MagicMock
os.environ.setdefault("GENDER_BENCH_LOG_DIR", os.devnull)
for unused in ("anthropic", "openai", "nest_asyncio"):
    sys.modules.setdefault(unused, MagicMock())
from genderbench import probes
probes.HiringAnProbe(sample_k=int(sys.argv[1]), log_strategy="no").create_probe_items()
"""


def compile(home: Path, *, full: bool) -> list[Result]:
    """Compile the full HiringAn into `home`, then write its text again with polars alone."""
    ours, folder, prompts = compiled(home)
    (home / "floor").mkdir()
    shards = sorted(folder.glob("*.parquet"))
    _, spent = run([sys.executable, "-c", FLOOR, str(home / "floor"), *map(str, shards)])
    floors = dict(zip(("to one file, all at once", "to the same files"), reversed(spent.split()), strict=True))
    results = [
        compared(
            "compile",
            f"vs polars writing the finished text {how}",
            prompts,
            ours,
            Cost(seconds=round(float(seconds), 3)),
        )
        for how, seconds in floors.items()
    ]
    for items in (10_000, 100_000, 1_000_000) if GENDERBENCH and full else (10_000,) if GENDERBENCH else ():
        theirs, _ = run([str(GENDERBENCH), "-c", ITEMS, str(items)])
        what = f"vs GenderBench making {items:,} items, per item"
        results.append(compared("compile", what, prompts, ours, theirs, per="cpu_seconds", other_size=items))
    return results


def compiled(home: Path) -> tuple[Cost, Path, int]:
    """Compile the full HiringAn under `home`; returns its cost, its folder and its number of prompts."""
    run([*BATCHBENCH, "data", "pull", "names", "--home", str(home), "--quiet"])
    ours, output = run([*BATCHBENCH, "compile", "hiring_an", "--home", str(home), "--json", "--quiet"])
    (document,) = json.loads(output)
    return ours, Path(document["manifest"]), document["prompts"]
