"""The reply to a create is lost: every answer is paid for once, and none is lost."""

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS

pytestmark = pytest.mark.parametrize("dialect", DIALECTS)
ROWS = 1000


def test_a_create_whose_reply_is_lost_is_found_and_not_bought_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "reset-after", "on": "create"}])
    done = scene.run(k=ROWS, size=250)
    assert (done.code, done.report["answered"], done.report["missing"]) == (0, ROWS, 0), done
    assert scene.billed() == ROWS
    assert all(event["found"] for event in scene.journal("created"))
    scene.audit(status=True)
