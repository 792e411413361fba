"""Read stored result lines again that an older version read differently or not at all: no network, no money.

No row becomes more expensive. A row is asked again only if its line proves that the provider did not process it. The
new answers of a batch are a new file, which takes the place of the older ones; no file is changed. Write order: the
answers, then `late` in the journal.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import polars as pl

from batchbench.errors import DataError
from batchbench.providers.interface import Provider
from batchbench.runs.differences import compare, with_lines
from batchbench.runs.events import Late, Stored
from batchbench.runs.folder import Run
from batchbench.runs.ingest import as_ranges, ingest
from batchbench.runs.journal import BatchRecord, RunState
from batchbench.runs.results import read_answers, reread_file, write_answers

ANALYSIS = ("metrics.json", "metrics.parquet", "cells.parquet")  # of the answers as they were


def reread(run: Run, provider: Provider, now: float) -> int:
    """Store what this version reads differently; returns how many rows that settles. Damaged batches are left alone."""
    settled = 0
    for batch in list(run.state.batches.values()):
        if batch.stored:
            with suppress(DataError):  # the audit names the damaged file
                settled += _reread(run, batch, batch.stored, provider, now)
    return settled


def remove_analysis(run: Run) -> None:
    """Remove the metrics of the answers as they were."""
    for name in ANALYSIS:
        (run.folder / name).unlink(missing_ok=True)


def _reread(run: Run, batch: BatchRecord, stored: Stored, provider: Provider, now: float) -> int:
    kept = read_answers(run.folder, RunState(batches={batch.nonce: batch})).collect()
    paths = [run.folder / part.file for part in stored.parts if part.file.startswith("raw/")]
    found = ingest(paths, batch, provider)
    different = compare(with_lines(kept, found, stored), found, stored)
    # A journal of an older version has no counts by outcome, so nothing can be subtracted from them.
    again = different.unprocessed if stored.outcomes else []
    fresh = found.answers.filter(pl.col("id").is_in(different.settled))
    settled = [*fresh["id"], *again]
    if not settled:
        return 0
    replaced = kept.filter(pl.col("id").is_in(settled))
    whole = pl.concat([kept.filter(~pl.col("id").is_in(settled)), fresh], how="diagonal").sort("id")
    part = write_answers(run, Path(reread_file(batch)).stem, whole)
    remove_analysis(run)
    changes = Counter(fresh["outcome"])
    changes.subtract(replaced["outcome"])
    run.append(
        Late(
            at=now,
            nonce=batch.nonce,
            parts=[part],
            again=as_ranges(again),
            missing=stored.missing,
            quarantined=0,
            outcomes=dict(changes) if stored.outcomes else {},
            cost=min(stored.cost, found.cost) if stored.outcomes or not different.unprocessed else stored.cost,
        )
    )
    return len(settled)
