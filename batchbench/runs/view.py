"""A run as its files show it, read without opening or locking it: for status, cancel, export, audit and estimate."""

from collections import Counter
from pathlib import Path

import msgspec

from batchbench.compile.manifest import Manifest, read_manifest
from batchbench.core.store import Store
from batchbench.providers.target import Target
from batchbench.runs.answers import outcomes
from batchbench.runs.folder import read_run, read_state, run_folders
from batchbench.runs.journal import RunState
from batchbench.runs.progress import GIVEN_UP, IN_FLIGHT, MISSING, TODO, row_states


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the rows that were asked for are in which state."""

    todo: int  # in no batch yet
    in_flight: int
    missing: int  # lost or given up


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run, read-only."""

    folder: Path
    manifest_folder: Path
    manifest: Manifest | None  # None if it is not compiled here
    target: Target
    state: RunState

    @property
    def rows(self) -> int:
        """How many rows of the manifest were asked for; 0 if the run never began."""
        variants = self.manifest.variants if self.manifest else 1
        return self.state.asked.items * variants if self.state.asked else 0

    @property
    def repetitions(self) -> int:
        """How often each row was asked for; 0 if the run never began."""
        return self.state.asked.repetitions if self.state.asked else 0

    def row_counts(self) -> RowCounts:
        """Count rows by state, from the journal."""
        marks = row_states(self.state, self.rows, self.repetitions)
        counts = [sum(row.count(value) for row in marks) for value in range(5)]
        return RowCounts(todo=counts[TODO], in_flight=counts[IN_FLIGHT], missing=counts[MISSING] + counts[GIVEN_UP])

    def outcomes(self) -> Counter[str]:
        """Count answers by outcome, from the journal where possible, else from the answer files."""
        return outcomes(self.folder, self.state, self.rows, self.repetitions)


def view_run(store: Store, folder: Path) -> RunView:
    """Read one run."""
    run_file = read_run(folder / "run.json")
    manifest_folder = store.manifests / folder.parent.name
    return RunView(
        folder=folder,
        manifest_folder=manifest_folder,
        manifest=read_manifest(manifest_folder),
        target=run_file.target,
        state=read_state(folder),
    )


def view_runs(store: Store) -> list[RunView]:
    """Read every run under the home."""
    return [view_run(store, folder) for folder in run_folders(store)]
