"""What every route needs: settings, clock, ledger, state, and the gate where faults strike."""

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from batchbench.core.money import Price
from batchbench.emulator.faults import Faults, Fired, Rule
from batchbench.emulator.faults.catalogue import Where
from batchbench.emulator.jobs.runner import text_digest
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.ledger.ledger import Ledger
from batchbench.emulator.ledger.state import BASE62, Batch, File, State, spell
from batchbench.emulator.personas.interface import Persona
from batchbench.emulator.personas.respond import find_persona
from batchbench.emulator.server.clock import Clock
from batchbench.emulator.server.limits import Delays, Limits
from batchbench.errors import UsageError
from batchbench.providers import prices


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the emulator."""

    state: Path
    ledger: Path
    home: Path  # where personas look for data sets
    token: str
    port: int = 0
    seed: int = 0
    limits: Limits = Limits()
    delays: Delays = Delays()
    price: Price = prices.EMULATOR
    rules: list[Rule] = []
    idle_exit: float | None = None


class Desk:
    """Owns the state; `record` is the only way to change it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = State()
        self.ledger = Ledger(settings.ledger)
        self.open_bills: dict[str, list[tuple[int, int]]] = {}  # where unfinished batches were billed in the ledger
        for event, offset, length in self.ledger.replay():
            self.state.apply(event)
            if isinstance(event, ev.Billed) and event.batch in self.state.open:
                self.open_bills.setdefault(event.batch, []).append((offset, length))
            elif isinstance(event, ev.Ended):
                self.open_bills.pop(event.batch, None)
        self.clock = Clock(self.state.offset)
        self.calls: Counter[tuple[str, str]] = Counter(self.state.calls)
        self.bell = asyncio.Event()  # rings when there may be work
        self.port = 0  # known once the server listens
        self.progress: dict[str, int] = {}  # requests answered so far by the pass that is running
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = len(self.state.files) + len(self.state.batches)
        self._prepare_folders()
        if not self.ledger.written:
            t, wall = self.now()
            self.record(ev.Born(t=t, wall=wall, format=ev.FORMAT, seed=settings.seed, salt=os.urandom(8).hex()))
        elif self.state.seed != settings.seed:
            raise UsageError(
                f"{settings.ledger} was begun with seed {self.state.seed}: use that, or another --state folder"
            )
        self.faults = Faults(settings.rules, settings.seed)

    def record(self, event: ev.Event) -> None:
        """Write an event and let it take effect. Whoever answers a client waits for `durable` first."""
        self.ledger.append(event)
        self.state.apply(event)
        self.bell.set()

    def new_id(self, kind: str, prefix: str, length: int, alphabet: str = BASE62) -> str:
        """An id nobody else gets, although the event that takes it is written later."""
        while True:
            self._ids += 1
            new = prefix + spell(f"{self.state.salt} {kind} {self._ids}", length, alphabet)
            if new not in self.state.files and new not in self.state.batches:
                return new

    async def durable(self) -> None:
        await self.ledger.durable()

    def now(self) -> tuple[float, float]:
        """Virtual and real time, as every event carries them."""
        wall = self.clock.wall()
        return wall + self.clock.offset, wall

    def bill_sync(self, name: str, input_tokens: int, output_tokens: int, text: str) -> None:
        """A synchronous call is billed as it is answered, at the full price."""
        t, wall = self.now()
        cost = self.settings.price.doubled().cost(input_tokens, output_tokens)
        self.record(
            ev.BilledInFull(
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

    # Where things are on disk.

    @property
    def scratch(self) -> Path:
        return self.settings.state / "scratch"

    def input_path(self, file: str) -> Path:
        return self.settings.state / "files" / f"{file}.jsonl"

    def output_path(self, file: str) -> Path:
        return self.settings.state / "outputs" / f"{file}.jsonl"

    def file_path(self, file: File) -> Path:
        return self.output_path(file.id) if file.purpose == "batch_output" else self.input_path(file.id)

    def forget_file(self, file: str) -> None:
        """Remove a deleted file from disk, unless a batch still has to read it."""
        if not any(self.state.batches[batch].accepted.file == file for batch in self.state.open):
            self.input_path(file).unlink(missing_ok=True)
            self.output_path(file).unlink(missing_ok=True)

    # Models.

    def persona(self, model: str) -> Persona | None:
        return find_persona(model, self.settings.home)

    # Batches.

    def batches(self, dialect: ev.Dialect) -> list[Batch]:
        """Newest first."""
        batches = self.state.batches.values()
        return [batch for batch in reversed(batches) if batch.accepted.dialect == dialect and not batch.deleted]

    def batch(self, batch_id: str, dialect: ev.Dialect) -> Batch | None:
        batch = self.state.batches.get(batch_id)
        return batch if batch and batch.accepted.dialect == dialect and not batch.deleted else None

    # Faults.

    def nth(self, call: str, key: str) -> int:
        """Count a call; the first one is 1."""
        self.calls[call, key] += 1
        return self.calls[call, key]

    def strike(self, where: Where, dialect: ev.Dialect, call: str, key: str, n: int) -> Fired | None:
        """The fault that strikes this call, noted in the ledger so that a restart goes on counting."""
        fired = self.faults.strike(where, dialect, call, key, n)
        if fired:
            t, wall = self.now()
            self.record(ev.Faulted(t=t, wall=wall, do=fired.fault.name, call=call, key=key, n=n))
        return fired

    # Tasks.

    async def serve(self, *jobs: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run the emulator's own jobs until one of them ends or fails."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(job()) for job in (self.ledger.flush, *jobs)]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in (*running, *self._tasks):
                task.cancel()

    def later(self, job: Coroutine[None, None, None]) -> None:
        """Do something after the reply; it is lost if the emulator is stopped first."""
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _prepare_folders(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.scratch)  # whatever a killed emulator was writing
        for name in ("scratch", "files", "outputs"):
            (self.settings.state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
