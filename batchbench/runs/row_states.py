"""Pure: the state of every row of a run: one byte for each row and repetition."""

import re

import msgspec

from batchbench.runs.events import Ranges
from batchbench.runs.journal import OPEN, RunState, rows_of

ATTEMPTS = 3  # how often a row that the provider does not process is asked before it is given up
TODO, ANSWERED, IN_FLIGHT, MISSING, GIVEN_UP, CUT_OFF, CANCELLED = range(7)  # CUT_OFF: to be asked with the full limit
_other = {state: re.compile(b"[^" + re.escape(bytes([state])) + b"]", re.DOTALL) for state in (TODO, CUT_OFF)}


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows are in each state."""

    todo: int  # in no batch
    answered: int  # also refused or failed
    in_flight: int
    missing: int  # lost or given up
    cancelled: int  # in a batch that the user cancelled, and not answered: asked again only on request


def row_states(
    state: RunState, rows: int, repetitions: int, *, rebuy_missing: bool = False, again: bool = False
) -> list[bytearray]:
    """For each repetition, the state of the first `rows` rows.

    `rebuy_missing`: missing rows are to be asked again; `again`: so are those of batches that the user cancelled.
    """
    table = [bytearray(rows) for _ in range(repetitions)]
    for batch in state.batches.values():
        if batch.rep >= repetitions:
            continue
        marks = table[batch.rep]
        if batch.stored is None:
            if batch.state in OPEN:
                mark(marks, batch.ranges, IN_FLIGHT)
            continue
        missing = batch.stored.missing
        unanswered = {*rows_of(batch.stored.again), *rows_of(missing)}
        if not unanswered:
            mark(marks, batch.ranges, ANSWERED)
            continue
        for start, stop in batch.ranges:
            for row in range(start, min(stop, rows)):
                if row not in unanswered:
                    marks[row] = ANSWERED
        for row in rows_of(missing) if not rebuy_missing else []:
            if row < rows and marks[row] == TODO:  # an earlier batch may have answered it since: its answer came late
                marks[row] = MISSING
    for (rep, row), count in state.attempts().items() if not rebuy_missing else ():
        if rep < repetitions and row < rows and table[rep][row] == TODO and count >= ATTEMPTS:
            table[rep][row] = GIVEN_UP
    for rep, row in state.cancelled() if not again else ():
        if rep < repetitions and row < rows and table[rep][row] == TODO:
            table[rep][row] = CANCELLED
    for rep, marks in enumerate(table):
        mark_cut_off(marks, state, rep)
    return table


def mark_cut_off(marks: bytearray, state: RunState, rep: int) -> None:
    """Mark rows of a repetition that are to be asked again because a short limit has cut their answers off."""
    for batch in state.batches.values():
        if batch.rep == rep and batch.stored:
            for row in rows_of(batch.stored.cut_off):
                if row < len(marks) and marks[row] == TODO:
                    marks[row] = CUT_OFF


def mark(marks: bytearray, ranges: Ranges, value: int) -> None:
    """Set the state of rows; rows beyond the table are ignored."""
    for start, stop in ranges:
        stop = min(stop, len(marks))
        if start < stop:
            marks[start:stop] = bytes([value]) * (stop - start)


def todo(marks: bytearray, limit: int, state: int = TODO) -> Ranges:
    """The first rows still to be asked, at most `limit` of them: those in the state TODO, or those in CUT_OFF."""
    ranges: Ranges = []
    start = 0
    while limit > 0 and (first := marks.find(state, start)) >= 0:
        end = _other[state].search(marks, first, first + limit)
        start = end.start() if end else min(len(marks), first + limit)
        ranges.append((first, start))
        limit -= start - first
    return ranges


def count_rows(table: list[bytearray]) -> RowCounts:
    """Count rows by state."""
    todo, answered, in_flight, missing, given_up, cut, cancelled = (
        sum(marks.count(state) for marks in table) for state in range(7)
    )
    return RowCounts(
        todo=todo + cut, answered=answered, in_flight=in_flight, missing=missing + given_up, cancelled=cancelled
    )
