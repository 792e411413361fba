"""The verdict: every invariant, by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.auditor import answers, folder, money, purchases
from tests.auditor.case import Case, Check
from tests.auditor.evidence import Folder, Journal, Json, Ledger, Manifest

CHECKS: tuple[Callable[[Case], Check], ...] = (
    purchases.every_batch_is_on_record,
    purchases.no_foreign_batch_is_adopted,
    purchases.nothing_is_bought_twice,
    purchases.nothing_is_billed_twice,
    answers.every_billed_answer_is_kept,
    answers.every_kept_answer_was_billed,
    answers.answers_belong_to_their_prompts,
    answers.no_row_has_two_answers,
    money.the_budget_holds,
    money.reserves_follow_the_answers,
    answers.every_row_is_accounted_for,
    purchases.events_are_in_order,
    folder.a_finished_run_stays_unchanged,
    folder.every_file_is_known_and_private,
    answers.files_match_their_digests,
)
INVARIANTS = {check.__name__: check for check in CHECKS}


def audit(case: Case) -> Json:
    """Check every invariant: what was examined, and what is wrong."""
    found: Json = {}
    for name, check in INVARIANTS.items():
        problems: list[str] = []
        steps = check(case)
        try:
            while True:
                problems.append(next(steps))
        except StopIteration as end:
            found[name] = {"looked_at": end.value, "problems": problems}
        except (KeyError, IndexError, ValueError, TypeError) as error:  # the evidence is too damaged to be judged
            found[name] = {"looked_at": "", "problems": [*problems, f"cannot be judged: {error!r}"]}
    snapshot = {"events": len(case.ledger.events), "folder": case.folder.state()}
    return {"ok": not any(one["problems"] for one in found.values()), "invariants": found, "snapshot": snapshot}


def load(ledger: Path, run: Path, manifest: Path, **options: Any) -> Case:
    """Read the evidence."""
    return Case(
        Ledger.read(ledger), Journal.read(run / "journal"), Manifest.read(manifest), Folder.read(run), **options
    )
