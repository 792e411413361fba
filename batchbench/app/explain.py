"""Everything that is known about one request."""

import re
from pathlib import Path

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from batchbench.analyze.labelled_answers import label_answers
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, UsageError
from batchbench.probes import load_probe
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs import results
from batchbench.runs.folder import check_prompts, run_folders
from batchbench.runs.journal import BatchRecord
from batchbench.runs.results import answer_files
from batchbench.runs.view import RunView, view_run


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its prompt, the batches that contained it, and its answer. The last three are unset before that."""

    run: str
    prompt: str
    design: dict[str, object]
    shard: str
    batch: str
    attempts: list[str]
    answer: dict[str, object] | str  # a text: why there is no answer
    label: str | UnsetType | None = UNSET
    cost: str | UnsetType | None = UNSET
    raw: list[str] | UnsetType = UNSET  # the provider's lines


def explain(custom_id: str, store: Store) -> Explanation:
    """Explain the request with this custom id: nonce, row, repetition."""
    parts = re.fullmatch(r"([^-]+)-(\d{1,10})-(\d{1,10})", custom_id)
    if parts is None:
        raise UsageError(f"{custom_id!r} is not a custom id, such as 7c7ed463f1-42-0")
    for folder in run_folders(store):
        view = view_run(store, folder)
        if batch := view.state.batches.get(parts[1]):
            return _explained(view, batch, int(parts[2]), int(parts[3]))
    raise UsageError(f"no run has a batch {parts[1]!r}: see `batchbench status`")


def _explained(view: RunView, batch: BatchRecord, row: int, rep: int) -> Explanation:
    manifest, state = view.manifest, view.state
    if manifest is None:
        raise BatchbenchError(f"{view.manifest_folder} does not exist: compile it again")
    check_prompts(state, view.manifest_folder, manifest)
    shard = next((shard for shard in manifest.shards if shard.first <= row < shard.first + shard.rows), None)
    if shard is None or rep != batch.rep or not _carries(batch, row):
        raise UsageError(f"batch {batch.nonce} has no row {row} with repetition {rep}")
    rows = pl.read_parquet(view.manifest_folder / shard.file, glob=False)[row - shard.first]
    design = rows.row(0, named=True)
    others = [other for other in state.batches.values() if other.rep == rep and _carries(other, row)]
    found = Explanation(
        run=str(view.folder),
        prompt=design.pop("prompt"),
        design=design,
        shard=shard.file,
        batch=f"{batch.remote or batch.file or 'none'} ({batch.state})",
        attempts=[f"{other.nonce} ({other.state})" for other in others],
        answer="none yet",
    )
    return found if batch.stored is None else _answered(found, view, batch, rows, load_probe(manifest.probe))


def _carries(batch: BatchRecord, row: int) -> bool:
    return any(start <= row < stop for start, stop in batch.ranges)


def _answered(
    found: Explanation, view: RunView, batch: BatchRecord, rows: pl.DataFrame, probe: Probe[Params]
) -> Explanation:
    """The explanation with what a stored batch says about its row."""
    row, folder = rows["id"][0], view.folder
    answers = pl.concat(pl.read_parquet(path, glob=False) for path in answer_files(folder, batch))
    answers = answers.filter(pl.col("id") == row)
    kept = answers.row(0, named=True) if answers.height else {}
    rates = batch.rates
    label = None
    if answers.height:
        asked = rows.with_columns(answers.select("text", "logprobs", "outcome").get_columns())
        label = label_answers(asked.lazy(), probe, "id").collect()["label"][0] or "undetected"
    return msgspec.structs.replace(
        found,
        answer=kept or _why_none(batch, row),
        label=label,
        cost=f"{rates.cost(kept['input_tokens'], kept['output_tokens'])} micro-dollars" if rates and kept else None,
        raw=_raw_lines(folder, batch, row),
    )


def _raw_lines(folder: Path, batch: BatchRecord, row: int) -> list[str]:
    custom_id = f'"{batch.nonce}-{row}-{batch.rep}"'.encode()
    return [
        line.decode("utf-8", "replace")
        for part in (batch.stored.parts if batch.stored else [])
        if part.file.startswith("raw/")
        for line in results.lines(folder / part.file)
        if custom_id in line
    ]


def _why_none(batch: BatchRecord, row: int) -> str:
    if batch.stored is not None and any(start <= row < stop for start, stop in batch.stored.cut_off):
        return f"none; a limit of {batch.max_tokens} tokens cut it off, so it is asked again with the full limit"
    lost = batch.stored is not None and any(start <= row < stop for start, stop in batch.stored.missing)
    held = batch.stored is not None and any(start <= row < stop for start, stop in batch.stored.held)
    if held:
        return "none; it was refused or failed, and is asked again"
    return "missing, maybe paid for" if lost else "none; the provider did not process it"
