"""What the emulator knows: a fold over the ledger's events, and nothing that is not in them."""

import hashlib
from collections import Counter

import msgspec
from msgspec.structs import replace

from batchbench.emulator.ledger import events as ev
from batchbench.errors import DataError

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class File(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    purpose: str
    bytes: int
    created: float
    expires: float
    nonce: str
    owner: ev.Owner
    deleted: bool = False

    def there(self, now: float) -> bool:
        return not self.deleted and now < self.expires


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch is the events about it; its status at a given time is worked out in `lifecycle`."""

    accepted: ev.Accepted
    validated: ev.Validated | None = None
    failed: ev.Failed | None = None
    cancelled: float | None = None
    started: ev.Started | None = None
    ended: ev.Ended | None = None
    deleted: bool = False

    @property
    def id(self) -> str:
        return self.accepted.batch

    @property
    def n(self) -> int | None:
        """Requests in the batch; null while nobody has read its input."""
        return self.validated.n if self.validated else self.accepted.n

    @property
    def key(self) -> str:
        """What faults are decided by: the nonce of the submission, or the id where there is none."""
        return self.accepted.nonce or self.accepted.batch

    @property
    def open(self) -> bool:
        return self.failed is None and self.ended is None and not self.deleted


class Totals(msgspec.Struct, kw_only=True):
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0


class State:
    """Folds events one by one; `apply` is the only way in."""

    def __init__(self) -> None:
        self.seed = 0
        self.salt = ""
        self.offset = 0.0
        self.files: dict[str, File] = {}
        self.batches: dict[str, Batch] = {}  # in order of acceptance
        self.open: dict[str, None] = {}  # ids of batches that still have a way to go, oldest first
        self.billed: dict[ev.Owner, Totals] = {"client": Totals(), "someone else": Totals()}
        self.batch_answers: Counter[str] = Counter()  # billed so far, for batches that have not ended
        self.counts: Counter[str] = Counter()  # events by kind
        self.calls: Counter[tuple[str, str]] = Counter()  # (call, key) -> calls that a fault was played on, or more

    def apply(self, event: ev.Event) -> None:
        match event:
            case ev.Born():
                self.seed, self.salt = event.seed, event.salt
            case ev.Moved():
                self.offset += event.advance
            case ev.Uploaded():
                self.files[event.file] = File(
                    id=event.file,
                    name=event.name,
                    purpose=event.purpose,
                    bytes=event.bytes,
                    created=event.t,
                    expires=event.expires,
                    nonce=event.nonce,
                    owner=event.owner,
                )
            case ev.Accepted():
                # Replay and live appending must leave the same: the long list of ids is for the ledger only.
                slim = {name: getattr(event, name) for name in ev.Accepted.__struct_fields__}
                self._put(Batch(accepted=ev.Accepted(**slim)))
            case ev.Validated():
                slim = {name: getattr(event, name) for name in ev.Validated.__struct_fields__}
                self._put(replace(self.batches[event.batch], validated=ev.Validated(**slim)))
            case ev.Failed():
                self._put(replace(self.batches[event.batch], failed=event))
            case ev.Cancelled():
                self._put(replace(self.batches[event.batch], cancelled=event.t))
            case ev.Started():
                self._put(replace(self.batches[event.batch], started=event))
            case ev.Billed():
                self._bill(event)
            case ev.Ended():
                self._end(event)
            case ev.Deleted():
                self._delete(event)
            case ev.Faulted():
                self.calls[event.call, event.key] = max(self.calls[event.call, event.key], event.n)
            case ev.Downloaded():
                pass
            case _:
                raise DataError(f"no rule for the ledger event {event!r}")
        self.counts[str(type(event).__struct_config__.tag)] += 1

    def _put(self, batch: Batch) -> None:
        self.batches[batch.id] = batch
        if batch.open:
            self.open[batch.id] = None
        else:
            self.open.pop(batch.id, None)

    def _bill(self, event: ev.Billed) -> None:
        totals = self.billed[event.owner]
        totals.answers += event.n
        totals.input_tokens += event.input_tokens
        totals.output_tokens += event.output_tokens
        totals.cost += event.cost
        if event.batch in self.batches:
            self.batch_answers[event.batch] += event.n

    def _end(self, event: ev.Ended) -> None:
        batch = self.batches[event.batch]
        self._put(replace(batch, ended=event))
        del self.batch_answers[event.batch]
        if batch.accepted.dialect == "openai":
            life = batch.accepted.output_seconds
            for made, what in ((event.output, "output"), (event.error, "error")):
                if made:
                    self.files[made.file] = File(
                        id=made.file,
                        name=f"{batch.id}_{what}.jsonl",
                        purpose="batch_output",
                        bytes=made.bytes,
                        created=event.at,
                        expires=event.at + (life if life is not None else 30 * 86_400),
                        nonce=batch.accepted.nonce,
                        owner=batch.accepted.owner,
                    )

    def _delete(self, event: ev.Deleted) -> None:
        if file := self.files.get(event.id):
            self.files[event.id] = replace(file, deleted=True)
        elif batch := self.batches.get(event.id):
            self._put(replace(batch, deleted=True))


def spell(text: str, length: int, alphabet: str = BASE62) -> str:
    """`length` letters that look random and depend on `text` alone."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=32).digest())
    letters = []
    for _ in range(length):
        number, k = divmod(number, len(alphabet))
        letters.append(alphabet[k])
    return "".join(letters)


def nonce_of(name: str) -> str:
    """The text before the first dash of a custom id or file name; empty if there is no dash."""
    head, dash, _ = name.partition("-")
    return head if dash else ""
