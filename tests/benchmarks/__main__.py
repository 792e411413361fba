"""`python -m tests.benchmarks [STAGE...]`: how fast each stage is, as ratios measured in one run."""

import argparse
import datetime
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import msgspec

from tests.benchmarks.analyze import analyze
from tests.benchmarks.chat import chat
from tests.benchmarks.compile import compile
from tests.benchmarks.growth import curves, growth
from tests.benchmarks.lines import lines
from tests.benchmarks.measure import Result
from tests.benchmarks.mlm import mlm
from tests.benchmarks.report import page, plot
from tests.benchmarks.run import run

STAGES = {
    "compile": compile,
    "lines": lines,
    "chat": chat,
    "mlm": mlm,
    "analyze": analyze,
    "run": run,
    "growth": growth,
}
HERE = Path(__file__).parent


def main() -> int:
    """Measure the named stages, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"any of {', '.join(STAGES)}")
    parser.add_argument("--full", action="store_true", help="every size, 5,424,000 rows among them (about 25 minutes)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md and growth.svg beside this program")
    args = parser.parse_args()
    results: list[Result] = []
    machine: dict[str, object] = {}
    for stage in args.stages or STAGES:
        if stage not in STAGES:
            parser.error(f"unknown stage {stage!r}: any of {', '.join(STAGES)}")
        sys.stderr.write(f"{stage} ...\n")
        with tempfile.TemporaryDirectory() as home:
            results += STAGES[stage](Path(home), full=args.full)
        machine = about()
        if args.write:  # after each stage, so that a failing stage does not lose the results of the others
            (HERE / "RESULTS.md").write_text(page(machine, results))
            if found := curves(results):
                (HERE / "growth.svg").write_text(plot(found))
    if args.json:
        sys.stdout.buffer.write(msgspec.json.encode({"machine": machine, "results": results}) + b"\n")
    else:
        sys.stdout.write(page(machine, results))
    return 0


def about() -> dict[str, object]:
    """The machine and the versions that the numbers depend on."""
    packages = ("polars", "numpy", "msgspec", "aiohttp")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
        "load at the end": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    sys.exit(main())
