"""A provider and a client in one process and in virtual time.

The emulator, the dispatcher, the HTTP between them and the files are real. The network, the threads and the clock are
simulated.
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
from batchbench.compile.manifest import prompt_bytes, read_manifest
from batchbench.core import crash_points
from batchbench.core.clock import Clock
from batchbench.core.keys import Secret
from batchbench.core.money import Price
from batchbench.core.store import Store
from batchbench.dispatch import Account, Budget, Plan
from batchbench.dispatch.recover import decide
from batchbench.dispatch.state import Dispatch
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
from batchbench.transport.client import Client
from tests.auditor.invariants import audit, load
from tests.dispatch.scene import tear_last_line
from tests.model.loop import Loop, virtual

Json = dict[str, Any]
Act = Callable[[Account, Calls], Awaitable[None]]
TOKEN = "sk-canary-5a0d"
PORT = 8080
PRICE = Price(input=75_000, output=300_000, source="test")  # what the emulator charges
PROCESSING = 600.0  # seconds a batch takes


class Killed(BaseException):
    """Raised in a killed client; its own code cannot catch it."""


class World:
    """One provider, one folder, at most one client at a time."""

    def __init__(self, folder: Path, manifests: Path, dialect: str, limits: Limits, seed: int = 0) -> None:
        self._exit_stack = ExitStack()
        self.loop: Loop = self._exit_stack.enter_context(virtual(seed))
        self._exit_stack.enter_context(pytest.MonkeyPatch.context()).setattr(crash_points, "point", self._point)
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
        self.rebuys = 0  # how often the user has asked for missing answers again
        self.deadly = ("", 0)  # the crash point that kills the client, and after how many passes
        self.dead = False
        self.client: Process | None = None
        self.context: Context
        self._provider_tasks: list[asyncio.Task[None]] = []
        (folder / "provider").mkdir()
        self.do(self._start_provider(folder / "provider", seed))

    def do(self, what: Any) -> Any:
        """Run a coroutine to its end, and everything else in the meantime."""
        return self.loop.run_until_complete(what)

    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    def close(self) -> None:
        self.kill()
        for task in self._provider_tasks:
            task.cancel()
        self.do(asyncio.gather(*self._provider_tasks, return_exceptions=True))
        self.loop.close_connections()
        self.context.ledger.close()
        self._exit_stack.close()

    # -- the provider --------------------------------------------------------------------------------------

    async def _start_provider(self, state: Path, seed: int) -> None:
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
        self._http_server = runner.server
        self.loop.server = self._http_server
        self._provider_tasks.append(asyncio.ensure_future(self.context.run_tasks(server.scheduler.run)))

    def faults(self, rules: Sequence[Rule]) -> None:
        """Replace the faults that the provider plays."""
        self.context.faults = Faults(list(rules), self.context.settings.seed)

    def reachable(self, reachable: bool) -> None:
        self.loop.server = self._http_server if reachable else None
        if not reachable:
            self.loop.close_connections()

    def freeze(self, seconds: float) -> None:
        """Freeze the client's machine: its clocks stand still, the provider's clock goes on."""
        t, wall = self.context.now()
        self.context.record(events.ClockAdvanced(t=t, wall=wall, advance=seconds))
        self.context.clock.advance(seconds)
        self.context.changed.set()

    def mine(self) -> list[Any]:
        """The client's batches, as the provider has them."""
        return [batch for batch in self.context.state.batches.values() if batch.accepted.owner == "client"]

    def cancel_elsewhere(self, batch: str) -> None:
        t, wall = self.context.now()
        self.context.record(events.BatchCancelled(t=t, wall=wall, batch=batch, by="someone else"))

    # -- the client ----------------------------------------------------------------------------------------

    def start(
        self, items: int, repetitions: int = 1, budget: int | None = None, act: "Act | None" = None, **wanted: Any
    ) -> "Process":
        """Start the client with the dispatcher, or with `act` in its place."""
        assert self.client is None
        self.dead = False
        self.rebuys += bool(wanted.get("rebuy_missing"))
        variants = self.manifest.variants
        wanted.setdefault("anyway", True)  # echoes cannot be read
        longest = prompt_bytes(self.manifest_folder, self.manifest, items * variants).longest if items else 0
        wanted.setdefault("max_row_cost", PRICE.bound(longest, self.target.max_tokens))
        plan = Plan(items=items, rows=items * variants, repetitions=repetitions, price=PRICE, **wanted)
        self.client = Process(self, plan, budget, act)
        return self.client

    def resolve(self, nonce: str, answer: str) -> None:
        """Decide what became of a batch, as `--resolve` does."""

        async def act(account: Account, calls: Calls) -> None:
            await decide(Dispatch(account, self.provider, calls), nonce, answer)

        self.start(0, act=act)
        for _ in range(100):
            self.wait(60)
            if self.finished():
                return
        raise AssertionError("the decision was not taken within 100 minutes")

    def finished(self) -> "Process | None":
        """The client if it has ended, which makes room for the next one; None if it is still running."""
        if self.client is None or not self.client.task.done():
            return None
        ended, self.client = self.client, None
        ended.check_error()
        return ended

    def kill(self) -> None:
        """Kill the client, as kill -9 does."""
        if self.client is not None and not self.client.task.done():
            self._die()
            self.client.task.cancel()
            self.do(asyncio.wait([self.client.task]))
        self.finished()

    def _die(self) -> None:
        """From now on the client has no effect: it writes no file, and its connections are closed."""
        self.dead = True
        self.loop.close_connections()

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

    # -- files --------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.store.cache / self.manifest_folder.name / self.target.slug

    def state(self) -> RunState:
        """The state according to the journal on disk."""
        path = self.folder / "journal"
        return journal.replay(read_journal(path).events) if path.exists() else RunState()

    def audit(self, **options: Any) -> Json:
        """Check the run with the auditor."""
        found = self.verdict(**options)
        problems = {name: one["problems"][:5] for name, one in found["invariants"].items() if one["problems"]}
        assert not problems, problems
        return found

    def verdict(self, **options: Any) -> Json:
        """What the auditor says about the run."""
        ledger = self.context.settings.ledger
        return audit(load(ledger, self.folder, self.manifest_folder, key=TOKEN, rebuys=self.rebuys, **options))


class Process:
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
        calls = Client(world.provider, f"http://127.0.0.1:{PORT}/{root}", Secret(TOKEN))
        loop = world.loop
        clock = Clock(now=loop.wall, uptime=loop.time, sleep=anyio.sleep, boot=f"boot {world.boots}")
        with open_run(world.store, world.manifest_folder, world.manifest, world.target, loop.wall()) as self.run:
            async with calls.running():
                self.account = Budget(self.budget).join(self.run, self.plan, world.limits, clock)
                await act(self.account, calls)

    async def _dispatch(self, account: Account, calls: Calls) -> None:
        await dispatch.dispatch(account, self.world.provider, calls, self.stop, lambda _: None)

    def check_error(self) -> None:
        """Unless the client was killed, its error must be one that a user can act on."""
        if self.task.cancelled():
            return
        self.error = self.task.exception()
        if self.error is None or self.world.dead:
            return
        unexpected: BaseException | None
        if isinstance(self.error, BaseExceptionGroup):
            unexpected = self.error.subgroup(lambda one: not isinstance(one, BatchbenchError | BaseExceptionGroup))
        else:
            unexpected = None if isinstance(self.error, BatchbenchError) else self.error
        if unexpected is not None:
            raise unexpected

    def status(self) -> Json:
        """Rows by outcome, as `status --json` has them."""
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
    """Small limits, and longer pauses between polls than with a real provider."""
    base = Limits(requests=size, bytes=1 << 20, open_batches=open_batches, settle=900, poll=(30, 1800))
    return msgspec.structs.replace(base, **others)
