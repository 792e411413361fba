"""Prices per model: a dated snapshot, generated from genai-prices. A price that is not in it is not guessed."""

import difflib
import re
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import msgspec

from batchbench.core.money import Price, Rate
from batchbench.errors import DataError, UsageError
from batchbench.providers.families import unaskable

PACKAGE = "genai-prices"
EMULATOR = Price(input=75_000, output=300_000, source="emulator")  # what `batchbench emulate` bills by default


class ModelPrices(msgspec.Struct, frozen=True):
    """One model's prices in micro-dollars per million tokens; a batch price of None means that it has none."""

    input: Rate
    output: Rate
    batch_input: Rate | None = None
    batch_output: Rate | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The price table, with its source and the date on which it was read; the prices in it may be older."""

    source: str
    date: str
    models: dict[str, ModelPrices]  # provider:model


def snapshot(refreshed: Path | None = None) -> Snapshot:
    """The refreshed price table if there is one, else the table of this version of batchbench."""
    if refreshed is None or not refreshed.exists():
        return msgspec.json.decode(
            resources.files("batchbench.providers").joinpath("prices.json").read_bytes(), type=Snapshot
        )
    try:
        return msgspec.json.decode(refreshed.read_bytes(), type=Snapshot)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{refreshed} is damaged ({error}): remove it, or run `batchbench prices refresh`") from None


def find(table: Snapshot, provider: str, model: str) -> ModelPrices | None:
    """A model's row; a dated version of a model costs the same as the model."""
    undated = re.sub(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$", "", model)
    return table.models.get(f"{provider}:{model}") or table.models.get(f"{provider}:{undated}")


def batch_price(table: Snapshot, provider: str, model: str) -> Price:
    """The batch price of a model; raises UsageError if it is not known."""
    row = find(table, provider, model)
    advice = "pass --price IN,OUT in dollars per million tokens"
    if row is None:
        close = difflib.get_close_matches(model.lower(), known_models(table, provider), n=1)
        hint = f"did you mean {provider}:{close[0]}? If not, {advice}" if close else advice
        raise UsageError(f"no price is known for {provider}:{model}: {hint}")
    if row.batch_input is None or row.batch_output is None:
        raise UsageError(f"{provider}:{model} has no batch price: {advice}")
    return Price(input=row.batch_input, output=row.batch_output, source=f"{table.source}, read {table.date}")


def known_models(table: Snapshot, provider: str) -> list[str]:
    """The models of a provider that can be asked in a batch."""
    askable = []
    for name, row in table.models.items():
        owner, _, model = name.partition(":")
        if owner == provider and row.batch_input is not None and unaskable(provider, model) is None:
            askable.append(model)
    return askable


def single_call_price(table: Snapshot, provider: str, model: str) -> Price | None:
    """The price of single calls; None if it is not known."""
    row = find(table, provider, model)
    return Price(input=row.input, output=row.output, source=f"{table.source}, read {table.date}") if row else None


def named_price(table: Snapshot, model: str) -> Price | None:
    """The price of single calls of a model with this name at any provider; None if no provider has one."""
    found = (single_call_price(table, provider, model) for provider in ("openai", "anthropic"))
    return next(filter(None, found), None)


def generate(date: str, known: Snapshot) -> Snapshot:
    """The price table of the installed version of genai-prices; raises UsageError if `known` is newer.

    The same version has the same prices, so it keeps the date on which it was first read.
    """
    try:
        from genai_prices import Usage, calc_price, data_snapshot
    except ImportError:
        raise UsageError(f"new prices come from the package {PACKAGE}: pip install -U {PACKAGE}") from None

    source = f"{PACKAGE} {version(PACKAGE)}"
    read = date_read(source, date, known)
    models: dict[str, ModelPrices] = {}
    for provider in data_snapshot.get_snapshot().providers:
        if provider.id not in ("openai", "anthropic"):
            continue
        for model in provider.models:
            if model.id.startswith("ft:") or unaskable(provider.id, model.id):
                continue  # a family of models, or nothing that can be asked
            usage = Usage(input_tokens=1000, output_tokens=1000)  # more might be priced as a long prompt
            single = calc_price(usage, model.id, provider_id=provider.id)
            row = ModelPrices(int(single.input_price * 1_000_000_000), int(single.output_price * 1_000_000_000))
            # For a model without a batch variant, calc_price returns the single-call price, so check for the variant.
            if any(dict(variant.when).get("processing") == "batch" for variant in model.price_variants or []):
                batched = calc_price(usage, model.id, provider_id=provider.id, price_context={"processing": "batch"})
                amounts = int(batched.input_price * 1_000_000_000), int(batched.output_price * 1_000_000_000)
                row = ModelPrices(row.input, row.output, *amounts)
            models[f"{provider.id}:{model.id}"] = row
    priced = {name: row for name, row in sorted(models.items()) if row.input or row.output}
    return Snapshot(source, read, priced)


def date_read(source: str, today: str, known: Snapshot) -> str:
    """The day on which prices of this source were first read; raises UsageError if the known prices are newer."""
    if source == known.source:
        return known.date
    if _version(source) < _version(known.source):
        raise UsageError(f"{source} is older than the prices in use ({known.source}): pip install -U {PACKAGE}")
    return today


def _version(source: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", source)]
