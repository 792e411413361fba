"""Read and label the answers of a run. Answer texts are kept in memory only while they are labelled."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from batchbench.analyze import examples
from batchbench.analyze.labelled_answers import (
    ANSWER_COLUMNS,
    LabelledAnswers,
    Origin,
    careful_columns,
    input_columns,
    label_answers,
)
from batchbench.compile.manifest import Manifest, checked_shards
from batchbench.probes.kit.probe import Params, Probe


class RunSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a manifest a run asks: its first `items` items, each prompt `repetitions` times."""

    items: int
    repetitions: int


def label_run(
    probe: Probe[Params], folder: Path, manifest: Manifest, answers: pl.LazyFrame, size: RunSize, origin: Origin
) -> LabelledAnswers:
    """Label the `answers` (one row for each id and rep) to the manifest in `folder`, except those outside of `size`."""
    strata = [name for name in probe.strata if name != probe.inner]
    inputs = [name for name in [*input_columns(probe), *careful_columns(probe)] if name not in ANSWER_COLUMNS]
    inner = [probe.inner] if probe.inner else []
    columns = list(dict.fromkeys([*strata, *probe.covariates, *inputs, *inner]))
    files = checked_shards(folder, manifest)
    rows = pl.scan_parquet(files, glob=False).select("id", *columns).head(size.items * manifest.variants).collect()
    wanted = answers.filter(pl.col("id") < rows.height, pl.col("rep") < size.repetitions)
    if inputs:
        wanted = wanted.join(rows.lazy().select("id", *inputs), on="id")
    item = (pl.col("id") // manifest.variants).alias("item")
    variant = (pl.col("id") % manifest.variants).cast(pl.UInt8).alias("variant")
    labelled = label_answers(wanted, probe, "id", item, variant, "rep").collect(engine="streaming")
    return LabelledAnswers(
        origin=msgspec.structs.replace(origin, answers=_digest(labelled, probe.scores)),
        answers=labelled.with_columns(rows[name].gather(labelled["id"]) for name in inner).drop("id"),
        design=rows.select(*strata, *probe.covariates).gather_every(manifest.variants),
        asked=rows.group_by(probe.strata).agg(asked=pl.len().cast(pl.Int64) * size.repetitions),
        examples=examples.pick(labelled, manifest.variants, answers, files),
        models=_models(wanted),
    )


def _models(answers: pl.LazyFrame) -> dict[str, int]:
    if "model" not in answers.collect_schema():
        return {}
    counts = answers.filter(pl.col("model").is_not_null()).group_by("model").len()
    return dict(counts.sort("len", "model", descending=[True, False]).collect(engine="streaming").rows())


def _digest(labelled: pl.DataFrame, scores: Iterable[str]) -> str:
    """A digest that does not depend on the order of rows, and so not on batches and interruptions."""
    id, rep = pl.col("id").cast(pl.UInt64), pl.col("rep").cast(pl.UInt64)
    outcome, label = (pl.col(name).to_physical().cast(pl.UInt64).fill_null(255) for name in ("outcome", "label"))
    packed = labelled.select(id * (1 << 32) + rep * (1 << 16) + outcome * (1 << 8) + label).to_series()
    digest = hashlib.sha256(np.sort(packed.to_numpy()).data)
    for score in scores:
        digest.update(labelled[score].gather(packed.arg_sort()).to_numpy().data)
    return digest.hexdigest()
