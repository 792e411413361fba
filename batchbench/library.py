"""The stages for Python programs, each returning polars frames; `import batchbench as bb` offers them.

Files are the state here, too: what the command line has asked is there for Python, and the other way round. Calling
something again does only what is missing.
"""

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import polars as pl

from batchbench.analyze.analysis import Analysis, analyze, write_analysis
from batchbench.analyze.labelled_answers import label_answers, label_expression
from batchbench.app import contact as stages
from batchbench.app import estimate as estimating
from batchbench.app import run as running
from batchbench.app import sweep as sweeping
from batchbench.app import sweep_file as sweepfile
from batchbench.app.compile import Compiled, compiled
from batchbench.cli import options, output
from batchbench.cli.commands.analyze import answers_of
from batchbench.compile.manifest import checked_shards
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import UsageError, unknown
from batchbench.providers import target as targets
from batchbench.runs.answers import read_answers
from batchbench.runs.folder import find_run, read_state

Names = str | Sequence[str]
Values = Mapping[str, str | int | float]
T = TypeVar("T")


class Swept(NamedTuple):
    """A sweep: its page, and a row for each run."""

    report: Path | None
    runs: pl.DataFrame


def prompts(probe: str, *, params: Values | None = None, home: Path | str | None = None) -> pl.LazyFrame:
    """Every prompt of a probe with the design it was made from, compiled if it is not yet."""
    args = _args(probe, (), params, home)
    (item,) = compiled(args, output.store(args))
    return pl.scan_parquet(checked_shards(item.folder, item.manifest), glob=False)


def estimate(
    probe: Names, model: Names, *, params: Values | None = None, home: Path | str | None = None, **how: object
) -> pl.DataFrame:
    """What asking would cost: a row for each probe and model. `how` is as for `run`."""
    args = _args(probe, model, params, home, how)
    store = output.store(args)
    found = [estimating.estimated(args, store, item, target) for item, target in stages.planned(args, store)]
    return pl.DataFrame(list(map(msgspec.structs.asdict, found)))


def run(
    probe: Names,
    model: Names,
    *,
    budget: float | str | None = None,
    params: Values | None = None,
    home: Path | str | None = None,
    quiet: bool = True,
    **how: object,
) -> pl.DataFrame:
    """Ask models, or go on asking; a row for each run, whose `error` says what was in its way, or is null.

    `how` is any option of `batchbench run` that has a value: sample_k, repetitions, temperature, price, base_url ...
    """
    args = _args(probe, model, params, home, how)
    args.quiet = quiet
    store = output.store(args)
    limit = None if budget is None else money.parse_budget(str(budget))
    jobs = [running.job(args, store, item, target, limit) for item, target in stages.planned(args, store)]
    finished = _apart(lambda: running.ask(args, store, jobs, limit))
    return pl.DataFrame([msgspec.structs.asdict(report) for report, _ in finished])


def answers(probe: str, model: str, *, params: Values | None = None, home: Path | str | None = None) -> pl.DataFrame:
    """The answers of a run, each with its prompt, the design of it, and the label that it is read as (null: none)."""
    args = _args(probe, model, params, home)
    store = output.store(args)
    (item,) = compiled(args, store, targets.parse(model)[0])
    folder = find_run(store, item.folder.name, model)
    state = read_state(folder)
    rows = pl.scan_parquet(checked_shards(item.folder, item.manifest), glob=False)
    joined = read_answers(folder, state).join(rows, on="id")
    return label_answers(joined, item.probe, pl.exclude("outcome")).sort("id", "rep").collect()


def metrics(
    probe: Names,
    model: Names,
    *,
    replicates: int = 1000,
    seed: int = 0,
    params: Values | None = None,
    home: Path | str | None = None,
) -> pl.DataFrame:
    """Every metric of runs, also of unfinished ones, with standard error, intervals and mark."""
    args = _args(probe, model, params, home)
    store = output.store(args)
    rows = [
        {"probe": item.probe.name, "model": target.name, "metric": metric, **msgspec.structs.asdict(value)}
        for item, target in stages.planned(args, store)
        for metric, value in _analysis(store, item, target.name, replicates, seed).metrics.items()
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def sweep(
    file: Path | str | None = None,
    *,
    budget: float | str | None = None,
    yes: bool = False,
    detach: bool = False,
    report: Path | str | None = None,
    home: Path | str | None = None,
    quiet: bool = True,
) -> Swept:
    """Everything at once: what a sweep file says, or every probe with simulated models; see `batchbench sweep`."""
    args = _args((), (), None, home)
    args.quiet, args.yes, args.detach = quiet, yes, detach
    args.file = None if file is None else Path(file)
    args.report = None if report is None else Path(report)
    args.budget = None if budget is None else str(budget)
    done = _apart(lambda: sweeping.swept(args, output.store(args)))
    return Swept(done.report, pl.DataFrame([msgspec.structs.asdict(one) for one, _ in done.finished]))


def _analysis(store: Store, item: Compiled, model: str, replicates: int, seed: int) -> Analysis:
    label_expression(item.probe)
    folder = find_run(store, item.folder.name, model)
    labelled = answers_of(folder, item.probe, item.folder, item.manifest, model)
    analysis, cells = analyze(item.probe, item.params, labelled, replicates=replicates, seed=seed)
    write_analysis(analysis, cells, folder, store)
    return analysis


def _args(
    probe: Names, model: Names, params: Values | None, home: Path | str | None, how: Mapping[str, object] | None = None
) -> argparse.Namespace:
    """What the same words on the command line would be parsed to."""
    args = options.defaults()
    known = sorted(set(sweepfile.CHECKS) & set(vars(args)) - {"budget"})
    for name, value in (how or {}).items():
        if name not in known:
            raise unknown("option", name, known)
        if value is None:
            continue
        try:
            setattr(args, name, sweepfile.CHECKS[name](str(value)))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{name}: {error}") from None
    args.probes = [probe] if isinstance(probe, str) else list(probe)
    args.models = [model] if isinstance(model, str) else list(model)
    args.settings = [f"{name}={value}" for name, value in (params or {}).items()]
    args.home = None if home is None else Path(home)
    args.quiet, args.json = True, False
    return args


def _apart(act: Callable[[], T]) -> T:
    """Do something that has an event loop of its own, also where one is running already, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return act()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()
