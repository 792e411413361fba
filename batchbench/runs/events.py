"""Pure: what can happen to a run, each event a line of its journal.

The life of a batch. Each arrow is one event, which is on disk before the next step is taken:

    intent -> uploaded -> creating -> created -> ended -> stored
       |                      |          \\-> rejected              the provider refused it; nothing ran
       |                      |-> void                             it is proved that it was never accepted
       |                      \\-> unresolved                       it is unknown what happened; a person decides
       \\-> exported -> stored                                      written to a file; its results are imported
"""

from typing import Annotated

import msgspec

from batchbench.core.money import MAX_AMOUNT, Price

FORMAT = 1
MAX_ASKED = 2**31  # items times repetitions; each takes a byte of memory
# A journal may come from another person: names become parts of paths and numbers become loops, so both are limited.
Row = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
Ranges = list[tuple[Row, Row]]  # half-open ranges of manifest ids
Money = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]  # micro-dollars
Nonce = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9]{1,40}\Z")]
Repetition = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """One line of a journal; `at` is seconds since 1970."""

    at: Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]  # before the year 10000


class Opened(Event, frozen=True, kw_only=True):
    """First line of every journal: which run it belongs to."""

    format: int = FORMAT
    run: str  # a random name, so that no other journal fits here
    manifest: str
    target: str


class Asked(Event, frozen=True, kw_only=True):
    """What the user asked for, and the budget."""

    items: Row
    repetitions: Repetition
    budget: Money | None  # micro-dollars; None is no limit
    rates: Price  # from which costs are computed, with its source and date


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
    """The provider has the input; nothing is bought yet."""

    nonce: Nonce
    file: str


class Creating(Event, frozen=True, kw_only=True):
    """About to send the create, once.

    The time since then decides whether a batch that is in no listing was accepted. `at` cannot measure it, because
    the user may set that clock. So there is also the machine's uptime, which is valid until the next boot and does not
    count while the machine is frozen, and the time on the provider's clock.
    """

    nonce: Nonce
    uptime: float = 0.0
    provider_time: float | None = msgspec.field(default=None, name="there")  # since 1970; None in older journals
    boot: str = ""  # an id of this boot; empty if the machine has none
    key: str = ""  # a salted digest: another key may not see the batch; empty in older journals


class Created(Event, frozen=True, kw_only=True):
    """The provider has accepted the batch; `found`: a search has shown it, the reply to the create was lost."""

    nonce: Nonce
    remote: str
    found: bool = False


class Exported(Event, frozen=True, kw_only=True):
    """The requests are written to a file, for the user to have answered; their results are imported."""

    nonce: Nonce
    file: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\.jsonl\Z")]  # its name


class Ended(Event, frozen=True, kw_only=True):
    """The provider has finished the batch: completed, expired, cancelled or failed."""

    nonce: Nonce
    status: str = msgspec.field(name="state")  # the provider's own word


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed file of a run."""

    file: Annotated[str, msgspec.Meta(pattern=r"\A(raw|answers)/[\w.-]+\Z")]
    bytes: int
    sha256: str


class Stored(Event, frozen=True, kw_only=True):
    """The answers are on disk and their cost is known; the rest of the reserve is free again."""

    nonce: Nonce
    parts: list[Part]  # the provider's bytes, then the answers made of them
    answered: int  # rows with a final answer, also a refusal or a failure
    again: Ranges  # rows that the provider did not process: to be asked again
    missing: Ranges  # rows without any line although the batch was completed: maybe paid for
    quarantined: int  # lines that belong to no row
    cost: Money
    outcomes: dict[str, int] = {}  # answered rows by outcome; empty in older journals


class Late(Event, frozen=True, kw_only=True):
    """The provider delivered answers of a batch after it had been stored without them."""

    nonce: Nonce
    parts: list[Part]  # added to the parts of `stored`; the next three fields are added too
    again: Ranges
    quarantined: int
    outcomes: dict[str, int]
    missing: Ranges  # rows that are still missing
    cost: Money  # of the whole batch, as it is known now


class Looked(Event, frozen=True, kw_only=True):
    """The results of a stored batch were fetched again completely and contained nothing new."""

    nonce: Nonce


class Void(Event, frozen=True, kw_only=True):
    """The provider did not accept the create. The rows are free again; the reserve is still held."""

    nonce: Nonce
    reason: str


class Rejected(Event, frozen=True, kw_only=True):
    """The batch was refused or never sent: nothing ran and nothing is owed."""

    nonce: Nonce
    reason: str


class Unresolved(Event, frozen=True, kw_only=True):
    """The outcome of the batch cannot be determined; the user has to decide."""

    nonce: Nonce
    reason: str
    candidates: list[str]


class Foreign(Event, frozen=True, kw_only=True):
    """A batch at the provider that is not ours; recorded so that its results are not read again."""

    remote: str


class Duplicate(Event, frozen=True, kw_only=True):
    """A second batch with our nonce, made by something between us and the provider; cancelled, but its cost counts."""

    nonce: Nonce
    remote: str
    reserve: Money


class Cancelling(Event, frozen=True, kw_only=True):
    """The user wants this batch to be cancelled."""

    nonce: Nonce


class Tried(Event, frozen=True, kw_only=True):
    """About to ask one harmless question outside any batch, to see whether the model accepts our requests."""

    reserve: Money


class Passed(Event, frozen=True, kw_only=True):
    """The question was answered: batches may be bought."""

    cost: Money


class Failed(Event, frozen=True, kw_only=True):
    """The question was refused at no cost; it is asked again before anything is bought."""

    reason: str


_BatchEvent = Intent | Uploaded | Creating | Created | Exported | Ended | Stored | Late | Looked | Cancelling
AnyEvent = Opened | Asked | _BatchEvent | Void | Rejected | Unresolved | Foreign | Duplicate | Tried | Passed | Failed
