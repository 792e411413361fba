"""The events of the ledger: one Struct per kind of line.

`t` is virtual time and `wall` is the machine's clock, both in seconds since 1970. Money is in integer micro-dollars.
For lines with long lists of ids, the ledger writes the Struct `...InFull`, and replay reads its base class.
"""

from typing import Literal

import msgspec

FORMAT = 1

Dialect = Literal["openai", "anthropic"]
Outcome = Literal["completed", "expired", "cancelled"]
Owner = Literal["client", "someone else"]


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    t: float
    wall: float


class LedgerStarted(LedgerEvent, frozen=True, kw_only=True, tag="born"):
    """The first line of every ledger."""

    format: int
    seed: int
    salt: str  # makes the ids of this ledger unique among all ledgers


class ClockAdvanced(LedgerEvent, frozen=True, kw_only=True, tag="clock"):
    advance: float


class FileUploaded(LedgerEvent, frozen=True, kw_only=True, tag="uploaded"):
    file: str
    name: str
    purpose: str
    bytes: int
    sha256: str
    expires: float
    nonce: str
    owner: Owner = "client"


class BatchFault(msgspec.Struct, frozen=True):
    """A fault that affects a whole batch. It is selected when the batch is accepted."""

    name: str
    seconds: float = 0.0


class BatchAccepted(LedgerEvent, frozen=True, kw_only=True, tag="accepted"):
    batch: str
    dialect: Dialect
    file: str  # input: a file id (OpenAI), or the batch id itself (Anthropic)
    expires: float
    nonce: str
    n: int | None = None  # requests; None until the input has been read (OpenAI)
    endpoint: str = "/v1/chat/completions"
    metadata: dict[str, str] | None = None
    version: str = ""  # anthropic-version of the create
    output_seconds: int | None = None  # lifetime of the result files, if the client set it
    fault: BatchFault | None = msgspec.field(default=None, name="fate")
    owner: Owner = "client"


class BatchAcceptedInFull(BatchAccepted, frozen=True, kw_only=True, tag="accepted"):
    ids: list[str] | None = None


class BatchValidated(LedgerEvent, frozen=True, kw_only=True, tag="validated"):
    at: float
    batch: str
    n: int
    model: str
    input_tokens: int = 0


class BatchValidatedInFull(BatchValidated, frozen=True, kw_only=True, tag="validated"):
    ids: list[str]


class LineError(msgspec.Struct, frozen=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchFailed(LedgerEvent, frozen=True, kw_only=True, tag="failed"):
    at: float
    batch: str
    errors: list[LineError]


class BatchCancelled(LedgerEvent, frozen=True, kw_only=True, tag="cancelled"):
    batch: str
    by: Owner = "client"


class BatchStarted(LedgerEvent, frozen=True, kw_only=True, tag="started"):
    at: float
    batch: str
    outcome: Outcome
    answer_count: int = msgspec.field(name="answer")  # requests that get an answer; the others end as `outcome`


class AnswersBilled(LedgerEvent, frozen=True, kw_only=True, tag="billed"):
    """One block of answers, written after the result files are on disk."""

    batch: str  # "sync" for synchronous calls
    block: int
    n: int
    input_tokens: int
    output_tokens: int
    cost: int
    owner: Owner = "client"


class AnswersBilledInFull(AnswersBilled, frozen=True, kw_only=True, tag="billed"):
    """Position k of every list belongs to the same answer."""

    ids: list[str]
    inputs: list[int]
    outputs: list[int]
    costs: list[int]
    texts: list[str]  # first 12 hex digits of sha256(answer text)


class ResultFile(msgspec.Struct, frozen=True):
    file: str
    bytes: int
    lines: int


class OutcomeCounts(msgspec.Struct, frozen=True, kw_only=True):
    succeeded: int = 0
    errored: int = 0
    cancelled: int = 0
    expired: int = 0


class BatchEnded(LedgerEvent, frozen=True, kw_only=True, tag="ended"):
    at: float  # clients see the final state from this time on
    batch: str
    outcome: Outcome
    counts: OutcomeCounts
    input_tokens: int
    output_tokens: int
    thought_tokens: int = 0  # of the output tokens, those that are not in the texts
    cost: int
    finalizing: float
    output: ResultFile | None = None
    error: ResultFile | None = None
    line_faults: dict[str, list[str]] = msgspec.field(default_factory=dict, name="struck")  # fault -> custom ids


class FileDownloaded(LedgerEvent, frozen=True, kw_only=True, tag="downloaded"):
    file: str  # file id (OpenAI) or batch id (Anthropic)
    bytes: int
    complete: bool


class Deleted(LedgerEvent, frozen=True, kw_only=True, tag="deleted"):
    id: str
    by: Owner = "client"


class FaultInjected(LedgerEvent, frozen=True, kw_only=True, tag="fault"):
    """A fault that affected the n-th call of this kind with this key."""

    do: str
    call: str
    key: str
    n: int


AnyEvent = (
    LedgerStarted
    | ClockAdvanced
    | FileUploaded
    | BatchAccepted
    | BatchValidated
    | BatchFailed
    | BatchCancelled
    | BatchStarted
    | AnswersBilled
    | BatchEnded
    | FileDownloaded
    | Deleted
    | FaultInjected
)
