"""A run as its files show it, read without opening or locking it."""

from collections import Counter
from pathlib import Path

import msgspec

from batchbench.compile.manifest import Manifest, read_manifest
from batchbench.core.store import Store, check_links
from batchbench.providers.target import Target
from batchbench.runs.folder import read_run, read_state
from batchbench.runs.journal import RunState
from batchbench.runs.results import outcomes
from batchbench.runs.row_states import RowCounts, count_rows, row_states


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run, read-only."""

    folder: Path
    manifest_folder: Path
    manifest: Manifest | None  # None if it is not compiled here
    target: Target
    state: RunState

    @property
    def rows(self) -> int:
        """How many rows of the manifest were asked for; 0 before the first start."""
        variants = self.manifest.variants if self.manifest else 1
        return self.state.asked.items * variants if self.state.asked else 0

    @property
    def repetitions(self) -> int:
        """How often each row was asked for; 0 before the first start."""
        return self.state.asked.repetitions if self.state.asked else 0

    def row_counts(self) -> RowCounts:
        """Count the rows that were asked for by state."""
        return count_rows(row_states(self.state, self.rows, self.repetitions))

    def outcomes(self) -> Counter[str]:
        """Count the answers to these rows by outcome."""
        return outcomes(self.folder, self.state, self.rows, self.repetitions)


class BrokenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with a damaged file."""

    run: str  # its folder
    error: str  # what is damaged, and what to do


def view_run(store: Store, folder: Path) -> RunView:
    """Read the run in a folder."""
    check_links(folder)
    about = read_run(folder / "run.json")
    manifest_folder = store.manifests / folder.parent.name
    return RunView(
        folder=folder,
        manifest_folder=manifest_folder,
        manifest=read_manifest(manifest_folder),
        target=about.target,
        state=read_state(folder),
    )
