"""Pure: what can happen to a run, each event a line of its journal.

The life of a batch. Each arrow is one event, which is on disk before the next step is taken:

    intent -> uploaded -> creating -> created -> ended -> stored
       |                      |          \\-> rejected              the provider refused it; nothing ran
       |                      |-> void -> cleared                  no listing shows it, so it was not accepted
       |                      \\-> unresolved                       it is unknown what happened; a person decides
       \\-> exported -> stored                                      written to a file; its results are imported

Void and unresolved are not final: a batch that a later search finds becomes `created`.
"""

from typing import Annotated, Literal

import msgspec

from batchbench.core.money import MAX_AMOUNT, Price
from batchbench.providers.interface import Line
from batchbench.providers.target import Target

REREAD = "-reread"  # in the name of a file with all answers of a batch whose lines were read again
FORMAT = 1
MAX_ASKED = 2**31  # items times repetitions; each takes a byte of memory
# A journal may come from another person: names become parts of paths and numbers become loops, so both are limited.
Row = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
Ranges = list[tuple[Row, Row]]  # half-open ranges of manifest ids
Money = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]  # micro-dollars
Nonce = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9]{1,40}\Z")]
Repetition = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**32)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=2**32)]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """One line of a journal; `at` is seconds since 1970."""

    at: Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]  # before the year 10000


class Opened(Event, frozen=True, kw_only=True):
    """First line of every journal: which run it belongs to."""

    format: int = FORMAT
    run: str  # a random name, so that no other journal fits here
    manifest: str
    target: str
    prompts_sha256: str = ""  # of the manifest's prompts and their order; empty in older journals
    settings: Target | None = None  # as in run.json, which can be lost; None in older journals


class Asked(Event, frozen=True, kw_only=True):
    """What the user asked for, and the budget."""

    items: Row
    repetitions: Repetition
    budget: Money | None  # micro-dollars; None is no limit
    rates: Price  # at which batches are bought from now on, with its source and date
    budget_mode: Literal["absolute", "learnt"] = "absolute"  # how the input of a request is reserved


class Intent(Event, frozen=True, kw_only=True):
    """About to submit these rows as one batch, for at most `reserve`."""

    nonce: Nonce
    rep: Repetition
    ranges: Ranges
    rows: Row
    reserve: Money  # micro-dollars, an upper bound
    max_row_cost: Money = msgspec.field(default=0, name="most")  # micro-dollars, an upper bound; 0 in older journals
    inode: str = msgspec.field(default="", name="place")  # of the journal; a copy has another; empty in older journals
    rates: Price | None = None  # at which the rows are bought; None in older journals: those of the last `asked`
    remote: str | None = None  # the id of a batch that exists already: the journal had lost it, or called it void
    key: str = ""  # with `remote`: a salted digest of the key that sees the batch
    max_tokens: Tokens | None = None  # the limit in these requests; None: the target's own
    tokens_per_byte: Ratio | None = None  # of input, from which `reserve` is computed; None: at most a token per byte


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
    key: str = ""  # a salted digest of the key that sees the batch; empty in older journals


class Exported(Event, frozen=True, kw_only=True):
    """The requests are written to a file, for the user to have answered; their results are imported."""

    nonce: Nonce
    file: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\.jsonl\Z")]  # its name


class Ended(Event, frozen=True, kw_only=True):
    """The provider has finished the batch: completed, expired, cancelled or failed."""

    nonce: Nonce
    status: str = msgspec.field(name="state")  # the provider's own word
    done: Row = 0  # requests that the provider reports as done, all if it does not say; 0 in older journals


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
    held: Ranges = []  # rows of `again` that were refused because of the server or the settings
    held_reason: str = ""
    cut_off: Ranges = []  # rows of `again` whose answers the short limit of the batch has cut off
    longest: int | None = None  # output tokens of an answer at most; None if there is no answer, or in older journals
    tokens_per_byte: Ratio = 0.0  # of input, of one row at most; 0: not measured
    above: int = 0  # rows with more input tokens than were reserved for them
    interrupted: int = 0  # single calls that a kill interrupted; they are in `again` and count at their highest cost
    without_line: Ranges = []  # rows whose result line was lost later: see `salvaged`


class Late(Event, frozen=True, kw_only=True):
    """The provider delivered answers of a batch after it had been stored without them."""

    nonce: Nonce
    parts: list[Part]  # added to the parts of `stored`; the next three fields are added too
    again: Ranges
    quarantined: int
    outcomes: dict[str, int]
    missing: Ranges  # rows that are still missing
    cost: Money  # of the whole batch, as it is known now
    cut_off: Ranges = []  # added to those of `stored`
    held: Ranges = []  # rows of `again` that had failed, and that the user wants to be asked again


class Looked(Event, frozen=True, kw_only=True):
    """The results of a stored batch were fetched again completely and contained nothing new."""

    nonce: Nonce


class Void(Event, frozen=True, kw_only=True):
    """The provider did not accept the create. The rows are free again; the reserve is held until `cleared`."""

    nonce: Nonce
    reason: str
    by_user: bool = False
    provider_time: float | None = msgspec.field(default=None, name="there")  # since 1970; None in older journals


class Cleared(Event, frozen=True, kw_only=True):
    """A void batch is in no listing although it would have ended by now: its reserve is free again."""

    nonce: Nonce


class Rejected(Event, frozen=True, kw_only=True):
    """The batch was refused or never sent: nothing ran and nothing is owed."""

    nonce: Nonce
    reason: str


class Unresolved(Event, frozen=True, kw_only=True):
    """The outcome of the batch cannot be determined; the user has to decide."""

    nonce: Nonce
    reason: str
    candidates: list[str]
    provider_time: float | None = msgspec.field(default=None, name="there")  # since 1970; None in older journals


class Foreign(Event, frozen=True, kw_only=True):
    """Batches at the provider that are not ours; recorded so that their results are not read again."""

    remote: str
    more: list[str] = []


class Duplicate(Event, frozen=True, kw_only=True):
    """A second batch with our nonce, made by something between us and the provider; cancelled, but its cost counts."""

    nonce: Nonce
    remote: str
    reserve: Money


class Cancelling(Event, frozen=True, kw_only=True):
    """The user wants this batch to be cancelled."""

    nonce: Nonce


class Tried(Event, frozen=True, kw_only=True):
    """About to ask one question of the pilot, outside any batch."""

    reserve: Money
    row: Row | None = None  # of the manifest; None in older journals, which have a question of their own


class Passed(Event, frozen=True, kw_only=True):
    """A question of the pilot has a reply."""

    cost: Money
    row: Row | None = None
    answer: Line | None = None  # kept as evidence; None in older journals
    input_bytes: int = 0  # of the request; 0 in older journals


class Failed(Event, frozen=True, kw_only=True):
    """A question of the pilot was refused at no cost; it may be asked again."""

    reason: str
    row: Row | None = None


class Piloted(Event, frozen=True, kw_only=True):
    """The pilot's answers were judged: batches may be bought, unless there is a problem."""

    problem: str = ""  # why no batch should be bought
    answers: int


class Salvaged(Event, frozen=True, kw_only=True):
    """`batchbench salvage` has written this journal anew; the one before it is kept as `journal.damaged`."""

    lost: int  # lines that could not be read
    end_lost: bool = False  # also the end of the journal, with an unknown number of lines
    notes: list[str] = []  # what could not be restored
    inode: str = msgspec.field(default="", name="place")  # of this journal, unless it was a copy


_BatchEvent = Intent | Uploaded | Creating | Created | Exported | Ended | Stored | Late | Looked | Cancelling
_PilotEvent = Tried | Passed | Failed | Piloted
_OtherEvent = Void | Cleared | Rejected | Unresolved | Foreign | Duplicate | Salvaged
AnyEvent = Opened | Asked | _BatchEvent | _OtherEvent | _PilotEvent
