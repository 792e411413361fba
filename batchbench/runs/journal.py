"""Pure: the events of a run as lines of a file, and the state that they result in.

A journal is a text file of lines `<crc32> <seq> <json>`. The checksum of a line also covers the line before it, so a
line that was changed, removed, moved or copied from another journal breaks the chain. Only the last line may be torn:
the process died while writing it.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, get_args

import msgspec

from batchbench.core.money import Price
from batchbench.errors import DataError
from batchbench.runs import events
from batchbench.runs.events import AnyEvent, Money, Ranges

RESTORE = "restore it from a backup, or rebuild it with `batchbench salvage`"
SECTOR = 512  # bytes, the smallest unit that a disk writes
BatchState = Literal[
    "intent", "uploaded", "creating", "created", "exported", "ended", "stored", "void", "rejected", "unresolved"
]
SETTLED: frozenset[BatchState] = frozenset({"stored", "void", "rejected"})
OPEN: frozenset[BatchState] = frozenset(get_args(BatchState)) - SETTLED

_encode = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(AnyEvent).decode


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: its intent and its current state."""

    nonce: events.Nonce
    rep: events.Repetition
    ranges: Ranges
    rows: events.Row
    reserve: Money
    max_row_cost: Money = 0  # micro-dollars, an upper bound for each row; 0 if unknown
    rates: Price | None = None  # at which it was bought, so its cost is booked at them; None if nothing was asked
    max_tokens: int | None = None  # the limit in its requests if it is shorter than the target's own
    tokens_per_byte: float | None = None  # of input, from which `reserve` is computed; None: at most a token per byte
    state: BatchState = "intent"
    intended: float  # when, in seconds since 1970
    sent: events.Creating | None = None  # the create; None before it is sent
    decided_at: float = 0.0  # when it became void or unresolved, by the provider's clock if it is known
    void_by_user: bool = False
    cleared: bool = False  # it is void and owes nothing
    file: str | None = None
    remote: str | None = None  # its id at the provider
    key: str = ""  # a salted digest of the key that bought or found it; empty in older journals
    done: int = 0  # requests that the provider reported as done when it had ended
    provider_status: str = ""  # how it ended, in the provider's own word
    reason: str = ""  # why it is void, rejected or unresolved
    cancelling: bool = False
    stored: events.Stored | None = None
    rechecked_at: float = 0.0  # when its missing rows were last looked for without result
    candidates: list[str] = []


class RunState(msgspec.Struct, kw_only=True):
    """Everything that a journal says."""

    run: str = ""
    opened_at: float = 0.0
    manifest: str = ""
    target: str = ""
    prompts_sha256: str = ""  # of the manifest's prompts and their order; empty if the journal is older
    asked: events.Asked | None = None
    inode: str = ""  # of the journal, when a batch was last bought
    batches: dict[str, BatchRecord] = {}
    foreign: set[str] = set()
    duplicates: list[events.Duplicate] = []
    tried: list[events.Tried] = []  # questions of the pilot without a reply
    passed: list[events.Passed] = []  # questions of the pilot with a reply
    pilot: events.Piloted | None = None  # how the pilot's answers were judged
    salvaged: list[events.Salvaged] = []  # how often the journal was rebuilt

    def apply(self, event: AnyEvent) -> None:
        """Add one more event."""
        match event:
            case events.Opened():
                self.run, self.manifest, self.target = event.run, event.manifest, event.target
                self.opened_at, self.prompts_sha256 = event.at, event.prompts_sha256
            case events.Asked():
                self._ask(event)
            case events.Intent():
                self._intend(event)
            case events.Uploaded():
                self._change(event.nonce, state="uploaded", file=event.file)
            case events.Creating():
                self._change(event.nonce, state="creating", sent=event, key=event.key)
            case events.Created():
                key = event.key or self._batch(event.nonce).key
                self._change(event.nonce, state="created", remote=event.remote, key=key)
            case events.Exported():
                self._change(event.nonce, state="exported", file=event.file)
            case events.Ended():
                self._change(event.nonce, state="ended", provider_status=event.status, done=event.done)
            case events.Stored():
                self._change(event.nonce, state="stored", stored=event)
            case events.Late():
                self._add(event)
            case events.Looked():
                self._change(event.nonce, rechecked_at=event.at)
            case events.Void():
                self._change(event.nonce, state="void", cleared=False, void_by_user=event.by_user, **_decision(event))
            case events.Cleared():
                self._change(event.nonce, cleared=True)
            case events.Rejected():
                self._change(event.nonce, state="rejected", reason=event.reason)
            case events.Unresolved():
                self._change(event.nonce, state="unresolved", candidates=event.candidates, **_decision(event))
            case events.Cancelling():
                self._change(event.nonce, cancelling=True)
            case events.Foreign():
                self.foreign |= {event.remote, *event.more}
            case events.Duplicate():
                self.duplicates.append(event)
            case events.Tried():
                self.tried.append(event)
            case events.Passed():
                self._end_question(event.row)
                self.passed.append(event)
            case events.Failed():
                self._end_question(event.row)
            case events.Piloted():
                self.pilot = event
            case events.Salvaged():
                self.salvaged.append(event)
                self.inode = event.inode

    def _ask(self, event: events.Asked) -> None:
        if event.items * event.repetitions > events.MAX_ASKED:
            times = f"{event.items:,} items {event.repetitions:,} times"
            raise DataError(f"the journal asks for {times}: restore it from a backup")
        self.asked = event

    def _intend(self, event: events.Intent) -> None:
        self.inode = event.inode
        self.batches[event.nonce] = BatchRecord(
            nonce=event.nonce,
            rep=event.rep,
            ranges=event.ranges,
            rows=event.rows,
            reserve=event.reserve,
            max_row_cost=event.max_row_cost,
            rates=event.rates or (self.asked.rates if self.asked else None),
            max_tokens=event.max_tokens,
            tokens_per_byte=event.tokens_per_byte,
            intended=event.at,
            state="created" if event.remote else "intent",
            remote=event.remote,
            key=event.key,
        )

    def _end_question(self, row: int | None) -> None:
        asked = next((question for question in reversed(self.tried) if question.row == row), None)
        if asked is None:
            raise DataError(f"the journal has the reply to a question that it did not ask: {RESTORE}")
        self.tried.remove(asked)

    def _batch(self, nonce: str) -> BatchRecord:
        if nonce not in self.batches:
            raise DataError(f"the journal has an event of batch {nonce}, but not its intent: {RESTORE}")
        return self.batches[nonce]

    def _change(self, nonce: str, **fields: object) -> None:
        self.batches[nonce] = msgspec.structs.replace(self._batch(nonce), **fields)

    def _add(self, late: events.Late) -> None:
        batch = self.batches.get(late.nonce)
        stored = batch.stored if batch else None
        if stored is None:
            raise DataError(f"the journal has late answers of batch {late.nonce}, which is not stored: {RESTORE}")
        outcomes = {
            name: stored.outcomes.get(name, 0) + late.outcomes.get(name, 0) for name in stored.outcomes | late.outcomes
        }
        whole = msgspec.structs.replace(
            stored,
            parts=[*stored.parts, *late.parts],
            answered=stored.answered + sum(late.outcomes.values()),
            again=sorted([*stored.again, *late.again]),
            cut_off=sorted([*stored.cut_off, *late.cut_off]),
            held=sorted([*stored.held, *late.held]),
            missing=late.missing,
            quarantined=stored.quarantined + late.quarantined,
            cost=late.cost,
            outcomes=outcomes,
        )
        self._change(late.nonce, stored=whole)

    def attempts(self) -> dict[tuple[int, int], int]:
        """How often the provider did not process a row, by repetition and row.

        Rows that it held back, answers that a short limit has cut off, and cancelled batches do not count.
        """
        counts: dict[tuple[int, int], int] = {}
        for batch in self.batches.values():
            if batch.stored is None or not batch.stored.again or batch.cancelling:
                continue
            others = {*rows_of(batch.stored.held), *rows_of(batch.stored.cut_off)}
            for row in rows_of(batch.stored.again):
                if row not in others:
                    counts[batch.rep, row] = counts.get((batch.rep, row), 0) + 1
        return counts

    def cancelled(self) -> set[tuple[int, int]]:
        """Repetition and row of requests that were last in a batch that the user cancelled, and were not answered."""
        found: set[tuple[int, int]] = set()
        for batch in self.batches.values():
            if batch.cancelling and batch.stored:
                found |= {(batch.rep, row) for row in rows_of(batch.stored.again)}
            elif found and batch.stored:
                found -= {(batch.rep, row) for row in rows_of(batch.ranges)}
        return found

    def open(self) -> list[BatchRecord]:
        """The batches that are not settled."""
        return [batch for batch in self.batches.values() if batch.state in OPEN]

    def pending(self) -> list[BatchRecord]:
        """The open batches that need no action of the user to be settled."""
        return [batch for batch in self.open() if batch.state not in ("unresolved", "exported")]

    def remotes(self) -> set[str]:
        """The ids at the provider of all batches and their copies."""
        return {batch.remote for batch in self.batches.values() if batch.remote} | {
            copy.remote for copy in self.duplicates
        }

    def batch_counts(self) -> dict[str, int]:
        """How many batches are in each state."""
        return dict(Counter(batch.state for batch in self.batches.values()))

    def spent(self) -> int:
        """Micro-dollars that answers have cost."""
        stored = sum(batch.stored.cost for batch in self.batches.values() if batch.stored)
        return stored + sum(question.cost for question in self.passed)

    def rates(self) -> list[Price]:
        """The different rates at which stored batches were bought; before there are any, those of the plan."""
        paid = [batch.rates for batch in self.batches.values() if batch.stored and batch.rates]
        return list(dict.fromkeys(paid)) or ([self.asked.rates] if self.asked else [])

    def priced(self) -> bool:
        """Whether costs are known: the server has a price, or had one when answers were bought."""
        rates = [*self.rates(), *([self.asked.rates] if self.asked else [])]
        return not rates or any(price.priced for price in rates)

    def answered(self) -> int:
        """How many answers are stored. No answer is removed; only `rereads` change answers."""
        return sum(batch.stored.answered for batch in self.batches.values() if batch.stored)

    def rereads(self) -> int:
        """How often stored lines were read again: with an equal number of answers, an equal number is equal answers."""
        stored = [batch.stored for batch in self.batches.values() if batch.stored]
        return sum(events.REREAD in part.file for one in stored for part in one.parts)

    def reserved(self) -> int:
        """Micro-dollars that may still be owed: for open batches, duplicates, void batches and the pilot.

        A void batch may have been accepted after all. Its reserve counts until a late listing lacks it, too.
        """
        held = sum(batch.reserve for batch in self.open())
        held += sum(batch.reserve for batch in self.batches.values() if batch.state == "void" and not batch.cleared)
        held += sum(duplicate.reserve for duplicate in self.duplicates)
        return held + sum(question.reserve for question in self.tried)


def _decision(event: events.Void | events.Unresolved) -> dict[str, object]:
    at = event.at if event.provider_time is None else event.provider_time
    return {"reason": event.reason, "decided_at": at}


def line(event: AnyEvent, seq: int, previous: int) -> tuple[bytes, int]:
    """The line of an event, and the checksum that the next line continues."""
    body = b"%d %s" % (seq, _encode(event))
    crc = zlib.crc32(body, previous)
    return b"%08x %s\n" % (crc, body), crc


class JournalContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal file holds."""

    events: list[AnyEvent]
    good: int  # bytes; the rest is a torn last line
    checksums: list[int]  # of each line

    @property
    def crc(self) -> int:
        """The checksum that the next line continues."""
        return self.checksums[-1] if self.checksums else 0


def read(content: bytes, name: str) -> JournalContent:
    """Read a journal file. A torn last line is left out; any other damage is an error."""
    history: list[AnyEvent] = []
    checksums: list[int] = []
    good = crc = 0
    while good < len(content):
        end = content.find(b"\n", good)
        found = _checked(content[good:end], len(history), crc) if end >= 0 else None
        if found is None:
            if not _torn(content, good, len(history), crc):
                raise DataError(f"{name} is damaged at byte {good} (record {len(history)}): {RESTORE}")
            break
        event, crc = found
        history.append(event)
        checksums.append(crc)
        good = end + 1
    if history and (not isinstance(history[0], events.Opened) or history[0].format != events.FORMAT):
        raise DataError(f"{name} does not have format {events.FORMAT}: use the version of batchbench that wrote it")
    return JournalContent(events=history, good=good, checksums=checksums)


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
    return decode_event(event), int(crc, 16)


def replay(history: Iterable[AnyEvent]) -> RunState:
    """The state that results from events."""
    state = RunState()
    for event in history:
        state.apply(event)
    return state


def rows_of(ranges: Ranges) -> list[int]:
    """Every row of ranges."""
    return [row for start, stop in ranges for row in range(start, stop)]
