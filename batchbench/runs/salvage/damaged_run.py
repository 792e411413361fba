"""A run with damaged files: the undamaged events of its journal, and what they and the files say about each batch."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from batchbench.core.money import Price
from batchbench.errors import DataError
from batchbench.runs import events
from batchbench.runs.events import AnyEvent, Stored
from batchbench.runs.folder import Run
from batchbench.runs.journal import BatchRecord, RunState, rows_of
from batchbench.runs.results import answer_files
from batchbench.runs.salvage.files import BatchFiles, batch_files, files_by_nonce, ids_in
from batchbench.runs.salvage.journal_repair import Survivors

# The reason of an unresolved batch that stands for requests of unknown batches.
UNKNOWN = "part of the journal was lost, and these requests may have been bought"
# The reason of an unresolved batch that the provider has.
UNTRACED = "another run may have made it: compare its requests, then name it or decide that it is void"
Numbered = tuple[int, AnyEvent]  # with its line number


class FoundBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that the provider has."""

    remote: str  # its id
    rep: int = 0
    rows: list[int] = []  # empty if unknown
    total: int | None = None  # how many requests it has; None if the provider does not say
    certain: bool = True  # whether it belongs to this run


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider has."""

    batches: dict[str, FoundBatch] = {}  # by nonce
    complete: bool = False  # the provider has no other batch of this run
    notes: list[str] = []


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one batch."""

    nonce: str
    events: list[AnyEvent]  # without those that cannot be applied
    batch: BatchRecord | None  # None if its intent is lost
    stored: Stored | None  # also if its intent is lost
    remote: str | None
    paths: list[Path]
    files: BatchFiles
    interrupted: bool  # later events about it may be lost

    @property
    def lacks_results(self) -> bool:
        """Whether result files are damaged or gone."""
        named = {part.file for part in self.stored.parts if part.file.startswith("raw/")} if self.stored else set()
        return bool(self.files.damaged or named - {part.file for part in self.files.raw}) or (
            bool(self.paths) and not self.files.raw
        )


class DamagedRun:
    """The undamaged events of a run, by batch."""

    def __init__(self, run: Run, left: Survivors) -> None:
        self.run = run
        self.left = left
        self.lost = {number for number in range(max(left.events, default=-1) + 1) if number not in left.events}
        self.replaced: dict[str, str | None] = {}  # unknown batches of an earlier salvage, with their ids
        self.others: list[Numbered] = []  # events about no batch
        self._by_nonce: dict[str, list[Numbered]] = {}
        for number, event in left.events.items():
            nonce = None if isinstance(event, events.Duplicate) else getattr(event, "nonce", None)
            (self.others if nonce is None else self._by_nonce.setdefault(nonce, [])).append((number, event))
        for nonce, found in [*self._by_nonce.items()]:
            last = found[-1][1]
            if isinstance(last, events.Unresolved) and last.reason == UNKNOWN:
                self.replaced[nonce] = _remote(event for _, event in self._by_nonce.pop(nonce))
        self.untraced = {nonce for nonce, found in self._by_nonce.items() if _is_untraced(found[-1][1])}
        self.asked = [event for _, event in self.others if isinstance(event, events.Asked)]
        self._paths = files_by_nonce(run.folder)
        self._leftovers: dict[str, Leftover] = {}

    @property
    def nonces(self) -> list[str]:
        """The batches in the journal, in its order, and then those of which only files are left."""
        return list(dict.fromkeys([*self._by_nonce, *self._paths]))

    def lines_of(self, nonce: str) -> list[Numbered]:
        """The undamaged events about a batch, with their line numbers."""
        return self._by_nonce.get(nonce, [])

    def first_line(self, nonce: str) -> int | None:
        """The line number of the first event about a batch; None if there is no event."""
        return self._by_nonce[nonce][0][0] if nonce in self._by_nonce else None

    def purchases_may_be_lost(self) -> bool:
        """Whether batches may have been bought of which the journal shows no event.

        An intent is followed by `creating` before anything is bought, so one lost line cannot hide a purchase.
        """
        unknown = any(nonce not in self._by_nonce for nonce in self._paths)
        return len(self.lost) > 1 or self.left.open_end or not self.left.events or unknown or bool(self.replaced)

    def leftover(self, nonce: str) -> Leftover:
        """What is left of a batch."""
        if nonce not in self._leftovers:
            self._leftovers[nonce] = self._leftover(nonce)
        return self._leftovers[nonce]

    def _leftover(self, nonce: str) -> Leftover:
        numbered = self._by_nonce.get(nonce, [])
        state = RunState(asked=self._asked_before(numbered[0][0] if numbered else None), batches={})
        sound: list[AnyEvent] = []
        stored: Stored | None = None
        for _, event in numbered:
            stored = event if isinstance(event, Stored) else stored
            try:
                state.apply(event)
                sound.append(event)
            except DataError:  # an event before it is lost: the intent, or `stored` before `late`
                continue
        batch = state.batches.get(nonce)
        stored = batch.stored if batch else stored
        in_use = answer_files(self.run.folder, batch) if batch else []
        paths = self._paths.get(nonce, [])
        first = min((number for number, _ in numbered), default=-1)
        late = [event for _, event in numbered if isinstance(event, events.Late)]
        if late and late[-1] not in sound:  # the files of both are on disk, and the first record is lost
            stored = None
        return Leftover(
            nonce=nonce,
            events=sound if batch else [event for _, event in numbered if not isinstance(event, events.Late)],
            batch=batch,
            stored=stored,
            remote=_remote(event for _, event in numbered) or self.replaced.get(nonce),
            paths=paths,
            files=batch_files(self.run.folder, paths, stored, in_use or _in_use(self.run.folder, stored)),
            interrupted=self.left.open_end
            or not numbered
            or any(number > first for number in self.lost)
            # Answers are written after the last result file, so `stored` is lost or was about to be written.
            or (stored is None and any(path.parent.name == "answers" for path in paths)),
        )

    def rows(self, leftover: Leftover, found: FoundBatch | None) -> tuple[int, list[int]] | None:
        """Repetition and rows of a batch; None if they are unknown."""
        if leftover.batch:
            return leftover.batch.rep, rows_of(leftover.batch.ranges)
        raw = [path for path in leftover.paths if path.parent.name == "raw"]
        ids = ids_in(raw, leftover.nonce) | {*leftover.files.answers.select("id", "rep").rows()}
        ids |= {(row, found.rep) for row in found.rows} if found else set()
        if not ids:
            return None
        reps = sorted(rep for _, rep in ids)
        rep = reps[len(reps) // 2]
        named = [*rows_of(leftover.stored.again), *rows_of(leftover.stored.missing)] if leftover.stored else []
        rows = {row for row, one in ids if one == rep} | {*named}
        return rep, sorted(row for row in rows if row < self.run.manifest.prompts)

    def has_all_rows(self, left: Leftover, found: FoundBatch | None, count: int) -> bool:
        """Whether the `count` rows of a batch are all that it has: rows without a result line are in no result file.

        After an earlier salvage that could not find out, only the provider's count proves it.
        """
        if found is not None and found.total is not None:
            return found.total == count
        if self.replaced:
            return left.batch is not None and left.batch.state in ("void", "rejected")
        recorded = left.stored is not None and left.files.answers.height >= left.stored.answered
        return left.batch is not None or recorded

    def rates(self, nonce: str) -> Price | None:
        """The rates at which a batch was bought, as far as the journal tells."""
        asked = self._asked_before(self.first_line(nonce)) or (self.asked[-1] if self.asked else None)
        intents = [event for found in self._by_nonce.values() for _, event in found if isinstance(event, events.Intent)]
        known = [intent.rates for intent in intents if intent.rates]
        return asked.rates if asked else (known[-1] if known else None)

    def _asked_before(self, number: int | None) -> events.Asked | None:
        asked = [
            event
            for line, event in self.others
            if isinstance(event, events.Asked) and (number is None or line < number)
        ]
        return asked[-1] if asked else None


def _remote(found: Iterable[AnyEvent]) -> str | None:
    """The id of a batch at the provider, in its last `created`."""
    ids = [event.remote for event in found if isinstance(event, events.Created)]
    return ids[-1] if ids else None


def _is_untraced(event: AnyEvent) -> bool:
    return isinstance(event, events.Unresolved) and event.reason == UNTRACED


def _in_use(folder: Path, stored: Stored | None) -> list[Path]:
    """The answer files of a batch whose intent is lost."""
    if stored is None:
        return []
    batch = BatchRecord(nonce=stored.nonce, rep=0, ranges=[], rows=0, reserve=0, intended=0.0, stored=stored)
    return answer_files(folder, batch)
