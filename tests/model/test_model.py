"""A state machine: the user, the provider and the machine act on a run in any order, and the invariants always hold."""

import gc
import tempfile
from collections import Counter
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batchbench.emulator.faults.catalogue import FAULTS
from batchbench.emulator.faults.rules import Rule
from batchbench.errors import UnresolvedError
from batchbench.runs.events import AnyEvent
from batchbench.runs.journal import OPEN
from tests.model.world import Process, World, limits

pytestmark = [
    pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning"),  # the emulator's, here in our process
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # a killed client closes no file
]

HOUR, DAY = 3600.0, 86_400.0
ITEMS = 6  # of three prompts each

# Faults that lose no answer in the end.
HARMLESS = [
    *[
        Rule(do=do, on=on)
        for on in ("create", "list", "poll", "upload", "content", "results")
        for do in ("reset-before", "reset-after", "500-before", "500-after", "html-after", "429-seconds")
        if on in FAULTS[do].calls and not (on in ("content", "results") and do == "html-after")
    ],
    Rule(do="hang-after", on="create", seconds=200),
    Rule(do="late-act", on="create", seconds=300),
    Rule(do="400-not-json", on="create"),
    Rule(do="429-queue-full", on="create"),
    Rule(do="upload-bytes"),
    Rule(do="list-lag", seconds=500),
    Rule(do="list-repeat"),
    Rule(do="list-duplicates"),
    Rule(do="list-envelope"),
    Rule(do="counts-zero"),
    Rule(do="status-unknown"),
    Rule(do="status-backwards"),
    Rule(do="foreign"),
    Rule(do="token-limit"),
    Rule(do="line-duplicate", p=0.5),
]
# Faults after which some row may be missing or have failed.
LOSSY = [
    Rule(do="expire-half", seconds=300),
    Rule(do="expire-none", seconds=300),
    Rule(do="cancelled-elsewhere", seconds=300),
    Rule(do="validation-failed"),
    Rule(do="poll-404"),
    Rule(do="output-null"),
    Rule(do="output-late", seconds=2000),
    *[Rule(do=do) for do in ("cut-line", "cut-mid-line", "cut-length")],
    # Not every line: a batch in which every line has a wrong id cannot be told from other users' batches.
    *[Rule(do=f"line-{name}", nth=[2]) for name in ("unknown-id", "foreign-id")],
    *[Rule(do=f"line-{name}", p=0.3) for name in ("missing", "malformed", "conflict", "500", "policy", "usage-absent")],
    Rule(do="line-endless", p=0.3),
]
EVENTS = [kind.__name__.lower() for kind in get_args(AnyEvent)]
DEADLY = [
    *(f"{step}-{event}" for event in EVENTS for step in ("before", "torn", "after")),
    *("once-before-send", "once-after-reply", "download-piece", "answers-before", "answers-after"),
    *("segment-written", "segment-synced", "segment-renamed"),
]


DURATIONS = st.sampled_from([0.3, 5.0, 100.0, 1000.0, HOUR, 10 * HOUR, DAY, 3 * DAY])


class RunMachine(RuleBasedStateMachine):
    """A run that is started, disturbed and killed, in any order."""

    def __init__(self, manifests: Path) -> None:
        super().__init__()
        self.manifests = manifests
        self.world: World
        self.lossy = False
        self.faults: list[Rule] = []
        self.asked = (1, 1)  # the largest numbers of items and repetitions so far
        self.audited: tuple[int, int] | None = None  # sizes of ledger and journal at the last audit
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    @initialize(
        dialect=st.sampled_from(["openai", "anthropic"]),
        size=st.integers(1, 9),
        open_batches=st.integers(1, 4),
        size_in_bytes=st.sampled_from([1 << 20, 1500]),
        seed=st.integers(0, 9),
    )
    def begin(self, dialect: str, size: int, open_batches: int, size_in_bytes: int, seed: int) -> None:
        found = limits(size, open_batches, bytes=size_in_bytes)
        self.world = World(Path(self._folder.name), self.manifests, dialect, found, seed)

    # -- the user ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.client is None)
    @rule(
        items=st.integers(1, ITEMS),
        repetitions=st.integers(1, 2),
        budget=st.none() | st.integers(0, 1500),
        mode=st.sampled_from(["absolute", "learnt"]),
        rebuy=st.booleans(),
        detach=st.booleans(),
        deadly=st.just(("", 0)) | st.tuples(st.sampled_from(DEADLY), st.integers(1, 3)),
        seconds=DURATIONS,
    )
    def start(
        self,
        items: int,
        repetitions: int,
        budget: int | None,
        mode: str,
        rebuy: bool,
        detach: bool,
        deadly: tuple[str, int],
        seconds: float,
    ) -> None:
        self.asked = max(self.asked[0], items), max(self.asked[1], repetitions)
        self.world.deadly = deadly
        self.world.start(items, repetitions, budget, rebuy_missing=rebuy, detach=detach, budget_mode=mode)
        self.wait(seconds)

    @precondition(lambda self: self.world.client is not None)
    @rule()
    def interrupt(self) -> None:
        client = self.world.client
        assert client is not None
        client.stop.set()
        self.wait(1.0)

    @precondition(lambda self: self.world.client is None and self.unresolved())
    @rule()
    def resolve_unresolved_batches(self) -> None:
        """The user finds out in the provider's own dashboard which batches exist."""
        self.resolve()

    def resolve(self) -> None:
        existing = {batch.accepted.nonce: batch.id for batch in self.world.mine() if not batch.deleted}
        for nonce in self.unresolved():
            self.world.resolve(nonce, existing.get(nonce, "void"))

    def unresolved(self) -> list[str]:
        return [batch.nonce for batch in self.world.state().open() if batch.state == "unresolved"]

    # -- the machine ---------------------------------------------------------------------------------------

    @rule(seconds=DURATIONS)
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)
        self.world.finished()

    @precondition(lambda self: self.world.client is not None)
    @rule()
    def kill(self) -> None:
        self.world.kill()

    @precondition(lambda self: self.world.client is None)
    @rule()
    def reboot(self) -> None:
        self.world.boots += 1

    @rule(seconds=st.sampled_from([100.0, HOUR, 10 * HOUR]))
    def freeze(self, seconds: float) -> None:
        self.world.freeze(seconds)

    # -- the provider --------------------------------------------------------------------------------------

    @rule(fault=st.sampled_from(HARMLESS + LOSSY), share=st.sampled_from([1.0, 0.5]))
    def provider_fails(self, fault: Rule, share: float) -> None:
        self.lossy |= fault in LOSSY
        self.faults = [*self.faults, msgspec.structs.replace(fault, p=fault.p * share)][-3:]
        self.world.faults(self.faults)

    @precondition(lambda self: self.faults)
    @rule()
    def provider_recovers(self) -> None:
        self.faults = []
        self.world.faults([])

    @rule(seconds=st.sampled_from([1.0, 100.0, 2000.0]))
    def network_fails(self, seconds: float) -> None:
        self.world.reachable(False)
        self.wait(seconds)
        self.world.reachable(True)

    @precondition(lambda self: any(self.world.context.state.open))
    @rule(which=st.integers(0, 9))
    def another_user_cancels(self, which: int) -> None:
        running = [batch.id for batch in self.world.mine() if batch.open and batch.cancelled is None]
        if running:
            self.lossy = True
            self.world.cancel_elsewhere(running[which % len(running)])

    # -- invariants ----------------------------------------------------------------------------------------

    @invariant()
    def the_journal_has_the_whole_state(self) -> None:
        client = self.world.client
        if client is not None and client.run is not None and not client.task.done():
            assert self.world.state() == client.run.state

    @invariant()
    def no_row_is_in_two_batches(self) -> None:
        rows: Counter[tuple[int, int]] = Counter()
        for batch in self.world.state().batches.values():
            taken = {row for start, stop in batch.ranges for row in range(start, stop)}
            if batch.stored:
                free = batch.stored.again + batch.stored.missing
                taken -= {row for start, stop in free for row in range(start, stop)}
            elif batch.state not in OPEN:
                taken = set()
            rows.update((batch.rep, row) for row in taken)
        assert max(rows.values(), default=1) == 1

    @invariant()
    def the_auditor_finds_no_problem(self) -> None:
        journal, ledger = self.world.folder / "journal", self.world.context.settings.ledger
        if not self.world.state().asked:
            return
        sizes = ledger.stat().st_size, journal.stat().st_size
        if sizes != self.audited:
            self.audited = sizes
            self.world.audit(unfinished=True)

    # -- the end -------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.check_end()
            finally:
                self.world.close()
        self._folder.cleanup()

    def check_end(self) -> None:
        """Without faults, the same command collects every answer, and after that it changes nothing."""
        self.world.kill()
        self.world.faults([])
        self.world.deadly = ("", 0)
        items, repetitions = self.asked
        for _ in range(8):
            client = self.finish(items, repetitions)
            if client.error is None:
                break
            if isinstance(client.error, UnresolvedError):
                self.resolve()
        assert client.error is None, client.error
        status = client.status()
        assert client.account is not None
        assert (client.account.todo(), client.account.progress().in_flight) == (0, 0)
        assert self.lossy or status["answered"] == status["asked"], status
        self.world.audit(status=status)
        self.world.wait(DAY)
        client = self.finish(items, repetitions)  # rechecks missing answers
        assert client.error is None, client.error
        status = client.status()
        before = self.world.audit(status=status)["snapshot"]
        assert self.finish(items, repetitions).error is None
        self.world.audit(status=status, before=before)

    def finish(self, items: int, repetitions: int) -> Process:
        self.world.start(items, repetitions)
        for _ in range(20):
            self.world.wait(DAY / 2)
            if client := self.world.finished():
                return client
        raise AssertionError("still running after ten days")


def play(manifests: Path, examples: int, steps: int, derandomize: bool = False) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        derandomize=derandomize,
    )
    run_state_machine_as_test(lambda: RunMachine(manifests), settings=chosen)  # type: ignore[arg-type]
    gc.collect()  # close the files of killed clients here, not in another test


def test_invariants_hold_for_any_order_of_events(small: Path) -> None:
    play(small, 80, 25, derandomize=True)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_invariants_hold_for_any_order_of_many_events(small: Path) -> None:
    play(small, 200, 50)
