"""How far every run is, read from its files; nothing is locked."""

import os
import socket
from pathlib import Path

import msgspec

from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import DataError
from batchbench.runs.folder import unchecked_folders
from batchbench.runs.view import BrokenRun, view_run


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far one run is."""

    run: str  # its folder
    model: str
    manifest: str
    asked: int
    answered: int
    refused: int
    failed: int
    empty: int  # replies without text
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
    priced: bool = True  # False: the server has no price, so the amounts are 0


def status(store: Store) -> list[RunStatus | BrokenRun]:
    """The status of every run; a damaged run does not hide the others."""
    found: list[RunStatus | BrokenRun] = []
    for folder in unchecked_folders(store):
        try:
            found.append(run_status(store, folder))
        except DataError as error:
            found.append(BrokenRun(run=str(folder), error=str(error)))
    return found


def run_status(store: Store, folder: Path) -> RunStatus:
    """The status of the run in `folder`."""
    view = view_run(store, folder)
    state, counts, ends = view.state, view.row_counts(), view.outcomes()
    budget = state.asked.budget if state.asked else None
    return RunStatus(
        run=str(folder),
        model=view.target.name,
        manifest=folder.parent.name,
        asked=view.rows * view.repetitions,
        answered=ends["answered"] + ends["truncated"],
        refused=ends["refused"] + ends["filtered"],
        failed=ends["failed"],
        empty=ends["empty"],
        missing=counts.missing,
        in_flight=counts.in_flight,
        todo=counts.todo + counts.cancelled,
        batches=state.batch_counts(),
        spent_usd=state.spent() / money.MILLION,
        reserved_usd=state.reserved() / money.MILLION,
        budget_usd=None if budget is None else budget / money.MILLION,
        live=_lock_holder(folder),
        unresolved=[
            f"{batch.nonce}: {batch.reason} ({', '.join(batch.candidates)})"
            for batch in state.batches.values()
            if batch.state == "unresolved"
        ],
        emulated=view.target.emulated,
        priced=state.priced(),
    )


def _lock_holder(folder: Path) -> str | None:
    """The process that has locked a run, or None. The lock is not tried: that could stop another process."""
    try:
        words = (folder / "lock").read_text().split()
        os.kill(int(words[1]), 0)
    except (OSError, ValueError, IndexError):
        return None
    return " ".join(words) if words[-1] == socket.gethostname() else None
