"""Pure: what can happen to a run, each event a line of its journal.

The life of a batch, each arrow one event that is on disk before the next step is taken:

    intent -> uploaded -> creating -> created -> ended -> stored
       |                      |          \\-> rejected              the provider refused it; nothing ran
       |                      |-> void                             proved that it was never accepted
       |                      \\-> unresolved                       nobody can tell; a person decides
       \\-> exported -> stored                                      left as a file, and came back as one
"""

from typing import Annotated

import msgspec

from batchbench.core.money import MAX_AMOUNT, Price

FORMAT = 1
MOST_ASKED = 2**31  # answers to every variant of an item; each takes a byte of memory
# What a journal may say is limited to what batchbench writes: names become parts of paths, and numbers loops.
Row = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
Ranges = list[tuple[Row, Row]]  # half-open ranges of manifest ids
Money = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]  # micro-dollars
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
    max_row_cost: Money = msgspec.field(default=0, name="most")  # micro-dollars, an upper bound; 0 in older journals
    inode: str = msgspec.field(default="", name="place")  # of the journal; a copy has another; empty in older journals


class Uploaded(Event, frozen=True, kw_only=True):
    """The input is at the provider's; nothing has been bought yet."""

    nonce: Nonce
    file: str


class Creating(Event, frozen=True, kw_only=True):
    """The create is about to leave, once.

    How long ago that was decides whether a batch that nobody lists was ever accepted, and `at` may be any time at all
    if somebody sets the clock. So the machine's uptime is noted as well, which only holds until it is started anew, and
    stands still with a machine that is frozen; and what the provider's own clock showed.
    """

    nonce: Nonce
    uptime: float = 0.0
    provider_time: float | None = msgspec.field(default=None, name="there")  # since 1970; None in older journals
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
    status: str = msgspec.field(name="state")  # the provider's own word


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
