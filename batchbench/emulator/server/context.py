"""What every route needs: settings, clock, ledger, state and faults."""

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from batchbench.core.money import Price
from batchbench.emulator.families.table import persona_of
from batchbench.emulator.faults.catalogue import Kind
from batchbench.emulator.faults.rules import ActiveFault, Faults, Rule
from batchbench.emulator.jobs.runner import text_digest
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.ledger import Ledger
from batchbench.emulator.ledger.state import BASE62, EmulatedBatch, EmulatorState, StoredFile, derive_id
from batchbench.emulator.personas.interface import FindPersona, Persona
from batchbench.emulator.personas.respond import find_persona
from batchbench.emulator.server.clock import VirtualClock
from batchbench.emulator.server.limits import Delays, EmulatorLimits
from batchbench.errors import UsageError
from batchbench.providers import prices


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one start of the emulator."""

    state: Path
    ledger: Path
    home: Path  # folder with the data sets of the personas
    token: str
    port: int = 0
    seed: int = 0
    limits: EmulatorLimits = EmulatorLimits()
    delays: Delays = Delays()
    price: Price = prices.EMULATOR
    persona: str = "random"  # answers as a family whose name is given without a persona
    rules: list[Rule] = []
    idle_exit: float | None = None


class Context:
    """Owns the state; only `record` changes it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = EmulatorState()
        self.ledger = Ledger(settings.ledger)
        self.open_bills: dict[str, list[tuple[int, int]]] = {}  # unfinished batch -> its `billed` lines in the ledger
        for event, offset, length in self.ledger.replay():
            self.state.apply(event)
            if isinstance(event, events.AnswersBilled) and event.batch in self.state.open:
                self.open_bills.setdefault(event.batch, []).append((offset, length))
            elif isinstance(event, events.BatchEnded):
                self.open_bills.pop(event.batch, None)
        self.clock = VirtualClock(self.state.clock_offset)
        self.call_counts: Counter[tuple[str, str]] = Counter(self.state.call_counts)
        self._all_calls: Counter[str] = Counter()  # since this start
        self.changed = asyncio.Event()  # set after every change; the scheduler waits for it
        self.port = 0  # set when the server listens
        self.progress: dict[str, int] = {}  # batch -> requests that its current run has answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = len(self.state.files) + len(self.state.batches)
        self._prepare_folders()
        if not self.ledger.written:
            t, wall = self.now()
            salt = os.urandom(8).hex()
            self.record(events.LedgerStarted(t=t, wall=wall, format=events.FORMAT, seed=settings.seed, salt=salt))
        elif self.state.seed != settings.seed:
            raise UsageError(
                f"{settings.ledger} was started with --seed {self.state.seed}: use this seed, or another --state folder"
            )
        self.faults = Faults(settings.rules, settings.seed)

    def record(self, event: events.LedgerEvent) -> None:
        """Write an event to the ledger and apply it. Wait for `sync` before the client gets a reply."""
        self.ledger.append(event)
        self.state.apply(event)
        self.changed.set()

    def new_id(self, kind: str, prefix: str, length: int, alphabet: str = BASE62) -> str:
        """A unique id. The event that uses it can be written later."""
        while True:
            self._ids += 1
            new = prefix + derive_id(f"{self.state.salt} {kind} {self._ids}", length, alphabet)
            if new not in self.state.files and new not in self.state.batches:
                return new

    async def sync(self) -> None:
        """Wait until all recorded events are on disk."""
        await self.ledger.sync()

    def now(self) -> tuple[float, float]:
        """Virtual time and the machine's time, as every event has them."""
        wall = self.clock.wall()
        return wall + self.clock.offset, wall

    def record_cancelled(self, batch: str, by: events.Owner = "client") -> None:
        t, wall = self.now()
        self.record(events.BatchCancelled(t=t, wall=wall, batch=batch, by=by))

    def record_deleted(self, object_id: str, by: events.Owner = "client") -> None:
        t, wall = self.now()
        self.record(events.Deleted(t=t, wall=wall, id=object_id, by=by))

    def bill_synchronous_call(self, name: str, input_tokens: int, output_tokens: int, text: str) -> None:
        """Bill the answer to a synchronous call, at twice the batch price."""
        t, wall = self.now()
        cost = self.settings.price.doubled().cost(input_tokens, output_tokens)
        self.record(
            events.AnswersBilledInFull(
                t=t,
                wall=wall,
                batch="sync",
                block=0,
                n=1,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cost=cost,
                ids=[name],
                inputs=[input_tokens],
                outputs=[output_tokens],
                costs=[cost],
                texts=[text_digest(text)],
            )
        )

    # Paths.

    @property
    def scratch(self) -> Path:
        return self.settings.state / "scratch"

    def input_path(self, file: str) -> Path:
        return self.settings.state / "files" / f"{file}.jsonl"

    def output_path(self, file: str) -> Path:
        return self.settings.state / "outputs" / f"{file}.jsonl"

    def file_path(self, file: StoredFile) -> Path:
        return self.output_path(file.id) if file.purpose == "batch_output" else self.input_path(file.id)

    def remove_file(self, file: str) -> None:
        """Remove a deleted file from disk, unless an open batch still has to read it."""
        if not any(self.state.batches[batch].accepted.file == file for batch in self.state.open):
            self.input_path(file).unlink(missing_ok=True)
            self.output_path(file).unlink(missing_ok=True)

    # Models and batches.

    def personas(self, dialect: events.Dialect) -> FindPersona:
        """The function that finds the persona of a model name in this dialect."""

        def find(model: str) -> Persona | None:
            name = persona_of(model, dialect, self.settings.persona)
            return None if name is None else find_persona(name, self.settings.home)

        return find

    def batches(self, dialect: events.Dialect) -> list[EmulatedBatch]:
        """All batches that a client can see, newest first."""
        batches = self.state.batches.values()
        return [batch for batch in reversed(batches) if batch.accepted.dialect == dialect and not batch.deleted]

    def batch(self, batch_id: str, dialect: events.Dialect) -> EmulatedBatch | None:
        batch = self.state.batches.get(batch_id)
        return batch if batch and batch.accepted.dialect == dialect and not batch.deleted else None

    # Faults.

    def count_call(self, call: str, key: str) -> int:
        """The number of this call, from 1."""
        self.call_counts[call, key] += 1
        self._all_calls[call] += 1
        return self.call_counts[call, key]

    def select_fault(self, kind: Kind, dialect: events.Dialect, call: str, key: str, n: int) -> ActiveFault | None:
        """The fault that affects this call. The ledger records it, so that a restart continues the count of calls."""
        fault = self.faults.select(kind, dialect, call, key, n, self._all_calls[call])
        if fault:
            t, wall = self.now()
            self.record(events.FaultInjected(t=t, wall=wall, do=fault.name, call=call, key=key, n=n))
        return fault

    # Tasks.

    async def run_tasks(self, *tasks: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run the ledger's sync and these tasks until one of them ends or fails."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(task()) for task in (self.ledger.run_sync, *tasks)]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in (*running, *self._tasks):
                task.cancel()

    def start_task(self, job: Coroutine[None, None, None]) -> None:
        """Run a coroutine after the reply. It is lost if the emulator stops first."""
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _prepare_folders(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.scratch)  # incomplete files of a killed emulator
        for name in ("scratch", "files", "outputs"):
            (self.settings.state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
