"""Compute everything about a run from its bytes again, and report where that differs from its journal.

Nothing is repaired and nothing is trusted: digests are computed, lines are read and costs are added up again.
"""

import hashlib
from pathlib import Path

import msgspec
import polars as pl

from batchbench.compile.manifest import Manifest
from batchbench.core.money import Price
from batchbench.core.store import content
from batchbench.errors import DataError
from batchbench.providers import load_provider
from batchbench.runs import journal
from batchbench.runs.folder import read_journal, read_run
from batchbench.runs.ingest import ingest
from batchbench.runs.journal import BatchRecord, RunState
from batchbench.runs.results import answer_files, file_part


class Finding(msgspec.Struct, frozen=True):
    """One difference."""

    where: str
    what: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one run."""

    run: str
    model: str
    batches: int
    rows: int  # answered rows
    spent: int  # micro-dollars, added up from the usage in the provider's own lines
    findings: list[Finding]


def audit(folder: Path, manifest_folder: Path, manifest: Manifest | None, price: Price | None) -> Audit:
    """Check a run. Without `price`, which its costs were computed from, costs are not checked."""
    found: list[Finding] = []
    target = read_run(folder / "run.json").target
    try:
        written = read_journal(folder / "journal")
    except DataError as error:
        found.append(Finding("journal", str(error)))
        return Audit(run=str(folder), model=target.name, batches=0, rows=0, spent=0, findings=found)
    state = journal.replay(written.events)
    if written.good < (folder / "journal").stat().st_size:
        found.append(Finding("journal", "the last line is torn; the next run cuts it off"))
    found += _check_manifest(manifest_folder, manifest)
    spent = sum(state.passed)
    stored = [batch for batch in state.batches.values() if batch.stored]
    damaged: set[str] = set()
    for batch in stored:
        damage = _check_parts(folder, batch)
        found += damage
        if damage:
            damaged.add(batch.nonce)
        elif price is not None:
            cost, differences = _ingest_again(folder, target.provider, batch, price)
            spent += cost
            found += differences
    rows, duplicates = _check_unique(folder, [batch for batch in stored if batch.nonce not in damaged])
    found += duplicates
    found += _unknown_files(folder, state)
    return Audit(run=str(folder), model=target.name, batches=len(state.batches), rows=rows, spent=spent, findings=found)


def _check_manifest(folder: Path, manifest: Manifest | None) -> list[Finding]:
    if manifest is None:
        return [Finding(str(folder), "the manifest does not exist: compile it again")]
    found = []
    for shard in manifest.shards:
        path = folder / shard.file
        if not path.exists():
            found.append(Finding(str(path), "missing"))
        elif hashlib.sha256(content(path)).hexdigest() != shard.file_sha256:
            found.append(Finding(str(path), "its bytes differ from those that were compiled"))
    return found


def _check_parts(folder: Path, batch: BatchRecord) -> list[Finding]:
    """Check that every sealed file exists with its digest."""
    found = []
    for part in batch.stored.parts if batch.stored else []:
        path = folder / part.file
        if not path.is_file() or path.is_symlink():
            found.append(Finding(part.file, "missing"))
        elif file_part(path, folder) != part:
            found.append(Finding(part.file, "its bytes differ from those that were stored"))
    return found


def _ingest_again(folder: Path, provider: str, batch: BatchRecord, price: Price) -> tuple[int, list[Finding]]:
    """Compute the answers and the cost of a batch from the provider's bytes again."""
    stored = batch.stored
    if stored is None:
        return 0, []
    paths = [folder / part.file for part in stored.parts if part.file.startswith("raw/")]
    ingested = ingest(paths, batch, load_provider(provider), price)
    kept = pl.concat(pl.read_parquet(path, glob=False) for path in answer_files(folder, batch))
    found = []
    if not ingested.answers.sort("id").equals(kept.sort("id")):
        found.append(Finding(f"answers/{batch.nonce}.parquet", "differs from the provider's bytes"))
    if ingested.cost != stored.cost:
        found.append(
            Finding(f"batch {batch.nonce}", f"cost {ingested.cost} micro-dollars, but the journal says {stored.cost}")
        )
    return ingested.cost, found


def _check_unique(folder: Path, stored: list[BatchRecord]) -> tuple[int, list[Finding]]:
    """Check that no row is answered twice; returns how many rows are answered."""
    files = [file for batch in stored for file in answer_files(folder, batch)]
    if not files:
        return 0, []
    rows = pl.scan_parquet(files, glob=False).select("id", "rep").collect()
    extra = rows.height - rows.n_unique()
    return rows.n_unique(), [Finding("answers", f"{extra} rows are answered more than once")] if extra else []


def _unknown_files(folder: Path, state: RunState) -> list[Finding]:
    """Files in a run's folder that batchbench did not write."""
    known = {"run.json", "journal", "lock", "metrics.json", "metrics.parquet", "cells.parquet", "report.html"}
    known |= {part.file for batch in state.batches.values() if batch.stored for part in batch.stored.parts}
    known |= {f"quarantine/{nonce}.jsonl" for nonce in state.batches}
    # Open batches, and rechecked batches with missing rows, may have sealed files that are not in the journal yet.
    waiting = [batch.nonce for batch in state.open()]
    waiting += [batch.nonce for batch in state.batches.values() if batch.stored and batch.stored.missing]
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if name.startswith("spool/"):
            continue  # files of batches that batchbench executed itself; their sealed copies are checked
        if name not in known and not any(nonce in name for nonce in waiting):
            found.append(Finding(name, "batchbench did not write this file"))
    return found
