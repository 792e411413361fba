"""The client is killed, or a reply is lost, at the worst moment: every answer is paid for once, and none is lost."""

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS, kill, wait_until

pytestmark = pytest.mark.parametrize("dialect", DIALECTS)
ROWS = 1000


def test_a_client_killed_with_batches_in_flight_pays_once(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=1.5")
    client = scene.start(k=ROWS, size=250)
    wait_until(lambda: len(scene.accepted()) >= 4)
    kill(client)
    assert scene.billed() == 0
    assert scene.run(k=ROWS, size=250).code == 0
    assert scene.billed() == ROWS
    scene.audit(status=True)


def test_a_client_killed_between_acceptance_and_reply_pays_once(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "hang-after", "on": "create", "seconds": 60}])
    client = scene.start(k=ROWS, size=250)
    wait_until(scene.accepted)
    kill(client)
    held = len(scene.accepted())
    scene.emulator.stop()
    scene.emulator.words = [*scene.emulator.words[:-2], "--port", str(scene.emulator.port)]  # it no longer hangs
    scene.emulator.start()
    assert scene.run(k=ROWS, size=250).code == 0
    assert scene.billed() == ROWS
    assert sum(event["found"] for event in scene.journal("created")) == held
    scene.audit(status=True)


def test_a_reply_lost_to_a_reset_is_looked_for_and_not_bought_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "reset-after", "on": "create"}])
    done = scene.run(k=ROWS, size=250)
    assert (done.code, done.report["answered"], done.report["missing"]) == (0, ROWS, 0), done
    assert scene.billed() == ROWS
    assert all(event["found"] for event in scene.journal("created"))
    scene.audit(status=True)
