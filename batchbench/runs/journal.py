"""Pure: the events of a run as lines of a file, and the state that they result in.

A journal is a text file of lines `<crc32> <seq> <json>`. The checksum of a line also covers the line before it, so a
line that was changed, removed, moved or copied from another journal breaks the chain. Only the last line may be torn:
the process died while writing it.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, get_args

import msgspec

from batchbench.errors import DataError
from batchbench.runs import events
from batchbench.runs.events import AnyEvent, Money, Ranges

SECTOR = 512  # bytes, the smallest unit that a disk writes
BatchState = Literal[
    "intent", "uploaded", "creating", "created", "exported", "ended", "stored", "void", "rejected", "unresolved"
]
SETTLED: frozenset[BatchState] = frozenset({"stored", "void", "rejected"})
OPEN: frozenset[BatchState] = frozenset(get_args(BatchState)) - SETTLED

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: its intent and its current state."""

    nonce: events.Nonce
    rep: events.Repetition
    ranges: Ranges
    rows: events.Row
    reserve: Money
    max_row_cost: Money = 0  # micro-dollars, an upper bound for each row; 0 if unknown
    state: BatchState = "intent"
    intended: float  # when, in seconds since 1970
    sent: events.Creating | None = None  # the create; None before it is sent
    void_at: float = 0.0  # when it became void
    file: str | None = None
    remote: str | None = None  # its id at the provider
    provider_status: str = ""  # how it ended, in the provider's own word
    reason: str = ""  # why it is void, rejected or unresolved
    cancelling: bool = False
    stored: events.Stored | None = None
    rechecked_at: float = 0.0  # when its missing rows were last looked for without result
    candidates: list[str] = []


class RunState(msgspec.Struct, kw_only=True):
    """Everything that a journal says."""

    run: str = ""
    manifest: str = ""
    target: str = ""
    asked: events.Asked | None = None
    inode: str = ""  # of the journal, when a batch was last bought
    batches: dict[str, BatchRecord] = {}
    foreign: set[str] = set()
    duplicates: list[events.Duplicate] = []
    tried: list[int] = []  # reserves of trial questions without an answer
    passed: list[int] = []  # costs of trial questions with an answer

    def apply(self, event: AnyEvent) -> None:
        """Add one more event."""
        match event:
            case events.Opened():
                self.run, self.manifest, self.target = event.run, event.manifest, event.target
            case events.Asked():
                if event.items * event.repetitions > events.MAX_ASKED:
                    times = f"{event.items:,} items {event.repetitions:,} times"
                    raise DataError(f"the journal asks for {times}: restore it from a backup")
                self.asked = event
            case events.Intent(nonce=nonce):
                self.inode = event.inode
                self.batches[nonce] = BatchRecord(
                    nonce=nonce,
                    rep=event.rep,
                    ranges=event.ranges,
                    rows=event.rows,
                    reserve=event.reserve,
                    max_row_cost=event.max_row_cost,
                    intended=event.at,
                )
            case events.Uploaded():
                self._change(event.nonce, state="uploaded", file=event.file)
            case events.Creating():
                self._change(event.nonce, state="creating", sent=event)
            case events.Created():
                self._change(event.nonce, state="created", remote=event.remote)
            case events.Exported():
                self._change(event.nonce, state="exported", file=event.file)
            case events.Ended():
                self._change(event.nonce, state="ended", provider_status=event.status)
            case events.Stored():
                self._change(event.nonce, state="stored", stored=event)
            case events.Late():
                self._add(event)
            case events.Looked():
                self._change(event.nonce, rechecked_at=event.at)
            case events.Void():
                self._change(event.nonce, state="void", reason=event.reason, void_at=event.at)
            case events.Rejected():
                self._change(event.nonce, state="rejected", reason=event.reason)
            case events.Unresolved():
                self._change(event.nonce, state="unresolved", reason=event.reason, candidates=event.candidates)
            case events.Cancelling():
                self._change(event.nonce, cancelling=True)
            case events.Foreign():
                self.foreign.add(event.remote)
            case events.Duplicate():
                self.duplicates.append(event)
            case events.Tried():
                self.tried.append(event.reserve)
            case events.Passed():
                self._end_trial()
                self.passed.append(event.cost)
            case events.Failed():
                self._end_trial()

    def _end_trial(self) -> None:
        if not self.tried:
            raise DataError("the journal has the reply to a question that it did not ask: restore it from a backup")
        self.tried.pop()

    def _change(self, nonce: str, **fields: object) -> None:
        if nonce not in self.batches:
            raise DataError(f"the journal has an event of batch {nonce}, but not its intent: restore it from a backup")
        self.batches[nonce] = msgspec.structs.replace(self.batches[nonce], **fields)

    def _add(self, late: events.Late) -> None:
        batch = self.batches.get(late.nonce)
        stored = batch.stored if batch else None
        if stored is None:
            raise DataError(f"the journal has late answers of batch {late.nonce}, which is not stored: restore it")
        outcomes = {
            name: stored.outcomes.get(name, 0) + late.outcomes.get(name, 0) for name in stored.outcomes | late.outcomes
        }
        whole = msgspec.structs.replace(
            stored,
            parts=[*stored.parts, *late.parts],
            answered=stored.answered + sum(late.outcomes.values()),
            again=sorted([*stored.again, *late.again]),
            missing=late.missing,
            quarantined=stored.quarantined + late.quarantined,
            cost=late.cost,
            outcomes=outcomes,
        )
        self._change(late.nonce, stored=whole)

    def attempts(self) -> dict[tuple[int, int], int]:
        """How often the provider did not process a row, by repetition and row."""
        counts: dict[tuple[int, int], int] = {}
        for batch in self.batches.values():
            for start, stop in batch.stored.again if batch.stored else []:
                for row in range(start, stop):
                    counts[batch.rep, row] = counts.get((batch.rep, row), 0) + 1
        return counts

    def open(self) -> list[BatchRecord]:
        """The batches that are not settled."""
        return [batch for batch in self.batches.values() if batch.state in OPEN]

    def pending(self) -> list[BatchRecord]:
        """The open batches that need no action of the user to be settled."""
        return [batch for batch in self.open() if batch.state not in ("unresolved", "exported")]

    def batch_counts(self) -> dict[str, int]:
        """How many batches are in each state."""
        return dict(Counter(batch.state for batch in self.batches.values()))

    def spent(self) -> int:
        """Micro-dollars that answers have cost."""
        return sum(batch.stored.cost for batch in self.batches.values() if batch.stored) + sum(self.passed)

    def answered(self) -> int:
        """How many answers are stored. Answers are never changed or removed, so an equal number means equal answers."""
        return sum(batch.stored.answered for batch in self.batches.values() if batch.stored)

    def reserved(self, now: float, window: float) -> int:
        """Micro-dollars that may still be owed: for open batches, duplicates, void batches and trial questions.

        If a void batch was accepted after all, it runs within the provider's window. Its reserve counts until then, so
        that even a wrong proof cannot break the budget.
        """
        held = sum(batch.reserve for batch in self.open())
        held += sum(b.reserve for b in self.batches.values() if b.state == "void" and now < b.void_at + window)
        return held + sum(duplicate.reserve for duplicate in self.duplicates) + sum(self.tried)


def line(event: AnyEvent, seq: int, previous: int) -> tuple[bytes, int]:
    """The line of an event, and the checksum that the next line continues."""
    body = b"%d %s" % (seq, _encode(event))
    crc = zlib.crc32(body, previous)
    return b"%08x %s\n" % (crc, body), crc


class JournalContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal file holds."""

    events: list[AnyEvent]
    good: int  # bytes; the rest is a torn last line
    crc: int  # the checksum that the next line continues


def read(content: bytes, name: str) -> JournalContent:
    """Read a journal file. A torn last line is left out; any other damage is an error."""
    history: list[AnyEvent] = []
    good = crc = 0
    while good < len(content):
        end = content.find(b"\n", good)
        found = _checked(content[good:end], len(history), crc) if end >= 0 else None
        if found is None:
            if not _torn(content, good, len(history), crc):
                raise DataError(f"{name} is damaged at byte {good} (record {len(history)}): restore it from a backup")
            break
        event, crc = found
        history.append(event)
        good = end + 1
    if history and (not isinstance(history[0], events.Opened) or history[0].format != events.FORMAT):
        raise DataError(f"{name} does not have format {events.FORMAT}: use the version of batchbench that wrote it")
    return JournalContent(events=history, good=good, crc=crc)


def _torn(content: bytes, start: int, seq: int, previous: int) -> bool:
    """Whether the text from `start` can be a last line that was never complete on disk, so that no step relied on it.

    A kill leaves the beginning of a line. A power cut may also lose sectors in the middle, which then read as zeros.
    Any other damage happened to a line that was complete.
    """
    end = content.find(b"\n", start)
    if end < 0:  # a complete line with another byte in place of its newline is not torn
        return content[-1] == 0 or _checked(content[start:-1], seq, previous) is None
    edges = [start, *range(start - start % SECTOR + SECTOR, end + 1, SECTOR), end + 1]
    lost = any(not any(content[one:other]) for one, other in pairwise(edges))
    return end == len(content) - 1 and lost


def _checked(text: bytes, seq: int, previous: int) -> tuple[AnyEvent, int] | None:
    crc, _, body = text.partition(b" ")
    number, _, event = body.partition(b" ")
    if crc != b"%08x" % zlib.crc32(body, previous) or number != b"%d" % seq:
        return None
    return _decode(event), int(crc, 16)


def replay(history: Iterable[AnyEvent]) -> RunState:
    """The state that results from events."""
    state = RunState()
    for event in history:
        state.apply(event)
    return state


# -- the state of rows: one byte for each row and repetition ------------------------------------------------

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
            if batch.state in OPEN:
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
