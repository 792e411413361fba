"""What runs would ask and cost. Nothing is asked."""

from typing import NamedTuple

import msgspec

from batchbench.app.contact import price
from batchbench.app.plan import PlannedRun, chosen, compile_probe, make_target, plan_run, provider_of
from batchbench.app.requests import Options, Selection, Voice
from batchbench.compile.manifest import prompt_bytes
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, DataError
from batchbench.providers import prices
from batchbench.runs.folder import read_state
from batchbench.runs.results import outcomes


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
            entries.append(estimate_run(plan_run(item, asked, options), store))
    return Estimates(entries, list(errors.values()))


def estimate_run(run: PlannedRun, store: Store) -> CostEstimate:
    """What one run would still ask and cost."""
    item, asked, rows = run.compiled, run.target, run.rows
    rates = price(run.options, store, asked)
    folder = store.cache / item.folder.name / asked.slug
    requests = rows * run.options.repetitions
    if (folder / "journal").exists():
        requests -= outcomes(folder, read_state(folder), rows, run.options.repetitions).total()
    mean = prompt_bytes(item.folder, item.manifest, rows).mean
    tokens_in = money.likely_input_tokens(requests, mean)
    tokens_out = requests * min(item.probe.typical_tokens, asked.max_tokens)
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
        worst_usd=requests * rates.bound(round(mean), asked.max_tokens) / money.MILLION,
        prices=rates.source,
        settings=run.settings,
    )
