"""What `batchbench estimate` does, apart from its options: what a run would ask, and what that may cost."""

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from batchbench.app import contact as stages
from batchbench.app.compile import Compiled, compiled_or_not
from batchbench.cli import output
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError
from batchbench.providers import prices
from batchbench.providers import target as targets
from batchbench.providers.target import Target
from batchbench.runs.answers import outcomes
from batchbench.runs.folder import read_state


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A probe whose data cannot be had, so that nobody can tell what it would ask."""

    probe: str
    model: str
    error: str


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would ask and cost, before anything is asked."""

    probe: str
    model: str
    requests: int  # that are not answered yet
    input_tokens: int  # about
    output_tokens: int  # about
    batch_usd: float
    sync_usd: float | None  # null: no price is known for single calls
    worst_usd: float  # what a budget is held against
    prices: str
    settings: str = ""  # parameters and options that are not the usual ones


def estimate(args: argparse.Namespace) -> int:
    """Count what is missing, and price it; the exit code is that of the first probe that cannot be had."""
    store = output.store(args)
    found: list[Estimate | Unavailable] = []
    code, complaints = 0, set[str]()
    for name in dict.fromkeys(args.models):
        for probe, item in compiled_or_not(args, store, targets.parse(name)[0]):
            if isinstance(item, BatchbenchError):
                code = code or item.exit_code
                found.append(Unavailable(probe=probe, model=name, error=str(item)))
                if probe not in complaints:
                    output.complain(item)
                complaints.add(probe)
            else:
                found.append(estimated(args, store, item, stages.target(args, name, item.probe, item.params)))
    if args.json:
        output.show_json(found)
    else:
        output.show(priced(found))
    return code


def priced(found: Sequence[Estimate | Unavailable]) -> str:
    """Estimates as a table, with what they come to together."""
    known = [entry for entry in found if isinstance(entry, Estimate)]
    rows = [["PROBE", "MODEL", "REQUESTS", "TOKENS IN", "TOKENS OUT", "BATCH", "SYNC", "WORST CASE"]]
    for entry in found:
        if isinstance(entry, Unavailable):
            rows.append([entry.probe, entry.model, "unavailable", *[""] * 5])
        else:
            rows.append([f"{entry.probe} {entry.settings}".rstrip(), entry.model, *_figures([entry])])
    if len(known) > 1:
        rows.append(["all", "", *_figures(known)])
    sources: dict[str, dict[str, None]] = {}
    for entry in known:
        sources.setdefault(entry.prices, {})[entry.model] = None
    told = [f"prices of {', '.join(models)}: {source}" for source, models in sources.items()]
    return "\n".join([output.table(rows), "", *told])


def _figures(found: Sequence[Estimate]) -> list[str]:
    counts = [sum(getattr(one, name) for one in found) for name in ("requests", "input_tokens", "output_tokens")]
    amounts = [[getattr(one, name) for one in found] for name in ("batch_usd", "sync_usd", "worst_usd")]
    shown = ["unknown" if None in column else f"${sum(column):,.4f}" for column in amounts]
    return [*(f"{count:,}" for count in counts), *shown]


def estimated(args: argparse.Namespace, store: Store, item: Compiled, target: Target) -> Estimate:
    """What one run would still ask, and cost."""
    price = stages.price(args, store, target)
    rows = stages.sample_size(args, item.probe, item.manifest) * item.manifest.variants
    folder = store.cache / item.folder.name / target.slug
    answered = 0
    if (folder / "journal").exists():
        state = read_state(folder)
        answered = outcomes(folder, state, rows, args.repetitions).total()
    requests = rows * args.repetitions - answered
    mean = prompt_bytes(item, rows).mean
    tokens_in = money.likely_input_tokens(requests, mean)
    tokens_out = requests * min(item.probe.typical_tokens, target.max_tokens)
    sync = prices.sync(prices.snapshot(store.prices), target.provider, target.model) if not target.emulated else None
    return Estimate(
        probe=item.probe.name,
        model=target.name,
        requests=requests,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        batch_usd=price.cost(tokens_in, tokens_out) / money.MILLION,
        sync_usd=None if sync is None else sync.cost(tokens_in, tokens_out) / money.MILLION,
        worst_usd=requests * price.bound(round(mean), target.max_tokens) / money.MILLION,
        prices=price.source,
        settings=settings(item, target),
    )


class PromptBytes(NamedTuple):
    """How long prompts are."""

    mean: float
    most: int


def prompt_bytes(item: Compiled, rows: int) -> PromptBytes:
    """The length of the first `rows` prompts."""
    return _measured(tuple(item.folder / shard.file for shard in item.manifest.shards if shard.first < rows), rows)


@cache  # of a probe that is asked of many models
def _measured(files: tuple[Path, ...], rows: int) -> PromptBytes:
    size = pl.col("prompt").str.len_bytes()
    asked = pl.scan_parquet(list(files), glob=False).filter(pl.col("id") < rows)
    found = asked.select(mean=size.mean(), most=size.max()).collect()
    return PromptBytes(*found.row(0))


def named(item: Compiled, target: Target) -> str:
    """A run, for people."""
    return " ".join(filter(None, [item.probe.name, settings(item, target), target.name]))


def settings(item: Compiled, target: Target) -> str:
    """What tells a run from others of the same probe and model."""
    usual = {**msgspec.structs.asdict(item.probe.params()), "max_tokens": item.probe.max_tokens}
    own = {name: value for name, value in msgspec.structs.asdict(item.params).items() if name != "data"}
    own |= {name: getattr(target, name) for name in ("max_tokens", "temperature", "top_p", "system")}
    if target.top_logprobs is not None:
        del own["max_tokens"]  # the form says it: one token, and what else it could have been
    return " ".join(f"{name}={value}" for name, value in own.items() if value != usual.get(name))
