"""The state of every row of a run, computed from its journal. A row has one byte per repetition."""

import re

import msgspec

from batchbench.runs import journal
from batchbench.runs.events import Ranges
from batchbench.runs.journal import RunState

ATTEMPTS = 3  # how often a row that the provider does not process is asked before it is given up
TODO, ANSWERED, IN_FLIGHT, MISSING, GIVEN_UP = range(5)
_not_todo = re.compile(rb"[^\0]")


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows are in each state."""

    todo: int  # in no batch
    answered: int  # also refused or failed
    in_flight: int
    missing: int  # lost or given up


def row_states(state: RunState, rows: int, repetitions: int, *, rebuy_missing: bool = False) -> list[bytearray]:
    """For each repetition, the state of the first `rows` rows. `rebuy_missing`: missing rows are to be asked again."""
    table = [bytearray(rows) for _ in range(repetitions)]
    for batch in state.batches.values():
        if batch.rep >= repetitions:
            continue
        marks = table[batch.rep]
        if batch.stored is None:
            if batch.state in journal.OPEN:
                mark(marks, batch.ranges, IN_FLIGHT)
            continue
        again, missing = batch.stored.again, batch.stored.missing
        unanswered = {*rows_of(again), *rows_of(missing)}
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
    return table


def mark(marks: bytearray, ranges: Ranges, value: int) -> None:
    """Set the state of rows; rows beyond the table are ignored."""
    for start, stop in ranges:
        stop = min(stop, len(marks))
        if start < stop:
            marks[start:stop] = bytes([value]) * (stop - start)


def todo(marks: bytearray, limit: int) -> Ranges:
    """The first rows still to be asked, at most `limit` of them."""
    ranges: Ranges = []
    start = 0
    while limit > 0 and (first := marks.find(TODO, start)) >= 0:
        end = _not_todo.search(marks, first, first + limit)
        start = end.start() if end else min(len(marks), first + limit)
        ranges.append((first, start))
        limit -= start - first
    return ranges


def count_rows(table: list[bytearray]) -> RowCounts:
    """Count rows by state."""
    todo, answered, in_flight, missing, given_up = (sum(marks.count(state) for marks in table) for state in range(5))
    return RowCounts(todo=todo, answered=answered, in_flight=in_flight, missing=missing + given_up)


def rows_of(ranges: Ranges) -> list[int]:
    """Every row of ranges."""
    return [row for start, stop in ranges for row in range(start, stop)]


def as_ranges(rows: list[int]) -> Ranges:
    """Sorted rows as ranges."""
    ranges: Ranges = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return ranges
