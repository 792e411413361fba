"""A provider and a client in one process and in virtual time: the real emulator, the real dispatcher, real HTTP between
them, files in a real folder. What is not real is the wire, the threads and the clock.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import web

from batchbench import dispatch
from batchbench.compile.manifest import read_manifest
from batchbench.core import crash_points
from batchbench.core.clock import Clock
from batchbench.core.keys import Secret
from batchbench.core.money import Price
from batchbench.core.store import Store
from batchbench.dispatch import Account, Budget, Plan
from batchbench.emulator.faults.rules import Faults, Rule
from batchbench.emulator.ledger import events
from batchbench.emulator.server.context import Context, Settings
from batchbench.emulator.server.limits import Delays
from batchbench.emulator.server.server import Server
from batchbench.errors import BatchbenchError
from batchbench.providers import load_provider
from batchbench.providers.interface import Calls, Limits
from batchbench.providers.target import Target
from batchbench.runs import journal
from batchbench.runs.folder import Run, open_run, read_journal
from batchbench.runs.journal import RunState
from batchbench.runs.results import outcomes
from batchbench.transport import client
from tests.auditor.invariants import audit, load
from tests.dispatch.scene import tear_last_line
from tests.model.loop import Loop, virtual

Json = dict[str, Any]
Act = Callable[[Account, Calls], Awaitable[None]]
TOKEN = "sk-canary-5a0d"
PORT = 8080
PRICE = Price(input=75_000, output=300_000, source="test")  # the emulator's own
PROCESSING = 600.0  # seconds a batch takes


class Killed(BaseException):
    """The client is dead; no code of its own may catch this."""


class World:
    """One provider, one folder, at most one client at a time."""

    def __init__(self, folder: Path, manifests: Path, dialect: str, limits: Limits, seed: int = 0) -> None:
        self._leave = ExitStack()
        self.loop: Loop = self._leave.enter_context(virtual(seed))
        self._leave.enter_context(pytest.MonkeyPatch.context()).setattr(crash_points, "point", self._point)
        self.dialect = dialect
        self.limits = limits
        self.provider = load_provider(dialect)
        self.store = Store(folder / "home")
        shutil.copytree(manifests, self.store.manifests)
        self.manifest_folder = next(self.store.manifests.iterdir())
        manifest = read_manifest(self.manifest_folder)
        assert manifest is not None
        self.manifest = manifest
        self.target = Target(provider=dialect, model="echo", max_tokens=20)
        self.boots = 0
        self.rebuys = 0  # how often the user has asked for what was lost once more
        self.deadly = ("", 0)  # where the client dies, and the how manieth time it comes by
        self.dead = False
        self.client: Client | None = None
        self.context: Context
        self._sitting: list[asyncio.Task[None]] = []
        (folder / "provider").mkdir()
        self.do(self._open_the_provider(folder / "provider", seed))

    def do(self, what: Any) -> Any:
        """Let a coroutine run to its end, and everything else beside it."""
        return self.loop.run_until_complete(what)

    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    def close(self) -> None:
        self.kill()
        for task in self._sitting:
            task.cancel()
        self.do(asyncio.gather(*self._sitting, return_exceptions=True))
        self.loop.cut_wires()
        self.context.ledger.close()
        self._leave.close()

    # -- the provider --------------------------------------------------------------------------------------

    async def _open_the_provider(self, state: Path, seed: int) -> None:
        self.context = Context(
            Settings(
                state=state,
                ledger=state / "ledger.jsonl",
                home=state,
                token=TOKEN,
                seed=seed,
                delays=Delays(validating=5, processing=PROCESSING, cancelling=20),
            )
        )
        self.context.clock.wall = self.loop.wall
        self.context.port = PORT
        server = Server(self.context)
        runner = web.AppRunner(server.app(), access_log=None, handle_signals=False)
        await runner.setup()
        self._door = runner.server
        self.loop.server = self._door
        self._sitting.append(asyncio.ensure_future(self.context.run_tasks(server.scheduler.run)))

    def faults(self, rules: Sequence[Rule]) -> None:
        """From now on, these and no others."""
        self.context.faults = Faults(list(rules), self.context.settings.seed)

    def reachable(self, yes: bool) -> None:
        self.loop.server = self._door if yes else None
        if not yes:
            self.loop.cut_wires()

    def stand_still(self, seconds: float) -> None:
        """Freeze the client's machine, as who owns it may: none of its clocks goes on, the provider's does."""
        t, wall = self.context.now()
        self.context.record(events.ClockAdvanced(t=t, wall=wall, advance=seconds))
        self.context.clock.advance(seconds)
        self.context.changed.set()

    def mine(self) -> list[Any]:
        """Our batches, as the provider knows them."""
        return [batch for batch in self.context.state.batches.values() if batch.accepted.owner == "client"]

    def cancel_elsewhere(self, batch: str) -> None:
        t, wall = self.context.now()
        self.context.record(events.BatchCancelled(t=t, wall=wall, batch=batch, by="someone else"))

    # -- the client ----------------------------------------------------------------------------------------

    def start(
        self, items: int, repetitions: int = 1, budget: int | None = None, act: "Act | None" = None, **wanted: Any
    ) -> "Client":
        """Type the command, or another."""
        assert self.client is None
        self.dead = False
        self.rebuys += bool(wanted.get("rebuy_missing"))
        variants = self.manifest.variants
        plan = Plan(items=items, rows=items * variants, repetitions=repetitions, price=PRICE, **wanted)
        self.client = Client(self, plan, budget, act)
        return self.client

    def settle(self, nonce: str, answer: str) -> None:
        """Say what became of a batch that nobody else can tell of."""

        async def act(account: Account, _: Calls) -> None:
            dispatch.resolve(account.run, nonce, answer, self.loop.wall())

        self.start(0, act=act)
        self.wait(1)
        assert self.finished()

    def finished(self) -> "Client | None":
        """The client, if it has ended since; it is not the client any more then."""
        if self.client is None or not self.client.task.done():
            return None
        client, self.client = self.client, None
        client.judge()
        return client

    def kill(self) -> None:
        """As kill -9 does, wherever it is."""
        if self.client is not None and not self.client.task.done():
            self._die()
            self.client.task.cancel()
            self.do(asyncio.wait([self.client.task]))
        self.finished()

    def _die(self) -> None:
        """From here on nothing that the client does has any effect: on files it cannot, and nobody listens to it."""
        self.dead = True
        self.loop.cut_wires()

    def _point(self, name: str) -> None:
        place, left = self.deadly
        if name == place.replace("torn-", "after-") and not self.dead:
            self.deadly = (place, left - 1)
            if left <= 1:
                self.deadly = ("", 0)
                if place.startswith("torn-"):
                    tear_last_line(self.store.home)
                self._die()
        if self.dead:
            raise Killed(name)

    # -- what is there -------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.store.cache / self.manifest_folder.name / self.target.slug

    def state(self) -> RunState:
        """What the journal says to whoever reads it now."""
        path = self.folder / "journal"
        return journal.replay(read_journal(path).events) if path.exists() else RunState()

    def audit(self, **options: Any) -> Json:
        """The auditor's verdict."""
        ledger = self.context.settings.ledger
        found = audit(load(ledger, self.folder, self.manifest_folder, key=TOKEN, rebuys=self.rebuys, **options))
        wrong = {name: one["problems"][:5] for name, one in found["invariants"].items() if one["problems"]}
        assert not wrong, wrong
        return found


class Client:
    """One start of the program."""

    def __init__(self, world: World, plan: Plan, budget: int | None, act: Act | None) -> None:
        self.world = world
        self.plan = plan
        self.budget = budget
        self.error: BaseException | None = None
        self.run: Run | None = None
        self.account: Account | None = None
        self.stop = anyio.Event()
        self.task = world.loop.create_task(self._live(act or self._dispatch))

    async def _live(self, act: Act) -> None:
        world = self.world
        root = "openai/v1" if world.dialect == "openai" else "anthropic"
        api = client.Client(world.provider, f"http://127.0.0.1:{PORT}/{root}", Secret(TOKEN))
        loop = world.loop
        clock = Clock(now=loop.wall, uptime=loop.time, sleep=anyio.sleep, boot=f"boot {world.boots}")
        with open_run(world.store, world.manifest_folder, world.manifest, world.target, loop.wall()) as self.run:
            async with api.running():
                self.account = Budget(self.budget).join(self.run, self.plan, world.limits, clock)
                await act(self.account, api)

    async def _dispatch(self, account: Account, calls: Calls) -> None:
        await dispatch.dispatch(account, self.world.provider, calls, self.stop, lambda _: None)

    def judge(self) -> None:
        """Whatever a client ends with is something that it can tell a person, unless it was killed."""
        if self.task.cancelled():
            return
        self.error = self.task.exception()
        if self.error is None or self.world.dead:
            return
        unforeseen: BaseException | None
        if isinstance(self.error, BaseExceptionGroup):
            unforeseen = self.error.subgroup(lambda one: not isinstance(one, BatchbenchError | BaseExceptionGroup))
        else:
            unforeseen = None if isinstance(self.error, BatchbenchError) else self.error
        if unforeseen is not None:
            raise unforeseen

    def status(self) -> Json:
        """How many rows ended how, as `status --json` has it."""
        assert self.run is not None
        assert self.account is not None
        rows, plan = self.account.progress(), self.plan
        counts = outcomes(self.run.folder, self.run.state, plan.rows, plan.repetitions)
        assert sum(counts.values()) == rows.done
        assert rows.done + rows.in_flight + rows.missing + self.account.todo() == rows.rows
        return {
            "asked": rows.rows,
            "answered": counts["answered"] + counts["truncated"],
            "refused": counts["refused"] + counts["filtered"],
            "failed": counts["failed"],
            "missing": rows.missing,
        }


def limits(size: int, open_batches: int, **others: Any) -> Limits:
    """A provider's limits, small, and polled less often than a real one's."""
    base = Limits(requests=size, bytes=1 << 20, open_batches=open_batches, settle=900, poll=(30, 1800))
    return msgspec.structs.replace(base, **others)
