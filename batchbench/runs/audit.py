"""Compute everything about a run from its bytes again, and report where that differs from its journal.

Nothing is repaired and nothing is trusted: digests are computed, lines are read and costs are added up again.
"""

import hashlib
from pathlib import Path

import msgspec
import polars as pl

from batchbench.compile.manifest import Manifest, sizes_of
from batchbench.core.store import Store, content
from batchbench.errors import DataError
from batchbench.providers import load_provider
from batchbench.providers.target import Target
from batchbench.runs import journal
from batchbench.runs.differences import compare, with_lines
from batchbench.runs.events import REREAD
from batchbench.runs.folder import check_marks, check_prompts, read_journal, read_run
from batchbench.runs.ingest import ingest, max_row_cost
from batchbench.runs.journal import BatchRecord, RunState, rows_of
from batchbench.runs.results import SALVAGED, answer_files, file_part, reread_file

REREAD_THEM = "run `batchbench audit --reread`, which is free of charge"


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
    priced: bool = True  # False: the server has no price
    recovered: int = 0  # rows that an older version read differently or not at all
    findings: list[Finding]
    notes: list[Finding] = []  # differences that are no damage
    error: str | msgspec.UnsetType = msgspec.UNSET  # why nothing could be checked, and what to do


def audit(folder: Path, manifest_folder: Path, manifest: Manifest | None) -> Audit:
    """Check a run. The cost of each batch is computed at the rates at which it was bought."""
    found: list[Finding] = []
    notes: list[Finding] = []
    target = read_run(folder / "run.json").target
    try:
        written = read_journal(folder / "journal")
    except DataError as error:
        found.append(Finding("journal", str(error)))
        return Audit(run=str(folder), model=target.name, batches=0, rows=0, spent=0, findings=found)
    state = journal.replay(written.events)
    try:
        check_marks(folder, Store(folder.parents[2]), state.run, written)
    except DataError as error:
        found.append(Finding("journal", str(error)))
    if written.good < (folder / "journal").stat().st_size:
        found.append(Finding("journal", "the last line is torn; the next run cuts it off"))
    prompts = _check_manifest(manifest_folder, manifest, state)
    found += prompts
    if manifest is not None and not prompts:
        found += _check_reserves(manifest_folder, manifest, target, state)
    spent = sum(question.cost for question in state.passed)
    stored = [batch for batch in state.batches.values() if batch.stored]
    damaged: set[str] = set()
    for batch in stored:
        damage = _check_parts(folder, batch)
        found += damage
        if damage:
            damaged.add(batch.nonce)
        elif batch.rates is not None:
            cost, differences, harmless = _ingest_again(folder, target.provider, batch)
            spent += cost
            found += differences
            notes += harmless
    rows, duplicates = _check_unique(folder, [batch for batch in stored if batch.nonce not in damaged])
    found += duplicates
    found += _unknown_files(folder, state)
    notes += [Finding("salvaged", note) for event in state.salvaged for note in event.notes]
    return Audit(
        run=str(folder),
        model=target.name,
        batches=len(state.batches),
        rows=rows,
        spent=spent,
        priced=state.priced(),
        findings=found,
        notes=notes,
    )


def _check_manifest(folder: Path, manifest: Manifest | None, state: RunState) -> list[Finding]:
    if manifest is None:
        return [Finding(str(folder), "the manifest does not exist: compile it again")]
    try:
        check_prompts(state, folder, manifest)
    except DataError as error:
        return [Finding("prompts", str(error))]
    found = []
    for shard in manifest.shards:
        path = folder / shard.file
        if not path.exists():
            found.append(Finding(str(path), "missing"))
        elif hashlib.sha256(content(path)).hexdigest() != shard.file_sha256:
            found.append(Finding(str(path), "its bytes differ from those that were compiled"))
    return found


def _check_reserves(folder: Path, manifest: Manifest, target: Target, state: RunState) -> list[Finding]:
    """Compute the reserves again that depend on earlier answers: from the prompts and the limits in the journal."""
    found = []
    for batch in state.batches.values():
        if batch.rates is None or (batch.max_tokens is None and batch.tokens_per_byte is None):
            continue
        lengths = sizes_of(folder, manifest, batch.ranges)["bytes"].value_counts().rows()
        terms = (batch.max_tokens or target.max_tokens, batch.tokens_per_byte)
        needed = sum(count * batch.rates.bound(size + target.other_bytes, *terms) for size, count in lengths)
        if batch.reserve < needed:
            what = f"{batch.reserve} micro-dollars were reserved, but its requests can cost {needed}"
            found.append(Finding(f"batch {batch.nonce}", what))
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


def _ingest_again(folder: Path, provider: str, batch: BatchRecord) -> tuple[int, list[Finding], list[Finding]]:
    """Compute the answers and the cost of a batch from the provider's bytes again; the cost, findings and notes."""
    stored = batch.stored
    if stored is None:
        return 0, [], []
    paths = [folder / part.file for part in stored.parts if part.file.startswith("raw/")]
    ingested = ingest(paths, batch, load_provider(provider))
    kept = pl.concat(pl.read_parquet(path, glob=False) for path in answer_files(folder, batch))
    different = compare(with_lines(kept, ingested, stored), ingested, stored)
    name, found, notes = f"answers/{batch.nonce}.parquet", [], []
    if different.damaged:
        found.append(Finding(name, "differs from the provider's bytes"))
    if different.readable:
        what = f"{len(different.readable):,} lines can be read by now: {REREAD_THEM}"
        found.append(Finding(name, what))
    if different.renamed:
        what = f"{len(different.renamed):,} rows are read differently by this version: {REREAD_THEM}"
        notes.append(Finding(name, what))
    cut_off = {*rows_of(ingested.cut_off)} - {*kept["id"]}
    if cut_off != {*rows_of(stored.cut_off)}:
        what = f"its limit has cut off {len(cut_off):,} answers, but the journal says {len(rows_of(stored.cut_off)):,}"
        found.append(Finding(f"batch {batch.nonce}", what))
    if not different.settled and not _is_cost(stored.cost, ingested.cost, different.doubtful, batch):
        what = f"cost {ingested.cost} micro-dollars, but the journal says {stored.cost}"
        found.append(Finding(f"batch {batch.nonce}", what))
    exact = batch.max_row_cost and not stored.without_line
    return ingested.cost if exact else stored.cost, found, notes


def _is_cost(booked: int, cost: int, doubtful: int, batch: BatchRecord) -> bool:
    """Whether a batch was booked at its cost. Older versions booked less for rows that do not say what they cost."""
    if batch.stored is not None and any(REREAD in part.file for part in batch.stored.parts):
        return booked <= cost  # a second reading never makes a batch more expensive
    least = cost - doubtful * max_row_cost(batch)
    if not batch.max_row_cost:  # the oldest versions rounded the cost of all unknown rows together
        least -= batch.rows
    if batch.stored is not None and batch.stored.without_line:  # lost lines do not say what they cost
        return least - len(rows_of(batch.stored.without_line)) * max_row_cost(batch) <= booked
    return least <= booked <= cost


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
    known = {"run.json", "journal", "lock", "mark", "metrics.json", "metrics.parquet", "cells.parquet", "report.html"}
    known |= {"human_check.json", *(f"checks/{path.name}" for path in (folder / "checks").glob("*.json"))}
    known |= {part.file for batch in state.batches.values() if batch.stored for part in batch.stored.parts}
    known |= {path.name for path in folder.glob("journal.damaged*")}  # see `batchbench salvage`
    known |= {f"quarantine/{path.name}" for path in (folder / "quarantine").glob(f"{SALVAGED}*")}
    aside = [path.name for path in (folder / "quarantine").glob("*")]  # unreadable lines and result files of batches
    known |= {f"quarantine/{name}" for name in aside if name.partition("-")[0].partition(".")[0] in state.batches}
    known |= {reread_file(batch) for batch in state.batches.values()}  # an interrupted reread leaves it
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
