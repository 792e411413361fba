"""The words of the ledger: one Struct per kind of line.

`t` is virtual time, `wall` the machine's clock, both in seconds since 1970. Money is integer micro-dollars. A kind
with long lists of ids is split in two: the plain Struct is what replay needs, `...InFull` what is written.
"""

from typing import Literal

import msgspec

FORMAT = 1

Dialect = Literal["openai", "anthropic"]
Outcome = Literal["completed", "expired", "cancelled"]
Owner = Literal["client", "someone else"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    t: float
    wall: float


class Born(Event, frozen=True, kw_only=True, tag="born"):
    """First line of every ledger."""

    format: int
    seed: int
    salt: str  # makes the ids of this ledger unlike those of any other


class Moved(Event, frozen=True, kw_only=True, tag="clock"):
    advance: float


class Uploaded(Event, frozen=True, kw_only=True, tag="uploaded"):
    file: str
    name: str
    purpose: str
    bytes: int
    sha256: str
    expires: float
    nonce: str
    owner: Owner = "client"


class Fate(msgspec.Struct, frozen=True):
    """A life-cycle fault, decided when the batch is accepted and kept with it."""

    name: str
    seconds: float = 0.0


class Accepted(Event, frozen=True, kw_only=True, tag="accepted"):
    batch: str
    dialect: Dialect
    file: str  # input: a file id (OpenAI), or the batch id itself (Anthropic)
    expires: float
    nonce: str
    n: int | None = None  # requests; null until the input has been read (OpenAI)
    endpoint: str = "/v1/chat/completions"
    metadata: dict[str, str] | None = None
    version: str = ""  # anthropic-version the batch was created with
    output_seconds: int | None = None  # life of the result files, where the client chose one
    fate: Fate | None = None
    owner: Owner = "client"


class AcceptedInFull(Accepted, frozen=True, kw_only=True, tag="accepted"):
    ids: list[str] | None = None


class Validated(Event, frozen=True, kw_only=True, tag="validated"):
    at: float
    batch: str
    n: int
    model: str
    input_tokens: int = 0


class ValidatedInFull(Validated, frozen=True, kw_only=True, tag="validated"):
    ids: list[str]


class LineError(msgspec.Struct, frozen=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    at: float
    batch: str
    errors: list[LineError]


class Cancelled(Event, frozen=True, kw_only=True, tag="cancelled"):
    batch: str
    by: Owner = "client"


class Started(Event, frozen=True, kw_only=True, tag="started"):
    at: float
    batch: str
    outcome: Outcome
    answer: int  # how many requests get an answer; the rest end as `outcome` says


class Billed(Event, frozen=True, kw_only=True, tag="billed"):
    """One block of answers, written once the result files are safely on disk."""

    batch: str  # "sync" for synchronous calls
    block: int
    n: int
    input_tokens: int
    output_tokens: int
    cost: int
    owner: Owner = "client"


class BilledInFull(Billed, frozen=True, kw_only=True, tag="billed"):
    """Position k of every list is about the same answer."""

    ids: list[str]
    inputs: list[int]
    outputs: list[int]
    costs: list[int]
    texts: list[str]  # first 12 hex digits of sha256(answer text)


class Made(msgspec.Struct, frozen=True):
    """A result file."""

    file: str
    bytes: int
    lines: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    succeeded: int = 0
    errored: int = 0
    cancelled: int = 0
    expired: int = 0


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    at: float  # the terminal state shows from this time on
    batch: str
    outcome: Outcome
    counts: Counts
    input_tokens: int
    output_tokens: int
    cost: int
    finalizing: float
    output: Made | None = None
    error: Made | None = None
    struck: dict[str, list[str]] = {}  # result-line faults that were played, and the ids they struck


class Downloaded(Event, frozen=True, kw_only=True, tag="downloaded"):
    file: str  # file id, or batch id (Anthropic)
    bytes: int
    complete: bool


class Deleted(Event, frozen=True, kw_only=True, tag="deleted"):
    id: str
    by: Owner = "client"


class Faulted(Event, frozen=True, kw_only=True, tag="fault"):
    """A fault that was played: the n-th call of this kind for this key."""

    do: str
    call: str
    key: str
    n: int


AnyEvent = (
    Born
    | Moved
    | Uploaded
    | Accepted
    | Validated
    | Failed
    | Cancelled
    | Started
    | Billed
    | Ended
    | Downloaded
    | Deleted
    | Faulted
)
