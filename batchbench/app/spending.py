"""What a command may spend: its own budget, or the one of an earlier start, which stays until it is changed."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from batchbench.app.contact import price
from batchbench.app.plan import PlannedRun, run_folder
from batchbench.app.requests import Options, Purchase, Voice
from batchbench.core.money import dollars
from batchbench.core.store import Store
from batchbench.errors import DataError, UsageError
from batchbench.providers.target import Target
from batchbench.runs.folder import read_run, read_state


def with_budget(purchase: Purchase, runs: Sequence[PlannedRun], store: Store, voice: Voice) -> Purchase:
    """The purchase with the budget that holds; without one of its own, the smallest that these runs had before."""
    earlier = _earlier_budgets(runs, store) if purchase.budget is None else []
    if earlier:
        voice.note(f"budget of {dollars(min(earlier))} from an earlier start; --budget none lifts it")
        purchase = msgspec.structs.replace(purchase, budget=min(earlier))
    for run in runs:
        check_priced(purchase, run.options, store, run.target)
    return purchase


def check_priced(purchase: Purchase, options: Options, store: Store, target: Target) -> None:
    """Raise UsageError if a budget cannot limit a target, because it has no price."""
    if purchase.limit is not None and not price(options, store, target).priced:
        raise UsageError(
            f"a budget cannot limit {target.name}, which has no price: pass --price IN,OUT in dollars per million "
            "tokens, or --price 0,0 if it costs nothing"
        )


def mention_other_runs(runs: Sequence[PlannedRun], store: Store, voice: Voice) -> None:
    """Name the runs with other settings that have answers of the same model to the same prompts, before a new one."""
    for run in runs:
        folder = run_folder(run, store)
        if run.target.emulated or folder.exists():
            continue
        for path in sorted(folder.parent.glob("*/run.json")):
            with suppress(DataError):
                other, state = read_run(path).target, read_state(path.parent)
                if (other.provider, other.model) == (run.target.provider, run.target.model) and state.answered():
                    voice.note(
                        f"{path.parent} has {state.answered():,} answers of {other.name} to the same prompts with "
                        "other settings; this is a new run"
                    )


def _earlier_budgets(runs: Sequence[PlannedRun], store: Store) -> list[int]:
    folders = [run_folder(run, store) for run in runs]
    states = [read_state(folder) for folder in folders if (folder / "journal").exists()]
    return [state.asked.budget for state in states if state.asked and state.asked.budget is not None]
