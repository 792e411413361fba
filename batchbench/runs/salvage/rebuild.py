"""Rebuild the journal of a run from its undamaged lines, from the files of its batches, and from what the provider has.

No paid answer is lost: an answer is restored from its result line or, if that is lost, from its answer file. Nothing is
paid for twice: requests that may be in a batch that no record shows become an unresolved batch, for the user to decide.
"""

import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from batchbench.core.money import Price
from batchbench.errors import UsageError
from batchbench.providers.interface import Provider
from batchbench.runs import events
from batchbench.runs.events import AnyEvent, Intent, Ranges
from batchbench.runs.folder import Run, without_emulator_url
from batchbench.runs.ingest import as_ranges
from batchbench.runs.journal import BatchRecord, RunState, replay, rows_of
from batchbench.runs.row_states import ANSWERED, IN_FLIGHT, TODO, row_states, todo
from batchbench.runs.salvage.answers import Restored, restore
from batchbench.runs.salvage.damaged_run import UNKNOWN, UNTRACED, DamagedRun, Evidence, FoundBatch, Leftover

# The state of a row as `todo` sees it: open, unless a batch has answered it or contains it.
NOT_TAKEN = bytes(mark if mark in (ANSWERED, IN_FLIGHT) else TODO for mark in range(256))
NOT_AT_PROVIDER = ("exported", "void", "rejected", "unresolved")
NO_STATUS = "unknown"  # the provider status of a batch whose `ended` is lost


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A journal that fits the files of its run."""

    events: list[AnyEvent]  # without `salvaged`
    notes: list[str]  # what could not be restored
    unused: list[Path]  # files that the journal does not name, to be set aside
    changed: bool  # answers differ from what they were
    unknown: int  # requests that may have been bought, in an unresolved batch


class Rebuilding:
    """Rebuilds one journal."""

    def __init__(self, damaged: DamagedRun, evidence: Evidence, provider: Provider, price: Price | None) -> None:
        self.damaged = damaged
        self.run: Run = damaged.run
        self.evidence = evidence
        self.provider = provider
        self.price = price  # of today
        self.notes = list(evidence.notes)
        self.unused: list[Path] = []
        self.changed = False
        self.records: dict[str, BatchRecord] = {}  # as they are rebuilt
        self.blocks: dict[str, list[AnyEvent]] = {}  # the events of each batch
        self.incomplete = False  # a batch may have more requests than are known
        self.lost_batches: dict[str, str | None] = {}  # batches of unknown requests, with their ids

    def rebuild(self, run_id: str, begun: float, now: float) -> Rebuilt:
        """The new journal. `begun` is the time of the run's first file; `run_id` is used if `opened` is lost."""
        opened = self.damaged.left.events.get(0)
        if not isinstance(opened, events.Opened):
            opened = self._opened(run_id, begun)
        for nonce in dict.fromkeys([*self.damaged.nonces, *self.evidence.batches]):
            self._batch(nonce, opened.at, now)
        others = [(number, event) for number, event in self._others() if not isinstance(event, events.Opened)]
        lines: list[tuple[float, AnyEvent]] = [*others]
        asked = [event for _, event in others if isinstance(event, events.Asked)]
        if not asked and self.records:
            lines.append((-1, self._asked(opened.at)))
        for nonce, block in self.blocks.items():
            lines += self._placed(nonce, block)
        lines.sort(key=lambda line: line[0])
        history: list[AnyEvent] = [opened, *(event for _, event in lines)]
        if not self.damaged.left.intact and not self.run.target.emulated:
            self.notes.append("questions of the pilot in lost lines are not counted, nor is their cost")
        placeholder = self._placeholder(history, opened.at, now)
        unknown = sum(event.rows for event in placeholder if isinstance(event, Intent))
        return Rebuilt(
            events=[*history, *placeholder],
            notes=list(dict.fromkeys(self.notes)),
            unused=self.unused,
            changed=self.changed,
            unknown=unknown,
        )

    def _placed(self, nonce: str, block: list[AnyEvent]) -> list[tuple[float, AnyEvent]]:
        """The events of a batch with their places: undamaged lines stay where they were, others follow in order."""
        numbers = {id(event): number for number, event in self.damaged.lines_of(nonce)}
        first = self.damaged.first_line(nonce)
        place = self.damaged.left.beginning - 0.5 if first is None else first - 0.5
        found: list[tuple[float, AnyEvent]] = []
        for event in block:
            place = max(place, numbers.get(id(event), place))
            found.append((place, event))
        return found

    # -- one batch -----------------------------------------------------------------------------------------

    def _batch(self, nonce: str, begun: float, now: float) -> None:
        """Rebuild the events of a batch."""
        left, found = self.damaged.leftover(nonce), self.evidence.batches.get(nonce)
        known = self.damaged.rows(left, found)
        if known is None:
            self._without_rows(left)
            return
        block = list(left.events)
        self.incomplete |= not self.damaged.has_all_rows(left, found, len(known[1]))
        if left.batch is None:
            block = [self._intent(nonce, known[0], as_ranges(known[1]), begun), *block]
        block = self._sent(left, block, found, begun)
        unsettled = left.batch is not None and left.stored is None and not left.interrupted
        if (left.paths or left.stored) and not left.files.whole and not unsettled:
            kept = [event for event in block if not isinstance(event, events.Stored | events.Late | events.Looked)]
            batch = self._replayed(nonce, kept)
            if batch.state not in ("ended", "exported"):
                kept.append(events.Ended(at=now, nonce=nonce, status=NO_STATUS))
            restored = restore(self.run, self._replayed(nonce, kept), left, self.provider, self._taken(batch), now)
            self._note(left, restored)
            block = [*kept, restored.stored]
        self.blocks[nonce] = block
        self.records[nonce] = self._replayed(nonce, block)

    def _without_rows(self, left: Leftover) -> None:
        """A batch whose requests are unknown: it may run at the provider, or nothing is left of it but files."""
        last = left.events[-1] if left.events else None
        if last is not None and not isinstance(last, events.Rejected | events.Void):
            self.lost_batches[left.nonce] = left.remote
        self.unused += left.paths
        if left.paths:
            self.notes.append(f"no line of the files of batch {left.nonce} can be read: they are in quarantine/")

    def _intent(self, nonce: str, rep: int, ranges: Ranges, begun: float) -> Intent:
        """An intent for these rows, with the most that they can cost."""
        rates, target = self._rates(nonce), self.run.target
        bound = cache(rates.bound)  # prompts have only a few hundred different lengths
        rows = reserve = highest = 0
        for _, prompt in self.run.rows(ranges):
            cost = bound(len(prompt.encode()) + target.other_bytes, target.max_tokens)
            rows, reserve, highest = rows + 1, reserve + cost, max(highest, cost)
        return Intent(
            at=begun, nonce=nonce, rep=rep, ranges=ranges, rows=rows, reserve=reserve, max_row_cost=highest, rates=rates
        )

    def _sent(self, left: Leftover, block: list[AnyEvent], found: FoundBatch | None, begun: float) -> list[AnyEvent]:
        """The events of a batch, with those that show that it was sent, or may have been, if the journal lacks them."""
        nonce, batch = left.nonce, self._replayed(left.nonce, block)
        kinds = [type(event) for event in block]
        creating = events.Creating(at=max(begun, batch.intended), nonce=nonce)
        before: list[AnyEvent] = [] if events.Creating in kinds or events.Exported in kinds else [creating]
        if events.Created in kinds:
            place = kinds.index(events.Created)
            return [*block[:place], *before, *block[place:]]
        place = max(kinds.index(kind) for kind in (Intent, events.Uploaded, events.Creating) if kind in kinds) + 1
        remote = found.remote if found and found.certain else left.remote
        if remote and batch.state not in NOT_AT_PROVIDER:
            before.append(events.Created(at=creating.at, nonce=nonce, remote=remote, found=True))
        elif found and not found.certain and batch.state in ("intent", "uploaded", "creating"):
            before.append(events.Unresolved(at=begun, nonce=nonce, reason=UNTRACED, candidates=[found.remote]))
        elif batch.state not in ("intent", "uploaded") or self.evidence.complete or left.paths or not left.interrupted:
            return block  # else `creating` may be among the lost lines
        return [*block[:place], *before, *block[place:]]

    def _replayed(self, nonce: str, block: Sequence[AnyEvent]) -> BatchRecord:
        state = RunState(batches={}, asked=self.damaged.asked[-1] if self.damaged.asked else None)
        for event in block:
            state.apply(event)
        return state.batches[nonce]

    def _taken(self, batch: BatchRecord) -> set[int]:
        """The rows of a batch that another batch has answered or contains."""
        others = {nonce: record for nonce, record in self.records.items() if nonce != batch.nonce}
        for nonce in self.damaged.nonces:
            if nonce not in others and nonce != batch.nonce and (record := self.damaged.leftover(nonce).batch):
                others[nonce] = record
        rows = rows_of(batch.ranges)
        marks = row_states(RunState(batches=others), max(rows) + 1, batch.rep + 1)[batch.rep]
        return {row for row in rows if marks[row] in (ANSWERED, IN_FLIGHT)}

    def _note(self, left: Leftover, restored: Restored) -> None:
        self.unused += restored.unused
        self.changed |= restored.changed
        if restored.lost:
            self.notes.append(
                f"{restored.lost:,} answers of batch {left.nonce} are lost, in its result files and in its answer "
                "files: they count as missing"
            )
        if restored.unproved:
            self.notes.append(f"{restored.unproved:,} answers of batch {left.nonce} have no result line any more")

    # -- the whole run -------------------------------------------------------------------------------------

    def _others(self) -> list[tuple[int, AnyEvent]]:
        """The events about no batch; the reply to a question of the pilot needs the question before it."""
        found: list[tuple[int, AnyEvent]] = []
        open_questions: list[int | None] = []
        for number, event in self.damaged.others:
            match event:
                case events.Tried():
                    open_questions.append(event.row)
                case events.Passed() | events.Failed() if event.row not in open_questions:
                    cost = event.cost if isinstance(event, events.Passed) else 0
                    found.append((number, events.Tried(at=event.at, reserve=cost, row=event.row)))
                case events.Passed() | events.Failed():
                    open_questions.remove(event.row)
            found.append((number, event))
        return found

    def _opened(self, run_id: str, begun: float) -> events.Opened:
        self.notes.append("the first line of the journal is lost: the run's settings are those of run.json")
        return events.Opened(
            at=begun,
            run=run_id or secrets.token_hex(8),
            manifest=self.run.manifest_folder.name,
            target=self.run.folder.name,
            prompts_sha256=self.run.manifest.prompts_digest(),
            settings=without_emulator_url(self.run.target),
        )

    def _asked(self, begun: float) -> events.Asked:
        """The plan, as far as the batches show it."""
        self.notes.append("the plan is lost, with its budget: pass --budget again")
        last = max(batch.ranges[-1][1] for batch in self.records.values())
        repetitions = max(batch.rep for batch in self.records.values()) + 1
        rates = next(iter(self.records.values())).rates or self._rates("")
        items = -(-last // self.run.manifest.variants)
        return events.Asked(at=begun, items=items, repetitions=repetitions, budget=None, rates=rates)

    def _placeholder(self, history: list[AnyEvent], begun: float, now: float) -> list[AnyEvent]:
        """An unresolved batch for each repetition, of all requests that an unknown batch may contain."""
        unseen = self.damaged.purchases_may_be_lost() and not self.evidence.complete
        if not (self.lost_batches or self.incomplete or unseen):
            return []
        state = replay(history)
        asked = [event.repetitions for event in history if isinstance(event, events.Asked)]
        repetitions = max([1, *asked, *(batch.rep + 1 for batch in state.batches.values())])
        names = [*self.lost_batches, *self.damaged.replaced]
        ids = [remote for remote in self.lost_batches.values() if remote]
        block: list[AnyEvent] = []
        for rep, marks in enumerate(row_states(state, self.run.manifest.prompts, repetitions)):
            ranges = todo(marks.translate(NOT_TAKEN), len(marks))
            if not ranges:
                continue
            nonce = names.pop(0) if names else secrets.token_hex(5)
            intent = self._intent(nonce, rep, ranges, begun)
            creating = events.Creating(at=begun, nonce=nonce)
            created = (
                [events.Created(at=begun, nonce=nonce, remote=ids[0])] if ids and nonce in self.lost_batches else []
            )
            reason = events.Unresolved(
                at=now, nonce=nonce, reason=UNKNOWN, candidates=ids or ["see the provider's list"]
            )
            block += [intent, creating, *created, reason]
        return block

    def _rates(self, nonce: str) -> Price:
        """The rates of a batch whose intent is lost."""
        rates = self.damaged.rates(nonce)
        if rates is None:
            if self.price is None:
                raise UsageError(
                    "the journal has lost the price of this run, and no price is known: pass --price IN,OUT"
                )
            self.notes.append(f"the price of this run is lost: costs are computed at the price of {self.price.source}")
        return rates or self.price or Price(input=0, output=0, source="")
