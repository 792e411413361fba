"""compile: the full HiringAn against polars writing the same finished column of text."""

import json
import sys
from pathlib import Path

import msgspec

from tests.benchmarks.measure import Cost, run

FLOOR = """
import sys, time
import polars as pl
text = pl.concat([pl.read_parquet(file, columns=["prompt"]) for file in sys.argv[2:]])
started = time.monotonic()
text.write_parquet(sys.argv[1], compression="zstd", compression_level=1, statistics=False, row_group_size=50_000)
print(time.monotonic() - started)
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
    _, spent = run([sys.executable, "-c", FLOOR, str(home / "floor.parquet"), *map(str, shards)])
    floor = round(float(spent), 2)
    return [
        Result(
            what="hiring_an, all items, vs polars writing the finished text",
            prompts=compiled["prompts"],
            ours=ours,
            floor_seconds=floor,
            ratio=round(ours.seconds / floor, 2),
        )
    ]
