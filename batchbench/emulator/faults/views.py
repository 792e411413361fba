"""Pure: faults in the batch objects and listings that clients see."""

from batchbench.emulator.faults.rules import ActiveFault
from batchbench.emulator.jobs.answers import Json
from batchbench.emulator.ledger.events import Dialect

MOVED_RESULTS = "/anthropic/v1/batch_results"  # for the fault results-elsewhere

_STATUS = {"openai": "status", "anthropic": "processing_status"}


def batch_with_fault(batch: Json, fault: ActiveFault | None, dialect: Dialect, ended_for: float) -> Json:
    """A batch object, changed by a fault. `ended_for` is the time since the batch ended, negative if it has not."""
    if fault is None:
        return batch
    field = _STATUS[dialect]
    match fault.name:
        case "status-unknown":
            return {**batch, field: "reticulating"}
        case "status-capitalised":
            return {**batch, field: str(batch[field]).capitalize()}
        case "status-backwards" if ended_for >= 0:
            return {**batch, field: "in_progress", **_without_results(batch, None)}
        case "counts-zero":
            return {**batch, "request_counts": dict.fromkeys(_counts(batch), 0)}
        case "counts-contradict" if ended_for >= 0:
            return {**batch, "request_counts": _rotated(_counts(batch))}
        case "output-null" if ended_for >= 0:
            return {**batch, **_without_results(batch, None)}
        case "output-empty" if ended_for >= 0:
            return {**batch, **_without_results(batch, "")}
        case "results-elsewhere" if batch["results_url"]:
            host = str(batch["results_url"]).partition("/anthropic/")[0]
            return {**batch, "results_url": f"{host}{MOVED_RESULTS}/{batch['id']}"}
        case "errors-data-null":
            return {**batch, "errors": {"object": "list", "data": None}}
        case "output-late" if 0 <= ended_for < fault.seconds:
            return {**batch, **_without_results(batch, None)}
        case _:
            return batch


def page_with_fault(page: Json, rows: list[Json], rows_before: list[Json], fault: ActiveFault | None) -> Json:
    """A page of a listing, changed by a fault. `rows` are its rows, `rows_before` the rows of earlier pages."""
    if fault is None:
        return page
    match fault.name:
        case "list-repeat":
            return {**page, "has_more": True}
        case "list-duplicates":
            return {**page, "data": rows_before[-2:] + rows + rows[-1:]}
        case "list-empty-more":
            return {**page, "data": [], "has_more": True}
        case "list-has-more-null":
            return {**page, "has_more": page["has_more"] or None}
        case "list-envelope":
            return {"value": rows, "nextLink": None}
        case _:
            return page


def _without_results(batch: Json, value: str | None) -> Json:
    return {name: value for name in ("output_file_id", "error_file_id", "results_url") if name in batch}


def _counts(batch: Json) -> Json:
    counts = batch["request_counts"]
    return counts if isinstance(counts, dict) else {}


def _rotated(counts: Json) -> Json:
    """The same numbers, each under the name of the next one."""
    names = list(counts)
    return dict(zip(names, [counts[name] for name in [*names[1:], names[0]]], strict=True))
