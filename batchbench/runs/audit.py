"""Re-derive everything about a run from its bytes, and say where that differs from what its journal claims.

Nothing is repaired here and nothing is trusted: digests are computed, lines are read again, money is added up again.
"""

import hashlib
from pathlib import Path

import msgspec
import polars as pl

from batchbench import providers
from batchbench.compile.manifest import Manifest
from batchbench.core.money import Price
from batchbench.core.store import content
from batchbench.errors import DataError
from batchbench.runs import journal
from batchbench.runs.answers import answer_files, file_part
from batchbench.runs.folder import read_journal, read_run
from batchbench.runs.ingest import ingest
from batchbench.runs.journal import BatchRecord, RunState


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be."""

    where: str
    what: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes of a run say."""

    run: str
    model: str
    batches: int
    rows: int  # answers kept, each of another row
    spent: int  # micro-dollars, added up from the usage in the provider's own lines
    findings: list[Finding]


def audit(folder: Path, manifest_folder: Path, manifest: Manifest | None, price: Price | None) -> Audit:
    """Check a run; `price` is what its answers were charged at, and without it money is not added up."""
    found: list[Finding] = []
    about = read_run(folder / "run.json")
    try:
        reading = read_journal(folder / "journal")
    except DataError as error:
        return Audit(
            run=str(folder),
            model=about.target.name,
            batches=0,
            rows=0,
            spent=0,
            findings=[Finding("journal", str(error))],
        )
    state = journal.replay(reading.events)
    if reading.good < (folder / "journal").stat().st_size:
        found.append(Finding("journal", "the last line is torn; the next run cuts it off"))
    found += _manifest(manifest_folder, manifest)
    spent = sum(state.passed)
    stored = [batch for batch in state.batches.values() if batch.stored]
    damaged: set[str] = set()
    for batch in stored:
        damage = _parts(folder, batch)
        found += damage
        if damage:
            damaged.add(batch.nonce)
        elif price is not None:
            cost, wrong = _again(folder, about.target.provider, batch, price)
            spent += cost
            found += wrong
    rows, doubles = _unique(folder, [batch for batch in stored if batch.nonce not in damaged])
    found += doubles
    found += _strangers(folder, state)
    return Audit(
        run=str(folder), model=about.target.name, batches=len(state.batches), rows=rows, spent=spent, findings=found
    )


def _manifest(folder: Path, manifest: Manifest | None) -> list[Finding]:
    if manifest is None:
        return [Finding(str(folder), "the manifest is not there: compile it again")]
    found = []
    for shard in manifest.shards:
        path = folder / shard.file
        if not path.exists():
            found.append(Finding(str(path), "missing"))
        elif hashlib.sha256(content(path)).hexdigest() != shard.file_sha256:
            found.append(Finding(str(path), "its bytes are not those that were compiled"))
    return found


def _parts(folder: Path, batch: BatchRecord) -> list[Finding]:
    """Every sealed file is there, byte for byte."""
    found = []
    for part in batch.stored.parts if batch.stored else []:
        path = folder / part.file
        if not path.is_file() or path.is_symlink():
            found.append(Finding(part.file, "missing"))
        elif file_part(path, folder) != part:
            found.append(Finding(part.file, "its bytes are not those that were stored"))
    return found


def _again(folder: Path, provider: str, batch: BatchRecord, price: Price) -> tuple[int, list[Finding]]:
    """Read the provider's bytes once more and compare."""
    stored = batch.stored
    if stored is None:
        return 0, []
    paths = [folder / part.file for part in stored.parts if part.file.startswith("raw/")]
    fresh = ingest(paths, batch, providers.load(provider), price)
    kept = pl.concat(pl.read_parquet(path, glob=False) for path in answer_files(folder, batch))
    found = []
    if not fresh.answers.sort("id").equals(kept.sort("id")):
        found.append(Finding(f"answers/{batch.nonce}.parquet", "differs from what the provider's bytes say"))
    if fresh.cost != stored.cost:
        found.append(Finding(f"batch {batch.nonce}", f"cost {fresh.cost} micro-dollars, and {stored.cost} are noted"))
    return fresh.cost, found


def _unique(folder: Path, stored: list[BatchRecord]) -> tuple[int, list[Finding]]:
    """No row is answered twice."""
    files = [file for batch in stored for file in answer_files(folder, batch)]
    if not files:
        return 0, []
    rows = pl.scan_parquet(files, glob=False).select("id", "rep").collect()
    doubles = rows.height - rows.n_unique()
    return rows.height - doubles, [Finding("answers", f"{doubles} rows are answered more than once")] if doubles else []


def _strangers(folder: Path, state: RunState) -> list[Finding]:
    """No file that nobody wrote."""
    known = {"run.json", "journal", "lock", "metrics.json", "metrics.parquet", "cells.parquet", "report.html"}
    known |= {part.file for batch in state.batches.values() if batch.stored for part in batch.stored.parts}
    known |= {f"quarantine/{nonce}.jsonl" for nonce in state.batches}
    # An open batch may have sealed files that its journal does not tell of yet, and so may a later look at one that
    # lacks something.
    waiting = [batch.nonce for batch in state.open()]
    waiting += [batch.nonce for batch in state.batches.values() if batch.stored and batch.stored.missing]
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if name.startswith("spool/"):
            continue  # what batchbench did itself for a server without batches; the sealed copy is what counts
        if name not in known and not any(nonce in name for nonce in waiting):
            found.append(Finding(name, "nobody knows this file"))
    return found
