"""Pure: the events of a run, and the state they add up to.

A journal is a text file of lines `<crc32> <seq> <json>`. The checksum of a line covers the line before it too, so a
line that was changed, removed, moved or copied in from another journal breaks the chain. Only the last line may be
torn, by a process that died while writing it.

The life of a batch, each arrow one event that is on disk before the next step is taken:

    intent -> uploaded -> creating -> created -> ended -> stored
       |                      |          \\-> rejected              the provider refused it; nothing ran
       |                      |-> void                             proved that it was never accepted
       |                      \\-> unresolved                       nobody can tell; a person decides
       \\-> exported -> stored                                      left as a file, and came back as one
"""

import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal, get_args

import msgspec

from batchbench.errors import DataError
from batchbench.money import MOST, Price

FORMAT = 1
MOST_ASKED = 2**31  # answers to every variant of an item; each takes a byte of memory
SECTOR = 512  # bytes, the least that a disk writes as one
# What a journal may say is limited to what batchbench writes: names become parts of paths, and numbers loops.
Row = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
Ranges = list[tuple[Row, Row]]  # half-open ranges of manifest ids
Money = Annotated[int, msgspec.Meta(ge=0, le=MOST)]  # micro-dollars
Nonce = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9]{1,40}\Z")]
Repetition = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """One line of a journal; `at` is seconds since 1970."""

    at: Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]  # there is no year 10000


class Opened(Event, frozen=True, kw_only=True):
    """First line of every journal: whose it is."""

    format: int = FORMAT
    run: str  # a random name, so that no other journal fits here
    manifest: str
    target: str


class Asked(Event, frozen=True, kw_only=True):
    """What the user wants of the manifest, and may spend on it."""

    items: Row
    repetitions: Repetition
    budget: Money | None  # micro-dollars; null is no limit
    rates: Price  # what was charged against, with its source and date


class Intent(Event, frozen=True, kw_only=True):
    """About to submit these rows as one batch, for at most `reserve`."""

    nonce: Nonce
    rep: Repetition
    ranges: Ranges
    rows: Row
    reserve: Money  # micro-dollars, an upper bound
    most: Money = 0  # micro-dollars, an upper bound for each of the rows; 0 in older journals


class Uploaded(Event, frozen=True, kw_only=True):
    """The input is at the provider's; nothing has been bought yet."""

    nonce: Nonce
    file: str


class Creating(Event, frozen=True, kw_only=True):
    """The create is about to leave, once.

    How long ago that was decides whether a batch that nobody lists was ever accepted, and `at` may be any time at all
    if somebody sets the clock. So the machine's uptime is noted as well, which only holds until it is started anew.
    """

    nonce: Nonce
    uptime: float = 0.0
    boot: str = ""  # empty: this machine does not tell its boots apart
    key: str = ""  # a salted digest: what one key has made, another may not see; empty in older journals


class Created(Event, frozen=True, kw_only=True):
    """The provider has accepted the batch; `found` if that was learnt by looking for it."""

    nonce: Nonce
    remote: str
    found: bool = False


class Exported(Event, frozen=True, kw_only=True):
    """The requests leave as a file, for somebody else to have answered; their results are imported."""

    nonce: Nonce
    file: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\.jsonl\Z")]  # its name


class Ended(Event, frozen=True, kw_only=True):
    """The provider is done with the batch, one way or another."""

    nonce: Nonce
    state: str  # the provider's word


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed file of a run."""

    file: Annotated[str, msgspec.Meta(pattern=r"\A(raw|answers)/[\w.-]+\Z")]
    bytes: int
    sha256: str


class Stored(Event, frozen=True, kw_only=True):
    """The answers are on disk, and what they cost is known; what was reserved beyond that is free again."""

    nonce: Nonce
    parts: list[Part]  # the provider's bytes, then the answers made of them
    answered: int  # rows with a final answer, whatever it says
    again: Ranges  # rows the provider did not get to: to be asked again
    missing: Ranges  # rows without any line although the batch ended well: maybe paid for
    quarantined: int  # lines nobody could attribute
    cost: Money
    outcomes: dict[str, int] = {}  # how many of the answered rows ended how; empty in older journals


class Late(Event, frozen=True, kw_only=True):
    """Answers that turned up at the provider's after their batch had been stored without them."""

    nonce: Nonce
    parts: list[Part]  # in addition to those of `stored`, like the next three
    again: Ranges
    quarantined: int
    outcomes: dict[str, int]
    missing: Ranges  # what is still missing
    cost: Money  # of the whole batch, as it is known now


class Looked(Event, frozen=True, kw_only=True):
    """The results of a stored batch were fetched once more, whole, and held nothing new."""

    nonce: Nonce


class Void(Event, frozen=True, kw_only=True):
    """Proved that the create never arrived; the rows are free again, the reservation not yet."""

    nonce: Nonce
    reason: str


class Rejected(Event, frozen=True, kw_only=True):
    """The provider said no, so nothing ran and nothing is owed."""

    nonce: Nonce
    reason: str


class Unresolved(Event, frozen=True, kw_only=True):
    """Nobody can tell what became of the batch; a person has to decide."""

    nonce: Nonce
    reason: str
    candidates: list[str]


class Foreign(Event, frozen=True, kw_only=True):
    """A batch at the provider's that is not ours, looked at so that nobody has to look again."""

    remote: str


class Duplicate(Event, frozen=True, kw_only=True):
    """A second batch with our nonce, made by somebody between us and the provider; it is cancelled, and counted."""

    nonce: Nonce
    remote: str
    reserve: Money


class Cancelling(Event, frozen=True, kw_only=True):
    """The user asked for this batch to be cancelled."""

    nonce: Nonce


class Tried(Event, frozen=True, kw_only=True):
    """About to ask one harmless question at once, to see whether the model takes our kind of request."""

    reserve: Money


class Passed(Event, frozen=True, kw_only=True):
    """The question was answered, so batches of such requests may be bought."""

    cost: Money


class Failed(Event, frozen=True, kw_only=True):
    """The question was refused, which cost nothing; it will be asked again before anything is bought."""

    reason: str


AnyEvent = (
    Opened
    | Asked
    | Intent
    | Uploaded
    | Creating
    | Created
    | Exported
    | Ended
    | Stored
    | Late
    | Looked
    | Void
    | Rejected
    | Unresolved
    | Foreign
    | Duplicate
    | Cancelling
    | Tried
    | Passed
    | Failed
)
BatchState = Literal[
    "intent", "uploaded", "creating", "created", "exported", "ended", "stored", "void", "rejected", "unresolved"
]
SETTLED: frozenset[BatchState] = frozenset({"stored", "void", "rejected"})
OPEN: frozenset[BatchState] = frozenset(get_args(BatchState)) - SETTLED

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One intent and what has become of it."""

    nonce: Nonce
    rep: Repetition
    ranges: Ranges
    rows: Row
    reserve: Money
    most: Money = 0  # of the reserve, for any one row
    state: BatchState = "intent"
    intended: float  # when
    sent: Creating | None = None  # the create, once it has left
    closed: float = 0.0  # when it became void
    file: str | None = None
    remote: str | None = None
    word: str = ""  # the provider's last word on it, or our reason
    cancelling: bool = False
    stored: Stored | None = None
    looked: float = 0.0  # when somebody last looked for what it lacks, in vain
    candidates: list[str] = []


class State(msgspec.Struct, kw_only=True):
    """Everything a journal says, folded."""

    run: str = ""
    manifest: str = ""
    target: str = ""
    asked: Asked | None = None
    batches: dict[str, Batch] = {}
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
                self.batches[nonce] = Batch(
                    nonce=nonce,
                    rep=event.rep,
                    ranges=event.ranges,
                    rows=event.rows,
                    reserve=event.reserve,
                    most=event.most,
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
                self._change(event.nonce, state="ended", word=event.state)
            case Stored():
                self._change(event.nonce, state="stored", stored=event)
            case Late():
                self._add(event)
            case Looked():
                self._change(event.nonce, looked=event.at)
            case Void():
                self._change(event.nonce, state="void", word=event.reason, closed=event.at)
            case Rejected():
                self._change(event.nonce, state="rejected", word=event.reason)
            case Unresolved():
                self._change(event.nonce, state="unresolved", word=event.reason, candidates=event.candidates)
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

    def open(self) -> list[Batch]:
        """The batches that are not settled."""
        return [batch for batch in self.batches.values() if batch.state in OPEN]

    def pending(self) -> list[Batch]:
        """The open batches that time will settle, without anybody's help."""
        return [batch for batch in self.open() if batch.state not in ("unresolved", "exported")]

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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal file holds: its events, how many of its bytes are good, and where its chain stands."""

    events: list[AnyEvent]
    good: int  # bytes; what follows is a torn last line
    crc: int


def read(content: bytes, name: str) -> Reading:
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
    return Reading(events=events, good=good, crc=crc)


def _torn(content: bytes, start: int, seq: int, previous: int) -> bool:
    """Whether what begins at `start` can be a last line that was never whole on disk, so that nothing rests on it.

    A kill leaves the beginning of a line. A power cut may also leave out sectors in the middle, which read as zeros.
    Anything else was whole once, and has been changed since.
    """
    end = content.find(b"\n", start)
    if end < 0:  # a whole line with something else for its newline is not torn
        return content[-1] == 0 or _checked(content[start:-1], seq, previous) is None
    edges = [start, *range(start - start % SECTOR + SECTOR, end, SECTOR), end + 1]
    lost = any(not any(content[one:other]) for one, other in pairwise(edges))
    return end == len(content) - 1 and lost


def _checked(text: bytes, seq: int, previous: int) -> tuple[AnyEvent, int] | None:
    crc, _, body = text.partition(b" ")
    number, _, event = body.partition(b" ")
    if crc != b"%08x" % zlib.crc32(body, previous) or number != b"%d" % seq:
        return None
    return _decode(event), int(crc, 16)


def replay(events: Iterable[AnyEvent]) -> State:
    """The state that events add up to."""
    state = State()
    for event in events:
        state.apply(event)
    return state
