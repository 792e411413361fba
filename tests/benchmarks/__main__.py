"""`python -m tests.benchmarks [STAGE]`: how fast each stage is, as ratios measured in one run."""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

import msgspec
import polars as pl

from tests.benchmarks.analyze import analyze
from tests.benchmarks.compile import compile

STAGES = {"compile": compile, "analyze": analyze}


def main() -> int:
    """Measure the stages named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"any of {', '.join(STAGES)}")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = []
    for stage in args.stages or STAGES:
        with tempfile.TemporaryDirectory() as home:
            results += STAGES[stage](Path(home))
    machine = {
        "python": platform.python_version(),
        "polars": pl.__version__,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    if args.json:
        sys.stdout.buffer.write(msgspec.json.encode({"machine": machine, "results": results}) + b"\n")
        return 0
    sys.stdout.write(f"{machine}\n")
    for result in results:
        sys.stdout.write(
            f"{result.what}: {result.ratio}x  ({result.ours.seconds} s, {result.ours.cpu_seconds} CPU s, "
            f"{result.ours.peak_mb} MB; floor {result.floor_seconds} s)\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
