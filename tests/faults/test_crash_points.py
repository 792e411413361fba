"""The client dies at every crash point, and again while it recovers: it continues, and pays for nothing twice."""

import ast
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import batchbench
from batchbench.runs import events
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, DIALECTS, Json, Scene
from tests.faults.rows import row

KILLED = -9
STEPS = ("before", "torn", "after")  # torn: killed after it, and then the test cuts its line in half
PLACES = (
    *("once-before-send", "once-after-reply", "download-piece"),
    *("segment-written", "segment-synced", "segment-renamed", "answers-before", "answers-after"),
)
SPOOLED = {"spool-call", "spool-line"}  # only `chat` passes it; dispatch/test_chat.py tests it
UNRESOLVED = 4
ORDINARY = ("opened", "asked", "intent", "uploaded", "creating", "created", "ended", "stored")
# Events that occur only after a fault: the fault rules, and options for the client.
TROUBLE: dict[str, tuple[list[Json], tuple[str, ...]]] = {
    "void": ([{"do": "reset-before", "on": "create"}], ()),
    "rejected": ([{"do": "429-ms", "on": "create"}], ()),
    "duplicate": ([{"do": "reset-after", "on": "create"}, {"do": "dup-accept"}], ()),
    "foreign": ([{"do": "reset-after", "on": "create"}, {"do": "foreign"}], ()),
}
OTHERS = {"unresolved", "cancelling", "failed", "late", "tried", "passed", "piloted"}  # each has its own test below
ELSEWHERE = {"looked", "cleared", "salvaged"}  # in test_lines.py, test_recovery.py and test_salvage.py
CARRIED = {"exported"}  # a dispatcher never writes it: test_export_import.py


def events_of(dialect: str) -> list[str]:
    """The events of every run of a dialect; only OpenAI's batches are uploaded first."""
    return [event for event in ORDINARY if event != "uploaded" or dialect == "openai"]


def troubles_of(dialect: str) -> list[str]:
    """The fault events of a dialect: OpenAI's batches carry names, so foreign ones are never examined."""
    return [event for event in TROUBLE if event != "foreign" or dialect == "anthropic"]


def steps(*events: str) -> list[str]:
    return [f"{step}-{event}" for event in events for step in STEPS]


def again_with(scene: Scene, rules: list[Json]) -> None:
    """Restart the provider with other faults, at the same address and with the same ledger."""
    scene.emulator.stop()
    file = scene.emulator.state / "rules.jsonl"
    file.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    scene.emulator.words = ["--port", str(scene.emulator.port), "--faults", str(file)]
    scene.emulator.start()


class Chain:
    """One run whose starts each die at another crash point, so each also recovers from the previous death."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.rows = 0

    def die(self, name: str, *words: str) -> None:
        self.rows += 12
        for _ in range(3):
            done = self.scene.run(*words, *self.scene.decisions(), k=self.rows, size=5, crash=f"{name}:1")
            if done.code != UNRESOLVED:
                break
        assert done.code == KILLED, (name, done)

    def finish(self) -> None:
        done = self.scene.run(*self.scene.decisions(), k=self.rows, size=100)
        if done.code == UNRESOLVED:
            done = self.scene.run(*self.scene.decisions(), k=self.rows, size=100)
        assert done.code == 0, done
        assert (done.report["answered"], done.report["missing"]) == (self.rows, 0)
        copies = {event["remote"] for event in self.scene.journal("duplicate")}
        mine = [event for event in self.scene.emulator.events("billed") if event.get("owner", "client") == "client"]
        assert sum(event["n"] for event in mine if event["batch"] not in {*copies, "sync"}) == self.rows
        self.scene.audit(status=True)


def test_every_crash_point_of_the_source_is_listed() -> None:
    found = set()
    for path in Path(batchbench.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash_points.point":
                found.add(ast.unparse(node.args[0]))
    assert found == {repr(name) for name in {*PLACES, *SPOOLED}} | {
        f"f'{step}-{{name}}'" for step in ("before", "after")
    }


def test_every_event_is_listed() -> None:
    kinds: tuple[type, ...] = events.AnyEvent.__args__
    assert {kind.__name__.lower() for kind in kinds} == {*ORDINARY, *TROUBLE, *OTHERS, *ELSEWHERE, *CARRIED}


@pytest.mark.full
@row(19)
def test_a_client_that_dies_at_every_recovery_pays_once(stage: Stage) -> None:
    def play(dialect: str) -> None:
        scene = scenes[dialect]
        chain = Chain(scene)
        if dialect == "anthropic":  # test_deaths.py covers these with OpenAI's batches
            for name in [*steps(*events_of(dialect)), *PLACES]:
                chain.die(name)
        for event in troubles_of(dialect):
            rules, words = TROUBLE[event]
            again_with(scene, rules)
            for name in steps(event):
                chain.die(name, *words)
        again_with(scene, [])
        chain.finish()

    scenes = {dialect: stage(dialect) for dialect in DIALECTS}
    with ThreadPoolExecutor() as pool:
        list(pool.map(play, DIALECTS))


@pytest.mark.full
def test_a_client_that_dies_while_it_declares_a_batch_void_does_so_again(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "deleted-elsewhere"}])
    for name in steps("unresolved"):
        done = scene.run(k=10, size=5, crash=f"{name}:1")
        assert done.code == KILLED, (name, done)
    assert scene.run(k=10, size=5).code == 4
    assert len(scene.accepted()) == len(scene.journal("unresolved")) == 2
    scene.audit()


@pytest.mark.full
def test_a_client_that_dies_while_it_stores_late_answers_keeps_them(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "cut-line", "first": 5}])
    assert scene.run(k=40, size=20).code == 6
    for name in ("download-piece", "segment-renamed", "answers-after", *steps("late")):
        done = scene.run(k=40, size=20, crash=f"{name}:1")
        assert done.code == KILLED, (name, done)
    done = scene.run(k=40, size=20)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 40, 40), done
    assert len(scene.accepted()) == 2
    scene.audit(status=True)


@pytest.mark.full
@pytest.mark.parametrize("dialect", BOTH)
def test_a_client_that_dies_during_the_pilot_asks_no_question_twice(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    for name in steps("tried", "passed", "piloted"):
        done = scene.run("--pilot", "auto", k=100, size=50, crash=f"{name}:1")
        assert done.code == KILLED, (name, done)
    done = scene.run("--pilot", "auto", k=100, size=50)
    assert (done.code, done.report["answered"]) == (0, 100), done
    assert len(scene.emulator.events("billed")) - 2 <= 20
    rows = [event["row"] for event in scene.journal("passed")]
    assert len(rows) == len(set(rows)) >= 15
    scene.audit(status=True)


@pytest.mark.full
@pytest.mark.parametrize("dialect", BOTH)
def test_a_client_that_dies_after_a_refused_pilot_asks_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "429-bare", "on": "chat" if dialect == "openai" else "messages"}])
    for name in steps("failed"):
        assert scene.run("--pilot", "auto", k=100, size=50, crash=f"{name}:1").code == KILLED
    assert scene.run("--pilot", "auto", k=100, size=50).code == 1
    assert scene.accepted() == []
    again_with(scene, [])
    assert scene.run("--pilot", "auto", k=100, size=50).code == 0
    scene.audit()


@pytest.mark.parametrize("dialect", BOTH)
def test_a_client_that_dies_while_it_cancels_leaves_nothing_behind(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=2")
    assert scene.run(k=20, size=10, crash="after-created:2").code == KILLED
    for name in steps("cancelling"):
        assert scene.run(k=20, size=10, command="cancel", crash=f"{name}:1").code == KILLED
    assert scene.run(k=20, size=10, command="cancel").code == 0
    done = scene.run("--again", k=20, size=10)  # the provider may have cancelled some requests before it answered them
    assert (done.code, done.report["answered"], scene.billed()) == (0, 20, 20), done
    scene.audit(status=True)


def passes(scene: Scene, **options: Any) -> Counter[str]:
    """How often a complete run passes each crash point."""
    file = scene.folder / "passed"
    done = scene.run(crash=f"list:{file}", **options)
    assert done.code == 0, done
    return Counter(file.read_text().split())


@pytest.mark.storm
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("which", ["first", "second", "middle"])
@pytest.mark.parametrize("name", [*steps(*ORDINARY), *PLACES])
def test_a_client_that_dies_twice_at_any_point_pays_once(stage: Stage, dialect: str, which: str, name: str) -> None:
    """It dies at a crash point, then at each point of its recovery, until no point is left."""
    count = passes(stage(dialect, "--delay", "processing=0.3"), k=40, size=10)[name.replace("torn-", "after-")]
    n = {"first": 1, "second": 2, "middle": count // 2}[which]
    if n < 1 or n > count:
        pytest.skip(f"a run comes by {count} times")
    recovery = [*steps("rejected", "created", "ended", "stored"), "download-piece", "segment-renamed", "answers-after"]
    second = recovery[hash_of(f"{dialect} {which} {name}") % len(recovery)]
    scene = stage(dialect, "--delay", "processing=0.3")
    assert scene.run(k=40, size=10, crash=f"{name}:{n}").code == KILLED
    assert scene.run(k=40, size=10, crash=f"{second}:1").code in (KILLED, 0)
    done = scene.run(k=40, size=10)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 40, 40), done
    scene.audit(status=True)


def hash_of(text: str) -> int:
    return sum(text.encode())
