"""A budget is spent to its end in few rounds, and never exceeded; the ledger decides. See `World` for what is real.

A round is a wave of batches: its batches are bought before any of them has ended.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pytest

from batchbench.compile.manifest import Shard, read_manifest
from batchbench.emulator.faults.rules import Rule
from batchbench.errors import BudgetReached
from batchbench.probes import load_probe
from batchbench.providers.target import Target
from batchbench.runs.journal import rows_of
from tests.model.world import World, limits

pytestmark = [
    pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning"),  # the emulator's, here in our process
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # a killed client closes no file
]

WEEK = 7 * 86_400.0
REQUESTS = 1500  # of each job
PROBES = ("crows_pairs", "gest", "hiring_an", "inventories", "isear", "stereoset", "wino_bias")
DIALECTS = ("openai", "anthropic")
ROUNDS = {"absolute": 12, "learnt": 6}
TrueCost = Callable[[str, str], int]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the manifest of a probe: the prompts of its sample data, so often that there are enough."""
    home = tmp_path_factory.mktemp("spending")

    def make(probe: str) -> Path:
        manifests = home / probe / "manifests"
        if not manifests.exists():
            form = ["--set", "form=question"] if probe in ("crows_pairs", "wino_bias") else []
            line = [sys.executable, "-m", "batchbench", "compile", probe, "--set", "data=sample", *form]
            subprocess.run([*line, "--home", str(home / probe)], check=True, capture_output=True)
            repeat(next(manifests.iterdir()))
        return manifests

    return make


def repeat(folder: Path) -> None:
    """Replace a manifest's rows by `REQUESTS` rows with the same prompts."""
    manifest = read_manifest(folder)
    assert manifest is not None
    rows = pl.read_parquet(sorted(folder.glob("*.parquet")))
    rows = pl.concat([rows] * (1 + REQUESTS // rows.height)).head(REQUESTS)
    rows = rows.with_columns(id=pl.int_range(REQUESTS).cast(rows["id"].dtype))
    rows.write_parquet(folder / "00000.parquet")
    text = b"".join(prompt.encode() + b"\0" for prompt in rows["prompt"])
    shard = Shard(
        file="00000.parquet",
        first=0,
        rows=REQUESTS,
        text_sha256=hashlib.sha256(text).hexdigest(),
        file_sha256=hashlib.sha256((folder / "00000.parquet").read_bytes()).hexdigest(),
    )
    whole = msgspec.structs.replace(manifest, items=REQUESTS, prompts=REQUESTS, variants=1, shards=[shard], sha256="")
    (folder / "manifest.json").write_bytes(msgspec.json.encode(whole))


class Job(NamedTuple):
    """A probe's prompts at a provider with one way of asking."""

    folder: Path
    manifests: Path
    probe: str
    dialect: str
    plan: dict[str, Any] = {}  # noqa: RUF012 - never changed
    rules: list[Rule] = []  # noqa: RUF012 - never changed
    requests: int = REQUESTS

    def world(self) -> World:
        size = limits(50_000, 50, bytes=1 << 28, poll=(30, 60))
        world = World(self.folder, self.manifests, self.dialect, size)
        world.target = Target(provider=self.dialect, model="random", max_tokens=load_probe(self.probe).max_tokens)
        world.faults(self.rules)
        return world

    def start(self, world: World, budget: int | None) -> None:
        world.start(self.requests, 1, budget, **self.plan)


class Spent(NamedTuple):
    """What the ledger says at the end."""

    cost: int
    rounds: list[tuple[int, int]]  # each round with all that was billed until its end
    error: BaseException | None
    limits: list[int | None]  # in the requests of each batch
    cut_off: int

    def until(self, part: float, goal: int) -> int:
        """The round at whose end a part of the goal is spent."""
        return next((number for number, cost in self.rounds if cost >= part * goal), 10**9)


def spend(job: Job, budget: int | None, kills: tuple[str, ...] = ()) -> Spent:
    """Run a job until its end or its budget stops it. At each of the crash points `kills` it dies and starts again."""
    world = job.world()
    try:
        for point in kills:
            world.deadly = (point, 2)
            job.start(world, budget)
            world.wait(WEEK)
            world.kill()
            world.deadly = ("", 0)
            assert budget is None or billed(world) <= budget
        job.start(world, budget)
        world.wait(WEEK)
        done = world.finished()
        assert done is not None
        world.wait(1)
        check(world, budget)
        cost, accepted = billed(world), len(world.mine())
        job.start(world, budget)  # the same command again
        world.wait(WEEK)
        assert world.finished()
        assert (billed(world), len(world.mine())) == (cost, accepted)
        batches = list(world.state().batches.values())
        cut_off = sum(len(rows_of(batch.stored.cut_off)) for batch in batches if batch.stored)
        return Spent(cost, rounds(world), done.error, [batch.max_tokens for batch in batches], cut_off)
    finally:
        world.close()


def check(world: World, budget: int | None) -> None:
    assert budget is None or billed(world) <= budget
    found = world.verdict()["invariants"]
    del found["answers_belong_to_their_prompts"]  # it is about the persona `echo` alone
    assert not {name: one["problems"][:5] for name, one in found.items() if one["problems"]}


def billed(world: World) -> int:
    return sum(event["cost"] for event in ledger(world) if event["event"] == "billed")


def ledger(world: World) -> Iterator[Any]:
    return map(json.loads, world.context.settings.ledger.read_text().splitlines())


def rounds(world: World) -> list[tuple[int, int]]:
    """Each round with all that was billed until its end. A batch is a round later than those that ended before it."""
    last, cost, found = 0, 0, [(0, 0)]
    bought: dict[str, int] = {}
    for event in ledger(world):
        match event["event"]:
            case "accepted":
                bought[event["batch"]] = last + 1
            case "billed":
                cost += event["cost"]
                found.append((bought.get(event["batch"], 0), cost))
            case "ended":
                last = max(last, bought[event["batch"]])
    return found


@pytest.fixture(scope="session")
def true_cost(compiled: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> TrueCost:
    known: dict[tuple[str, str], int] = {}

    def cost(probe: str, dialect: str) -> int:
        if (probe, dialect) not in known:
            folder = tmp_path_factory.mktemp("whole")
            whole = spend(Job(folder, compiled(probe), probe, dialect), None)
            assert whole.error is None
            known[probe, dialect] = whole.cost
        return known[probe, dialect]

    return cost


CELLS = [
    pytest.param(
        probe,
        dialect,
        mode,
        part,
        marks=[] if (probe, part) in (("isear", 25), ("gest", 100)) and dialect == "openai" else [pytest.mark.full],
    )
    for probe in PROBES
    for dialect in DIALECTS
    for mode in ROUNDS
    for part in (10, 25, 50, 100, 200)
]


@pytest.mark.parametrize(("probe", "dialect", "mode", "part"), CELLS)
def test_a_budget_is_spent_to_its_end(
    compiled: Callable[[str], Path], true_cost: TrueCost, tmp_path: Path, probe: str, dialect: str, mode: str, part: int
) -> None:
    true = true_cost(probe, dialect)
    budget = true * part // 100
    done = spend(Job(tmp_path, compiled(probe), probe, dialect, {"budget_mode": mode}), budget)
    goal = min(budget, true)
    assert done.cost >= 0.95 * goal, (done.cost / goal, done.error)
    assert done.until(0.95, goal) <= ROUNDS[mode], done.rounds
    assert isinstance(done.error, BudgetReached | None)


@pytest.mark.parametrize(
    "part", [25, pytest.param(50, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("probe", [pytest.param(probe, marks=pytest.mark.full) for probe in PROBES])
def test_a_small_job_spends_its_budget_but_for_one_request(
    compiled: Callable[[str], Path], true_cost: TrueCost, tmp_path: Path, probe: str, part: int
) -> None:
    """What is left at the end is less than the next request may cost, or less than 3 % of the budget."""
    true = true_cost(probe, "openai")
    budget = true * part // 100 // 5
    done = spend(Job(tmp_path, compiled(probe), probe, "openai", requests=REQUESTS // 5), budget)
    assert isinstance(done.error, BudgetReached | None)
    assert done.cost >= 0.9 * budget or done.error is None


@pytest.mark.parametrize("since", [None, 2])
@pytest.mark.parametrize(
    ("probe", "dialect", "part"),
    [
        ("isear", "anthropic", 50),
        *(pytest.param(p, d, part, marks=pytest.mark.full) for p in PROBES for d in DIALECTS for part in (10, 100)),
    ],
)
def test_answers_as_long_as_their_requests_allow_never_exceed_a_budget(
    compiled: Callable[[str], Path],
    true_cost: TrueCost,
    tmp_path: Path,
    probe: str,
    dialect: str,
    part: int,
    since: int | None,
) -> None:
    """From the start, or from the second batch on, when a short limit was learnt from short answers; with kills."""
    budget = true_cost(probe, dialect) * part // 100
    job = Job(tmp_path, compiled(probe), probe, dialect, rules=[Rule(do="line-endless", since=since)])
    done = spend(job, budget, kills=("after-intent", "once-after-reply", "before-stored", "after-stored"))
    assert isinstance(done.error, BudgetReached)
    assert bool(done.cut_off) == (since is not None)


@pytest.mark.parametrize("dialect", ["openai", pytest.param("anthropic", marks=pytest.mark.full)])
def test_what_a_short_limit_cuts_off_is_asked_again_with_the_full_limit(
    compiled: Callable[[str], Path], true_cost: TrueCost, tmp_path: Path, dialect: str
) -> None:
    """One answer as long as the full limit teaches that answers may be so long, so no later limit is short."""
    budget = true_cost("isear", dialect) * 150 // 100
    job = Job(tmp_path, compiled("isear"), "isear", dialect, rules=[Rule(do="line-endless", since=2, key="00-0$")])
    done = spend(job, budget)
    assert done.error is None  # so every request has its answer
    assert 0 < done.cut_off <= REQUESTS // 100
    assert set(done.limits) == {None, 8}
    assert set(done.limits[-5:]) == {None}


@pytest.mark.parametrize("dialect", ["openai", pytest.param("anthropic", marks=pytest.mark.full)])
def test_a_pilot_teaches_the_limit_so_that_no_round_is_spent_on_it(
    compiled: Callable[[str], Path], true_cost: TrueCost, tmp_path: Path, dialect: str
) -> None:
    budget = true_cost("hiring_an", dialect)
    done = spend(Job(tmp_path, compiled("hiring_an"), "hiring_an", dialect, {"pilot": "calls"}), budget)
    assert done.limits[0] is not None
    assert done.until(0.95, budget) <= 5


def test_input_that_is_suddenly_counted_twice_is_reserved_by_its_bytes_again(
    compiled: Callable[[str], Path], true_cost: TrueCost, tmp_path: Path
) -> None:
    job = Job(tmp_path, compiled("stereoset"), "stereoset", "openai", {"budget_mode": "learnt"})
    world = job._replace(rules=[Rule(do="line-input-twice", since=2, key="7-0$")]).world()
    try:
        budget = true_cost("stereoset", "openai") // 2
        job.start(world, budget)
        world.wait(WEEK)
        assert world.finished()
        first, second, *others = world.state().batches.values()
        assert first.tokens_per_byte is None
        assert second.tokens_per_byte is not None
        assert second.stored
        assert second.stored.above == sum(row % 10 == 7 for row in rows_of(second.ranges))
        assert others
        assert {batch.tokens_per_byte for batch in others} == {None}
        check(world, budget)
    finally:
        world.close()
