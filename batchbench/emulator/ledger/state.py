"""The emulator's state, computed from the ledger's events alone."""

import hashlib
from collections import Counter

import msgspec
from msgspec.structs import replace

from batchbench.emulator.ledger import events
from batchbench.errors import DataError

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
HEX = "0123456789abcdef"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    purpose: str
    bytes: int
    created: float
    expires: float
    nonce: str
    owner: events.Owner
    deleted: bool = False

    def exists(self, now: float) -> bool:
        return not self.deleted and now < self.expires


class EmulatedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The events about one batch; `lifecycle` computes its status at a given time."""

    accepted: events.BatchAccepted
    validated: events.BatchValidated | None = None
    failed: events.BatchFailed | None = None
    cancelled: float | None = None
    started: events.BatchStarted | None = None
    ended: events.BatchEnded | None = None
    deleted: bool = False

    @property
    def id(self) -> str:
        return self.accepted.batch

    @property
    def n(self) -> int | None:
        """The number of requests; None until the input has been read."""
        return self.validated.n if self.validated else self.accepted.n

    @property
    def key(self) -> str:
        """The key for fault rules: the nonce of the submission, or the batch id if it has no nonce."""
        return self.accepted.nonce or self.accepted.batch

    @property
    def open(self) -> bool:
        return self.failed is None and self.ended is None and not self.deleted


class BilledTotals(msgspec.Struct, kw_only=True):
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0


class EmulatorState:
    """Changes only through `apply`."""

    def __init__(self) -> None:
        self.seed = 0
        self.salt = ""
        self.clock_offset = 0.0
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, EmulatedBatch] = {}  # in order of acceptance
        self.open: dict[str, None] = {}  # ids of unfinished batches, oldest first
        self.billed: dict[events.Owner, BilledTotals] = {"client": BilledTotals(), "someone else": BilledTotals()}
        self.event_counts: Counter[str] = Counter()
        self.call_counts: Counter[tuple[str, str]] = Counter()  # (call, key) -> number of its last call with a fault

    def apply(self, event: events.LedgerEvent) -> None:
        match event:
            case events.LedgerStarted():
                self.seed, self.salt = event.seed, event.salt
            case events.ClockAdvanced():
                self.clock_offset += event.advance
            case events.FileUploaded():
                self._add_upload(event)
            case events.BatchAccepted():
                # Drop the ids: replay does not have them, and both ways must give the same state.
                fields = {name: getattr(event, name) for name in events.BatchAccepted.__struct_fields__}
                self._put(EmulatedBatch(accepted=events.BatchAccepted(**fields)))
            case events.BatchValidated():
                fields = {name: getattr(event, name) for name in events.BatchValidated.__struct_fields__}
                self._put(replace(self.batches[event.batch], validated=events.BatchValidated(**fields)))
            case events.BatchFailed():
                self._put(replace(self.batches[event.batch], failed=event))
            case events.BatchCancelled():
                self._put(replace(self.batches[event.batch], cancelled=event.t))
            case events.BatchStarted():
                self._put(replace(self.batches[event.batch], started=event))
            case events.AnswersBilled():
                self._bill(event)
            case events.BatchEnded():
                self._end(event)
            case events.Deleted():
                self._delete(event)
            case events.FaultInjected():
                self.call_counts[event.call, event.key] = max(self.call_counts[event.call, event.key], event.n)
            case events.FileDownloaded():
                pass
            case _:
                raise DataError(f"the emulator cannot apply the ledger event {event!r}")
        self.event_counts[str(type(event).__struct_config__.tag)] += 1

    def _put(self, batch: EmulatedBatch) -> None:
        self.batches[batch.id] = batch
        if batch.open:
            self.open[batch.id] = None
        else:
            self.open.pop(batch.id, None)

    def _add_upload(self, event: events.FileUploaded) -> None:
        self.files[event.file] = StoredFile(
            id=event.file,
            name=event.name,
            purpose=event.purpose,
            bytes=event.bytes,
            created=event.t,
            expires=event.expires,
            nonce=event.nonce,
            owner=event.owner,
        )

    def _bill(self, event: events.AnswersBilled) -> None:
        totals = self.billed[event.owner]
        totals.answers += event.n
        totals.input_tokens += event.input_tokens
        totals.output_tokens += event.output_tokens
        totals.cost += event.cost

    def _end(self, event: events.BatchEnded) -> None:
        batch = self.batches[event.batch]
        self._put(replace(batch, ended=event))
        if batch.accepted.dialect == "openai":
            life = batch.accepted.output_seconds
            for result, kind in ((event.output, "output"), (event.error, "error")):
                if result:
                    self.files[result.file] = StoredFile(
                        id=result.file,
                        name=f"{batch.id}_{kind}.jsonl",
                        purpose="batch_output",
                        bytes=result.bytes,
                        created=event.at,
                        expires=event.at + (life if life is not None else 30 * 86_400),
                        nonce=batch.accepted.nonce,
                        owner=batch.accepted.owner,
                    )

    def _delete(self, event: events.Deleted) -> None:
        if file := self.files.get(event.id):
            self.files[event.id] = replace(file, deleted=True)
        elif batch := self.batches.get(event.id):
            self._put(replace(batch, deleted=True))


def derive_id(text: str, length: int, alphabet: str = BASE62) -> str:
    """`length` letters that look random and depend on `text` alone."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=32).digest())
    letters = []
    for _ in range(length):
        number, k = divmod(number, len(alphabet))
        letters.append(alphabet[k])
    return "".join(letters)


def nonce_of(name: str) -> str:
    """The text before the first dash of a custom id or file name; empty if it has no dash."""
    head, dash, _ = name.partition("-")
    return head if dash else ""
