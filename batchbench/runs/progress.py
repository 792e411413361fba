"""What has become of every row of a run, computed from its journal."""

import re

from batchbench.runs import journal
from batchbench.runs.events import Ranges
from batchbench.runs.journal import RunState

ATTEMPTS = 3  # how often a row is asked before it is given up
TODO, ANSWERED, IN_FLIGHT, MISSING, GIVEN_UP = range(5)
_not_todo = re.compile(rb"[^\0]")


def row_states(state: RunState, rows: int, repetitions: int, *, rebuy_missing: bool = False) -> list[bytearray]:
    """For each repetition, what has become of each of the first `rows` rows, read from the files."""
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
        unanswered = {row for ranges in (again, missing) for start, stop in ranges for row in range(start, stop)}
        if not unanswered:
            mark(marks, batch.ranges, ANSWERED)
            continue
        for start, stop in batch.ranges:
            for row in range(start, min(stop, rows)):
                if row not in unanswered:
                    marks[row] = ANSWERED
        if not rebuy_missing:
            # What an earlier batch has answered since stays answered: it may have come late.
            lacking = [row for start, stop in missing for row in range(start, min(stop, rows))]
            mark(marks, as_ranges([row for row in lacking if marks[row] == TODO]), MISSING)
    for (rep, row), count in state.attempts().items() if not rebuy_missing else ():
        if rep < repetitions and row < rows and table[rep][row] == TODO and count >= ATTEMPTS:
            table[rep][row] = GIVEN_UP
    return table


def mark(marks: bytearray, ranges: Ranges, value: int) -> None:
    """Set what has become of rows; those beyond the table are not asked for."""
    for start, stop in ranges:
        stop = min(stop, len(marks))
        if start < stop:
            marks[start:stop] = bytes([value]) * (stop - start)


def todo(marks: bytearray, most: int, start: int = 0) -> Ranges:
    """The first rows still to be asked, at most `most` of them."""
    ranges: Ranges = []
    while most > 0 and (first := marks.find(TODO, start)) >= 0:
        end = _not_todo.search(marks, first, first + most)
        stop = end.start() if end else min(len(marks), first + most)
        ranges.append((first, stop))
        most -= stop - first
        start = stop
    return ranges


def as_ranges(rows: list[int]) -> Ranges:
    """Sorted rows as ranges."""
    ranges: Ranges = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return ranges
