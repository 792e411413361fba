"""Pure: the events of a run as lines of a file, and the state they add up to.

A journal is a text file of lines `<crc32> <seq> <json>`. The checksum of a line covers the line before it too, so a
line that was changed, removed, moved or copied in from another journal breaks the chain. Only the last line may be
torn, by a process that died while writing it.
"""

import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, get_args

import msgspec

from batchbench.errors import DataError
from batchbench.runs.events import (
    FORMAT,
    MOST_ASKED,
    AnyEvent,
    Asked,
    Cancelling,
    Created,
    Creating,
    Duplicate,
    Ended,
    Exported,
    Failed,
    Foreign,
    Intent,
    Late,
    Looked,
    Money,
    Nonce,
    Opened,
    Passed,
    Ranges,
    Rejected,
    Repetition,
    Row,
    Stored,
    Tried,
    Unresolved,
    Uploaded,
    Void,
)

SECTOR = 512  # bytes, the least that a disk writes as one
BatchState = Literal[
    "intent", "uploaded", "creating", "created", "exported", "ended", "stored", "void", "rejected", "unresolved"
]
SETTLED: frozenset[BatchState] = frozenset({"stored", "void", "rejected"})
OPEN: frozenset[BatchState] = frozenset(get_args(BatchState)) - SETTLED

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One intent and what has become of it."""

    nonce: Nonce
    rep: Repetition
    ranges: Ranges
    rows: Row
    reserve: Money
    max_row_cost: Money = 0  # micro-dollars, an upper bound for each row; 0 if unknown
    state: BatchState = "intent"
    intended: float  # when
    sent: Creating | None = None  # the create, once it has left
    closed: float = 0.0  # when it became void
    file: str | None = None
    remote: str | None = None
    provider_status: str = ""  # its own word for how the batch ended
    reason: str = ""  # why it is void, rejected or unresolved
    cancelling: bool = False
    stored: Stored | None = None
    rechecked_at: float = 0.0  # when its missing rows were last looked for without result
    candidates: list[str] = []


class RunState(msgspec.Struct, kw_only=True):
    """Everything a journal says, folded."""

    run: str = ""
    manifest: str = ""
    target: str = ""
    asked: Asked | None = None
    inode: str = ""  # of the journal, when a batch was last bought
    batches: dict[str, BatchRecord] = {}
    foreign: set[str] = set()
    duplicates: list[Duplicate] = []
    tried: list[int] = []  # reservations of trials without an answer
    passed: list[int] = []  # costs of trials with one

    def apply(self, event: AnyEvent) -> None:
        """Take one more event into account."""
        match event:
            case Opened():
                self.run, self.manifest, self.target = event.run, event.manifest, event.target
            case Asked():
                if event.items * event.repetitions > MOST_ASKED:
                    raise DataError(
                        f"the journal asks for {event.items:,} items {event.repetitions:,} times: restore it"
                    )
                self.asked = event
            case Intent(nonce=nonce):
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
            case Uploaded():
                self._change(event.nonce, state="uploaded", file=event.file)
            case Creating():
                self._change(event.nonce, state="creating", sent=event)
            case Created():
                self._change(event.nonce, state="created", remote=event.remote)
            case Exported():
                self._change(event.nonce, state="exported", file=event.file)
            case Ended():
                self._change(event.nonce, state="ended", provider_status=event.status)
            case Stored():
                self._change(event.nonce, state="stored", stored=event)
            case Late():
                self._add(event)
            case Looked():
                self._change(event.nonce, rechecked_at=event.at)
            case Void():
                self._change(event.nonce, state="void", reason=event.reason, closed=event.at)
            case Rejected():
                self._change(event.nonce, state="rejected", reason=event.reason)
            case Unresolved():
                self._change(event.nonce, state="unresolved", reason=event.reason, candidates=event.candidates)
            case Cancelling():
                self._change(event.nonce, cancelling=True)
            case Foreign():
                self.foreign.add(event.remote)
            case Duplicate():
                self.duplicates.append(event)
            case Tried():
                self.tried.append(event.reserve)
            case Passed():
                self._end_trial()
                self.passed.append(event.cost)
            case Failed():
                self._end_trial()

    def _end_trial(self) -> None:
        if not self.tried:
            raise DataError("the journal tells how a first question ended that was never asked: restore it")
        self.tried.pop()

    def _change(self, nonce: str, **fields: object) -> None:
        if nonce not in self.batches:
            raise DataError(f"the journal tells of batch {nonce}, which nobody intended: restore it from a backup")
        self.batches[nonce] = msgspec.structs.replace(self.batches[nonce], **fields)

    def _add(self, late: Late) -> None:
        batch = self.batches.get(late.nonce)
        stored = batch.stored if batch else None
        if stored is None:
            raise DataError(f"answers of batch {late.nonce} came late, and the batch was never stored")
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
        """How often each repetition and row was asked without the provider getting to it."""
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
        """The open batches that time will settle, without anybody's help."""
        return [batch for batch in self.open() if batch.state not in ("unresolved", "exported")]

    def batch_counts(self) -> dict[str, int]:
        """How many batches are in each state."""
        counts: dict[str, int] = {}
        for batch in self.batches.values():
            counts[batch.state] = counts.get(batch.state, 0) + 1
        return counts

    def spent(self) -> int:
        """Micro-dollars that answers have cost."""
        return sum(batch.stored.cost for batch in self.batches.values() if batch.stored) + sum(self.passed)

    def answered(self) -> int:
        """Answers that are stored; since none is ever changed or removed, equal numbers are equal answers."""
        return sum(batch.stored.answered for batch in self.batches.values() if batch.stored)

    def reserved(self, now: float, window: float) -> int:
        """Micro-dollars that may still be owed: of open batches, of duplicates, and of what was declared void.

        A void batch that was accepted after all would run within the provider's window; until that has passed, its
        reservation stands, so that even a wrong verdict cannot break the budget.
        """
        held = sum(batch.reserve for batch in self.open())
        held += sum(b.reserve for b in self.batches.values() if b.state == "void" and now < b.closed + window)
        return held + sum(duplicate.reserve for duplicate in self.duplicates) + sum(self.tried)


def line(event: AnyEvent, seq: int, previous: int) -> tuple[bytes, int]:
    """The line of an event, and the checksum that the next line continues from."""
    body = b"%d %s" % (seq, _encode(event))
    crc = zlib.crc32(body, previous)
    return b"%08x %s\n" % (crc, body), crc


class JournalContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal file holds: its events, how many of its bytes are good, and where its chain stands."""

    events: list[AnyEvent]
    good: int  # bytes; what follows is a torn last line
    crc: int


def read(content: bytes, name: str) -> JournalContent:
    """The events in a journal file; a torn last line is left out, any other damage is an error."""
    events: list[AnyEvent] = []
    good = crc = 0
    while good < len(content):
        end = content.find(b"\n", good)
        found = _checked(content[good:end], len(events), crc) if end >= 0 else None
        if found is None:
            if not _torn(content, good, len(events), crc):
                raise DataError(f"{name} is damaged at byte {good} (record {len(events)}): restore it from a backup")
            break
        event, crc = found
        events.append(event)
        good = end + 1
    if events and (not isinstance(events[0], Opened) or events[0].format != FORMAT):
        raise DataError(f"{name} is of another format than {FORMAT}: use the version of batchbench that wrote it")
    return JournalContent(events=events, good=good, crc=crc)


def _torn(content: bytes, start: int, seq: int, previous: int) -> bool:
    """Whether what begins at `start` can be a last line that was never whole on disk, so that nothing rests on it.

    A kill leaves the beginning of a line. A power cut may also leave out sectors in the middle, which read as zeros.
    Anything else was whole once, and has been changed since.
    """
    end = content.find(b"\n", start)
    if end < 0:  # a whole line with something else for its newline is not torn
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


def replay(events: Iterable[AnyEvent]) -> RunState:
    """The state that events add up to."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state
