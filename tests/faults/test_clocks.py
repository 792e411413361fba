"""The clock on the wall may be wrong, or be set while a create has no answer: no batch is bought again for that."""

import os
from pathlib import Path

import pytest

from tests.auditor.invariants import audit, load
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, Json, Scene, ended, wait_until

DAY = 86_400
# Put before everything else that the program imports: from then on its clock is off by what the file says.
WRONG_CLOCK = """
import os, time
true_time, offset = time.time, os.environ["CLOCK_OFFSET"]

def wrong_time():
    with open(offset) as file:
        return true_time() + float(file.read() or 0)

time.time = wrong_time
"""
LOST: list[Json] = [{"do": "reset-after", "on": "create"}, {"do": "list-lag", "seconds": 2.5}]


class WrongClock:
    """A clock for the client of a scene, which can be set."""

    def __init__(self, scene: Scene) -> None:
        folder = scene.folder / "clock"
        folder.mkdir()
        self.file = folder / "offset"
        self.set(0)
        (folder / "sitecustomize.py").write_text(WRONG_CLOCK)
        path = os.pathsep.join(filter(None, [str(folder), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        scene.environment = {"PYTHONPATH": path, "CLOCK_OFFSET": str(self.file)}

    def set(self, seconds: float) -> None:
        scratch = self.file.with_suffix(".new")
        scratch.write_text(str(seconds))
        scratch.rename(self.file)


def judge(scene: Scene, rows: int) -> None:
    """Paid for once, found by looking; the auditor cannot hold times of two clocks against each other."""
    assert scene.billed() == rows
    assert all(event["found"] for event in scene.journal("created"))
    assert not scene.journal("void", "unresolved")
    folder = scene.run_folder
    found = audit(load(scene.emulator.ledger, folder, scene.home / "manifests" / folder.parent.name))["invariants"]
    assert {name for name, one in found.items() if one["problems"]} <= {"I12"}, found


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("days", [30, -30])
def test_a_clock_that_is_set_makes_no_batch_older(stage: Stage, dialect: str, days: int) -> None:
    scene = stage(dialect, rules=LOST)
    clock = WrongClock(scene)
    client = scene.start("--settle", "4", k=20, size=20)
    wait_until(scene.accepted)
    clock.set(days * DAY)
    done = ended(client)
    assert (done.code, done.report["answered"]) == (0, 20), done
    judge(scene, 20)


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("days", [3, -3])
def test_a_clock_that_is_wrong_hides_no_batch(stage: Stage, dialect: str, days: int) -> None:
    scene = stage(dialect, rules=LOST)
    WrongClock(scene).set(days * DAY)
    done = scene.run("--settle", "4", k=20, size=20)
    assert (done.code, done.report["answered"]) == (0, 20), done
    judge(scene, 20)


def test_a_clock_that_is_set_between_two_starts_makes_no_batch_older(stage: Stage) -> None:
    scene = stage("openai", rules=LOST)
    clock = WrongClock(scene)
    assert scene.run("--settle", "4", k=20, size=20, crash="once-before-send:1").code == -9  # never sent
    assert not scene.accepted()
    clock.set(30 * DAY)
    done = scene.run("--settle", "4", k=20, size=20)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 20, 20), done
    assert len(scene.journal("void")) == 1
