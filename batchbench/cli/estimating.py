"""What `batchbench estimate` does, apart from its options."""

import argparse

import msgspec
import polars as pl

from batchbench import journal, money, prices, runs, targets
from batchbench.cli import output, stages
from batchbench.cli.compiling import Compiled, compiled_or_not
from batchbench.errors import BatchbenchError
from batchbench.store import Store
from batchbench.targets import Target


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
                found.append(_estimated(args, store, item, stages.target(args, name, item.probe, item.params)))
    if args.json:
        output.show_json(found)
    else:
        rows = [["PROBE", "MODEL", "REQUESTS", "TOKENS IN", "TOKENS OUT", "BATCH", "SYNC", "WORST CASE"]]
        for entry in found:
            if isinstance(entry, Unavailable):
                rows.append([entry.probe, entry.model, "unavailable", *[""] * 5])
                continue
            amounts = [entry.batch_usd, entry.sync_usd, entry.worst_usd]
            shown = ["unknown" if amount is None else f"${amount:,.4f}" for amount in amounts]
            counts = [f"{count:,}" for count in (entry.requests, entry.input_tokens, entry.output_tokens)]
            rows.append([entry.probe, entry.model, *counts, *shown])
        output.show(output.table(rows))
        output.show("")
        known = [entry for entry in found if isinstance(entry, Estimate)]
        for line in dict.fromkeys(f"prices of {entry.model}: {entry.prices}" for entry in known):
            output.show(line)
    return code


def _estimated(args: argparse.Namespace, store: Store, item: Compiled, target: Target) -> Estimate:
    price = stages.price(args, store, target)
    rows = stages.sample_size(args, item.probe, item.manifest) * item.manifest.variants
    folder = store.cache / item.folder.name / target.slug
    answered = 0
    if (folder / "journal").exists():
        state = journal.replay(runs.read_journal(folder / "journal").events)
        answered = runs.outcomes(folder, state, rows, args.repetitions).total()
    prompts = (
        pl.scan_parquet(item.folder / "*.parquet")
        .filter(pl.col("id") < rows)
        .select(bytes=pl.col("prompt").str.len_bytes().sum().cast(pl.Int64), rows=pl.len())
        .collect()
    )
    size, counted = prompts.row(0)
    requests = rows * args.repetitions - answered
    mean = size / counted if counted else 0.0
    # Measured on the probes' own prompts: about 4.8 bytes to a token, and a chat format's few tokens beside them.
    tokens_in = round(requests * (mean / 4.8 + 7))
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
    )
