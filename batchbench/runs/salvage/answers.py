"""Restore the answers of a batch from what is left of its result lines and of its answer files."""

from pathlib import Path

import msgspec
import polars as pl

from batchbench.providers.interface import Provider
from batchbench.runs.events import Part, Stored
from batchbench.runs.folder import Run
from batchbench.runs.ingest import UNREADABLE, Ingested, as_ranges, ingest, max_row_cost
from batchbench.runs.journal import BatchRecord, rows_of
from batchbench.runs.results import ANSWERS, write_answers
from batchbench.runs.salvage.damaged_run import Leftover
from batchbench.runs.salvage.files import custom_id, free_name, surviving_lines, write_raw

COMPARED = ("outcome", "text", "input_tokens", "output_tokens")


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of a batch on disk."""

    stored: Stored  # to be appended to the journal
    unused: list[Path]  # files that it does not name
    changed: bool  # the answers are in another file than before
    lost: int  # answers that were stored and are gone
    unproved: int  # answers without a result line


def restore(run: Run, batch: BatchRecord, left: Leftover, provider: Provider, taken: set[int], now: float) -> Restored:
    """Write the files of a batch anew where they are damaged. `taken` are rows that other batches answer."""
    files, before = left.files, left.stored
    rows = {*rows_of(batch.ranges)}
    parts = [*files.raw]
    found = _read(run, batch, parts, provider)
    with_line = rows - {*rows_of(found.missing)} if found else set[int]()
    if files.damaged and (rescued := _rescued_lines(left, batch, provider, rows - with_line)):
        parts.append(write_raw(run, batch.nonce, rescued))
        found = _read(run, batch, parts, provider)
        with_line = rows - {*rows_of(found.missing)} if found else set()
    again = {*rows_of(before.again)} if before else {*rows_of(found.again)} if found else set()
    # A row that was missing may have been bought again since, so its late line is not an answer.
    barred = (taken & {*rows_of(before.missing)}) | again if before else taken
    answers = _answers(files.answers, found, rows - barred, prefer_stored=before is not None)
    # A failure that another batch has asked again since is not the row's answer any more.
    retried = (pl.col("outcome") == "failed") & pl.col("id").is_in(sorted(taken))
    again |= {*answers.filter(retried)["id"]}
    answers = answers.filter(~retried)
    own = {*answers["id"]}
    again -= own
    missing = rows - own - again
    lost = len(missing - {*rows_of(before.missing)}) if before else 0
    unchanged = files.kept is not None and answers.height == files.answers.height and answers.equals(files.answers)
    kept = (files.kept or []) if unchanged else [_write(run, batch.nonce, answers)]
    settled = rows - {*rows_of(before.missing)} if before else own | again
    without_line = settled - with_line
    stored = Stored(
        at=now,
        nonce=batch.nonce,
        parts=[*parts, *kept],
        answered=len(own),
        again=as_ranges(sorted(again)),
        missing=as_ranges(sorted(missing)),
        quarantined=before.quarantined if before else _set_lines_aside(run, batch.nonce, found),
        cost=_cost(
            batch, before, found, regained=bool(before and rows_of(before.missing) and len(own) > before.answered)
        ),
        outcomes=dict(answers["outcome"].value_counts().sort("outcome").rows()),
        held=before.held if before else found.held if found else [],
        held_reason=before.held_reason if before else found.held_reason if found else "",
        interrupted=before.interrupted if before else 0,
        without_line=as_ranges(sorted(without_line)),
    )
    named = {part.file for part in stored.parts}
    return Restored(
        stored=stored,
        unused=[path for path in left.paths if str(path.relative_to(run.folder)) not in named],
        changed=not unchanged,
        lost=lost,
        unproved=len(own - with_line),
    )


def _read(run: Run, batch: BatchRecord, parts: list[Part], provider: Provider) -> Ingested | None:
    return ingest([run.folder / part.file for part in parts], batch, provider) if parts else None


def _rescued_lines(left: Leftover, batch: BatchRecord, provider: Provider, lacking: set[int]) -> list[bytes]:
    """Lines of damaged result files that answer these rows.

    Damage may have changed a line that can still be read: a line that differs from an undamaged answer is left out.
    """
    stored = {row["id"]: tuple(row[name] for name in COMPARED) for row in left.files.answers.iter_rows(named=True)}
    found: dict[int, bytes] = {}
    for path in left.files.damaged:
        for line in surviving_lines(path):
            nonce, row, rep = custom_id(line) or ("", -1, -1)
            if (nonce, rep) != (batch.nonce, batch.rep) or row not in lacking or row in found:
                continue
            try:
                (answer,) = provider.decode(line)
            except (*UNREADABLE, ValueError):
                continue
            if stored.get(row, same := tuple(getattr(answer, name) for name in COMPARED)) == same:
                found[row] = line
    return list(found.values())


def _answers(stored: pl.DataFrame, found: Ingested | None, rows: set[int], *, prefer_stored: bool) -> pl.DataFrame:
    """One answer for each row that has one."""
    read = found.answers if found else pl.DataFrame(schema=ANSWERS)
    both = [stored, read] if prefer_stored else [read, stored]
    whole = pl.concat(both).unique("id", keep="first", maintain_order=True)
    return whole.filter(pl.col("id").is_in(sorted(rows))).sort("id")


def _write(run: Run, nonce: str, answers: pl.DataFrame) -> Part:
    return write_answers(run, f"{nonce}-{free_name(run, 'answers', nonce)}", answers)


def _set_lines_aside(run: Run, nonce: str, found: Ingested | None) -> int:
    """Keep the lines that belong to no row; returns their number."""
    if found is None or not found.quarantined:
        return 0
    run.store.write(run.folder / "quarantine" / f"{nonce}.jsonl", b"\n".join(found.quarantined) + b"\n")
    return len(found.quarantined)


def _cost(batch: BatchRecord, before: Stored | None, found: Ingested | None, *, regained: bool) -> int:
    """What was booked; else what the lines show, and the most for rows without a line."""
    if before is not None and not (regained and found):
        return before.cost
    if found is not None:
        return found.cost
    return min(batch.rows * max_row_cost(batch), batch.reserve)
