"""What runs would ask and cost. Nothing is asked."""

from typing import NamedTuple

import msgspec

from batchbench.app.contact import price
from batchbench.app.plan import PlannedRun, chosen, compile_probe, make_target, plan_run, provider_of, run_folder
from batchbench.app.requests import Options, Selection, Voice
from batchbench.compile.manifest import prompt_bytes
from batchbench.core import money
from batchbench.core.money import Price
from batchbench.core.store import Store
from batchbench.dispatch.pilot import pilot_cost
from batchbench.errors import BatchbenchError, DataError
from batchbench.providers import families, load_provider, prices
from batchbench.runs.folder import read_state
from batchbench.runs.journal import RunState
from batchbench.runs.results import outcomes
from batchbench.runs.row_states import count_rows, row_states


class CostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would still ask and cost."""

    probe: str
    model: str
    requests: int  # without an answer yet
    input_tokens: int  # about
    output_tokens: int  # about
    batch_usd: float
    sync_usd: float | None  # None: no price is known for single calls
    worst_usd: float  # what --budget is compared with
    prices: str
    settings: str = ""  # parameters and options that are not the defaults
    priced: bool = True  # False: the server has no price, so the amounts are 0


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A probe without available data, so its cost is unknown."""

    probe: str
    model: str
    error: str


class Estimates(NamedTuple):
    """An entry for each run, and why some are unavailable: one error per probe."""

    entries: list[CostEstimate | Unavailable]
    errors: list[BatchbenchError]


def estimate(selection: Selection, options: Options, store: Store, voice: Voice) -> Estimates:
    """The estimated cost of each probe with each model; a probe without available data does not stop the others."""
    entries: list[CostEstimate | Unavailable] = []
    errors: dict[str, BatchbenchError] = {}
    for name in dict.fromkeys(selection.models):
        for probe, params in chosen(selection, provider_of(name)):
            try:
                item = compile_probe(probe, params, store, voice)
            except DataError as error:
                errors.setdefault(probe.name, error)
                entries.append(Unavailable(probe=probe.name, model=name, error=str(error)))
                continue
            asked = make_target(name, options, probe, params)
            entries.append(estimate_run(plan_run(item, asked, options, store), store))
    return Estimates(entries, list(errors.values()))


def estimate_new(run: PlannedRun, store: Store, *, rebuy_missing: bool, again: bool) -> CostEstimate:
    """What one run would buy from now on: without requests that are in a batch already."""
    folder, size = run_folder(run, store), (run.rows, run.options.repetitions)
    state = read_state(folder) if (folder / "journal").exists() else RunState()
    return estimate_run(run, store, count_rows(row_states(state, *size, rebuy_missing=rebuy_missing, again=again)).todo)


def estimate_run(run: PlannedRun, store: Store, requests: int | None = None) -> CostEstimate:
    """What one run would still ask and cost; `requests` if they are not all that have no answer."""
    item, asked, rows = run.compiled, run.target, run.rows
    rates = price(run.options, store, asked)
    folder = run_folder(run, store)
    if requests is None:
        requests = rows * run.options.repetitions
        if (folder / "journal").exists():
            requests -= outcomes(folder, read_state(folder), rows, run.options.repetitions).total()
    tokens_in, tokens_out = likely_tokens(run, requests)
    sync = (
        None if asked.emulated else prices.single_call_price(prices.snapshot(store.prices), asked.provider, asked.model)
    )
    return CostEstimate(
        probe=item.probe.name,
        model=asked.name,
        requests=requests,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        batch_usd=rates.cost(tokens_in, tokens_out) / money.MILLION,
        sync_usd=None if sync is None else sync.cost(tokens_in, tokens_out) / money.MILLION,
        worst_usd=_worst(run, requests, rates) / money.MILLION,
        prices=rates.source,
        settings=run.settings,
        priced=rates.priced,
    )


def _worst(run: PlannedRun, requests: int, rates: Price) -> int:
    """Micro-dollars, an upper bound for the requests of a run and its pilot."""
    row_cost = rates.bound(round(_mean_bytes(run)), run.target.max_tokens)
    if not requests or run.target.emulated:
        return requests * row_cost
    half_price = load_provider(run.target.provider).half_price
    return requests * row_cost + pilot_cost(run.rows, row_cost, half_price=half_price)


def likely_tokens(run: PlannedRun, requests: int) -> tuple[int, int]:
    """About how many tokens this many requests of a run have, in and out, with thinking."""
    asked = run.target
    tokenizer = families.find(asked.provider, asked.model).tokenizer
    thoughts = asked.resolved_thinking().typical
    tokens_out = min(run.compiled.probe.typical_tokens + thoughts, asked.max_tokens)
    return round(money.likely_input_tokens(requests, _mean_bytes(run)) * tokenizer), requests * tokens_out


def _mean_bytes(run: PlannedRun) -> float:
    """The mean length of what a request adds to the input."""
    prompts = prompt_bytes(run.compiled.folder, run.compiled.manifest, run.rows).mean
    return prompts + run.target.other_bytes
