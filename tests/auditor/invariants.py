"""The verdict: every invariant, by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.auditor.answers import i5, i6, i7, i8, i10, i15
from tests.auditor.case import Case, Check
from tests.auditor.evidence import Folder, Journal, Json, Ledger, Manifest
from tests.auditor.folder import i13, i14
from tests.auditor.money import i9
from tests.auditor.purchases import i1, i2, i3, i4, i12

INVARIANTS: dict[str, Callable[[Case], Check]] = {
    check.__name__.upper(): check for check in (i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i12, i13, i14, i15)
}


def audit(case: Case) -> Json:
    """Every invariant: what was looked at, and what is wrong."""
    found: Json = {}
    for name, check in INVARIANTS.items():
        problems: list[str] = []
        steps = check(case)
        try:
            while True:
                problems.append(next(steps))
        except StopIteration as end:
            found[name] = {"looked_at": end.value, "problems": problems}
        except (KeyError, IndexError, ValueError, TypeError) as error:  # evidence so broken that it cannot be judged
            found[name] = {"looked_at": "", "problems": [*problems, f"cannot be judged: {error!r}"]}
    snapshot = {"events": len(case.ledger.events), "folder": case.folder.state()}
    return {"ok": not any(one["problems"] for one in found.values()), "invariants": found, "snapshot": snapshot}


def load(ledger: Path, run: Path, manifest: Path, **options: Any) -> Case:
    """The evidence, read."""
    return Case(
        Ledger.read(ledger), Journal.read(run / "journal"), Manifest.read(manifest), Folder.read(run), **options
    )
