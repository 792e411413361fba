"""Release requests that have failed, so that they are asked again; what the provider said about them is kept.

The answers of a batch become a new file without the failed rows, which takes the place of the older ones. Write order:
the answers, then `late` in the journal.
"""

from collections import Counter
from pathlib import Path

import polars as pl

from batchbench.runs.events import Late
from batchbench.runs.folder import Run
from batchbench.runs.ingest import as_ranges
from batchbench.runs.journal import BatchRecord, RunState
from batchbench.runs.reread import remove_analysis
from batchbench.runs.results import read_answers, reread_file, write_answers


def release_failed(run: Run, rows: int, repetitions: int, now: float) -> int:
    """Make failed requests askable again, of the first `rows` rows; returns their number."""
    released = 0
    for batch in list(run.state.batches.values()):
        if batch.stored and batch.rep < repetitions and batch.stored.outcomes.get("failed", 1):
            released += _release(run, batch, rows, now)
    return released


def _release(run: Run, batch: BatchRecord, rows: int, now: float) -> int:
    stored = batch.stored
    if stored is None:
        return 0
    kept = read_answers(run.folder, RunState(batches={batch.nonce: batch})).collect()
    is_failed = (pl.col("outcome") == "failed") & (pl.col("id") < rows)
    failed = kept.filter(is_failed)
    if failed.is_empty():
        return 0
    part = write_answers(run, Path(reread_file(batch)).stem, kept.filter(~is_failed))
    remove_analysis(run)
    ranges = as_ranges(sorted(failed["id"]))
    changes = Counter({"failed": -failed.height})
    run.append(
        Late(
            at=now,
            nonce=batch.nonce,
            parts=[part],
            again=ranges,
            held=ranges,  # the user's wish is not an attempt
            missing=stored.missing,
            quarantined=0,
            outcomes=dict(changes),
            cost=stored.cost,
        )
    )
    return failed.height
