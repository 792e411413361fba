"""growth: each stage at growing sizes; an exponent of 1 means that twice the rows take twice the time."""

import math
import os
import signal
import sys
from pathlib import Path

import msgspec

from batchbench import emulator
from tests.benchmarks.analyze import OURS as ANALYZE
from tests.benchmarks.analyze import write_answers
from tests.benchmarks.compile import BATCHBENCH, compiled
from tests.benchmarks.measure import Cost, Result, compared, run

# HiringAn with fewer names: 6,780 prompts for each.
COMPILE = """
import sys
from pathlib import Path
from batchbench.compile.data_cache import load_table
from batchbench.probes import load_probe
from batchbench.compile.compiler import compile
from batchbench.core.store import Store
home, names = Path(sys.argv[1]), int(sys.argv[2])
store, probe = Store(home), load_probe("hiring_an")
loaded = {name: load_table(store, name, sample=False, note=print) for name in probe.datasets}
tables, sources = ({name: pair[place] for name, pair in loaded.items()} for place in (0, 1))
tables["names"] = tables["names"].gather_every(800 // names).head(names)
compile(probe, probe.params(), tables, sources, Store(home / f"{names}"), lambda _, __: None)
"""
NAMES = (2, 15, 148, 800)


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """CPU seconds of one stage at several sizes without the start of the process, and the fitted exponent."""

    stage: str
    sizes: list[int]
    cpu_seconds: list[float]
    exponent: float


def growth(home: Path, *, full: bool) -> list[Result]:
    """Every stage at 10,000, 100,000, 1,000,000 and, in full, 5,424,000."""
    _, folder, prompts = compiled(home)
    answers = write_answers(home, folder)
    sizes = [10_000, 100_000, 1_000_000, prompts] if full else [10_000, 100_000, 1_000_000]
    results = []
    for names in NAMES[: len(sizes)]:
        cost, _ = run([sys.executable, "-c", COMPILE, str(home), str(names)])
        results.append(compared("growth of compile", f"{names} names", names * 6780, cost))
    for size in sizes:
        cost, _ = run([sys.executable, "-c", ANALYZE, str(home), str(folder), answers, str(size)])
        results.append(compared("growth of analyze", "1,000 replicates", size, cost))
    for size in sizes:
        words = ["run", "hiring_an", "--model", f"sim:planted/0.{size}", "--sample-k", str(size), "--json", "--quiet"]
        cost, _ = run([*BATCHBENCH, *words, "--home", str(home)])
        results.append(compared("growth of run", "the client", size, cost))
    if server := emulator.find(home / "cache" / "emulator"):
        os.kill(server.pid, signal.SIGTERM)
    return results


def curves(results: list[Result]) -> list[Curve]:
    """The growth in `results`, stage by stage."""
    stages = dict.fromkeys(result.stage for result in results if result.stage.startswith("growth"))
    return [_curve(stage, [result for result in results if result.stage == stage]) for stage in stages]


def _curve(stage: str, results: list[Result]) -> Curve:
    points = [(result.size, _cpu(result.ours)) for result in results]
    start = points[0][1]  # at the smallest size, the start of the process dominates
    xs = [math.log(size) for size, _ in points[1:]]
    ys = [math.log(max(cpu - start, 0.01)) for _, cpu in points[1:]]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
    return Curve(
        stage=stage.removeprefix("growth of "),
        sizes=[size for size, _ in points],
        cpu_seconds=[cpu for _, cpu in points],
        exponent=round(slope, 2),
    )


def _cpu(cost: Cost) -> float:
    assert cost.cpu_seconds is not None
    return cost.cpu_seconds
