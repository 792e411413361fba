"""Pure: what faults do to the batch objects and lists that clients look at."""

from typing import Any

from batchbench.emulator.faults import Fired
from batchbench.emulator.ledger.events import Dialect

Json = dict[str, Any]

_STATUS = {"openai": "status", "anthropic": "processing_status"}


def seen(batch: Json, fired: Fired | None, dialect: Dialect, ended_for: float) -> Json:
    """A batch object as a fault shows it; `ended_for` is how long it has been over, negative if it is not."""
    if fired is None:
        return batch
    field = _STATUS[dialect]
    match fired.fault.name:
        case "status-unknown":
            return {**batch, field: "reticulating"}
        case "status-capitalised":
            return {**batch, field: str(batch[field]).capitalize()}
        case "status-backwards" if ended_for >= 0:
            return {**batch, field: "in_progress", **_without_results(batch, None)}
        case "counts-zero":
            return {**batch, "request_counts": dict.fromkeys(batch["request_counts"] or (), 0)}
        case "counts-contradict" if ended_for >= 0:
            return {**batch, "request_counts": _shuffled(batch["request_counts"])}
        case "output-null" if ended_for >= 0:
            return {**batch, **_without_results(batch, None)}
        case "output-empty" if ended_for >= 0:
            return {**batch, **_without_results(batch, "")}
        case "output-late" if 0 <= ended_for < fired.seconds:
            return {**batch, **_without_results(batch, None)}
        case _:
            return batch


def listed(page: Json, rows_before: list[Json], fired: Fired | None) -> Json:
    """A page of a listing as a fault shows it; lag and order are the caller's business."""
    if fired is None:
        return page
    match fired.fault.name:
        case "list-repeat":
            return {**page, "has_more": True}
        case "list-duplicates":
            return {**page, "data": rows_before[-2:] + page["data"] + page["data"][-1:]}
        case "list-empty-more":
            return {**page, "data": [], "has_more": True}
        case "list-envelope":
            return {"value": page["data"], "nextLink": None}
        case _:
            return page


def _without_results(batch: Json, value: str | None) -> Json:
    return {name: value for name in ("output_file_id", "error_file_id", "results_url") if name in batch}


def _shuffled(counts: Json) -> Json:
    """The same numbers under the wrong names."""
    names = list(counts)
    return dict(zip(names, [counts[name] for name in [*names[1:], names[0]]], strict=True))
