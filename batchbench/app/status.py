"""How far every run is, read from its files; nothing is locked."""

import os
import socket
import time
from pathlib import Path

import msgspec

from batchbench import providers
from batchbench.compile.manifest import read_manifest
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.runs.answers import outcomes
from batchbench.runs.folder import read_run, read_state, run_folders
from batchbench.runs.progress import GIVEN_UP, IN_FLIGHT, MISSING, TODO, row_states


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far one run is."""

    run: str  # its folder
    model: str
    manifest: str
    asked: int
    answered: int
    refused: int
    failed: int
    missing: int
    in_flight: int
    todo: int  # in no batch yet
    batches: dict[str, int]  # by state
    spent_usd: float
    reserved_usd: float
    budget_usd: float | None
    live: str | None  # the process that is working on it
    unresolved: list[str]  # batches whose state only the user can find out
    emulated: bool


def status(store: Store) -> list[RunStatus]:
    """The status of every run."""
    return [run_status(store, folder) for folder in run_folders(store)]


def run_status(store: Store, folder: Path) -> RunStatus:
    """The status of the run in `folder`."""
    about = read_run(folder / "run.json")
    state = read_state(folder)
    manifest = read_manifest(store.manifests / folder.parent.name)
    rows = state.asked.items * (manifest.variants if manifest else 1) if state.asked else 0
    repetitions = state.asked.repetitions if state.asked else 0
    marks = row_states(state, rows, repetitions)
    counts = [sum(row.count(value) for row in marks) for value in range(5)]
    batches: dict[str, int] = {}
    for batch in state.batches.values():
        batches[batch.state] = batches.get(batch.state, 0) + 1
    ends = outcomes(folder, state, rows, repetitions)
    window = providers.load(about.target.provider).limits.window
    budget = state.asked.budget if state.asked else None
    return RunStatus(
        run=str(folder),
        model=about.target.name,
        manifest=folder.parent.name,
        asked=rows * repetitions,
        answered=ends["answered"] + ends["truncated"],
        refused=ends["refused"] + ends["filtered"],
        failed=ends["failed"],
        missing=counts[MISSING] + counts[GIVEN_UP],
        in_flight=counts[IN_FLIGHT],
        todo=counts[TODO],
        batches=batches,
        spent_usd=state.spent() / money.MILLION,
        reserved_usd=state.reserved(time.time(), window) / money.MILLION,
        budget_usd=None if budget is None else budget / money.MILLION,
        live=_lock_holder(folder),
        unresolved=[
            f"{batch.nonce}: {batch.word} ({', '.join(batch.candidates)})"
            for batch in state.batches.values()
            if batch.state == "unresolved"
        ],
        emulated=about.target.emulated,
    )


def _lock_holder(folder: Path) -> str | None:
    """The process that has locked a run, or None. The lock is not tried: that could stop another process."""
    try:
        words = (folder / "lock").read_text().split()
        os.kill(int(words[1]), 0)
    except (OSError, ValueError, IndexError):
        return None
    return " ".join(words) if words[-1] == socket.gethostname() else None
