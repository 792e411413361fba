"""compile: the full HiringAn against polars writing the same finished column of text."""

import json
import sys
from pathlib import Path

import msgspec

from tests.benchmarks.measure import Cost, run

# Polars writing the finished text: to the same files one after the other, and all at once to a single file.
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


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison; `ratio` is ours over the floor, both measured in this run."""

    what: str
    prompts: int
    ours: Cost
    floor_seconds: float
    ratio: float


def compile(home: Path) -> list[Result]:
    """Compile the full HiringAn into `home`, then let polars write its text once more."""
    batchbench = [sys.executable, "-m", "batchbench"]
    run([*batchbench, "data", "pull", "names", "--home", str(home), "--quiet"])
    ours, output = run([*batchbench, "compile", "hiring_an", "--home", str(home), "--json", "--quiet"])
    (compiled,) = json.loads(output)
    shards = sorted(Path(compiled["manifest"]).glob("*.parquet"))
    (home / "floor").mkdir()
    _, spent = run([sys.executable, "-c", FLOOR, str(home / "floor"), *map(str, shards)])
    floors = dict(zip(("to the same files", "to one file, all at once"), map(float, spent.split()), strict=True))
    return [
        Result(
            what=f"hiring_an, all items, vs polars writing the finished text {how}",
            prompts=compiled["prompts"],
            ours=ours,
            floor_seconds=round(floor, 2),
            ratio=round(ours.seconds / floor, 2),
        )
        for how, floor in floors.items()
    ]
