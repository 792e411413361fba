"""Answers and counts that differ from what the run has learnt, while a budget limits it."""

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, Json, Scene
from tests.faults.rows import row

K = 200
BUDGET = 1_000  # micro-dollars, less than the run costs
POINTS = ("once-after-reply:3", "torn-stored:2")


def run_with_kills(scene: Scene, *words: str) -> None:
    """Kill the program at several points; start it once more, and let it end."""
    for point in POINTS:
        scene.run("--budget", f"{BUDGET / 1e6}", *words, k=K, size=K, crash=point)
        assert scene.cost() <= BUDGET
    done = scene.run("--budget", f"{BUDGET / 1e6}", *words, k=K, size=K)
    assert done.code == 3, done
    assert scene.cost() <= BUDGET
    scene.audit(budget=BUDGET)
    assert scene.program("audit").code == 0
    billed = scene.billed()
    assert scene.run("--budget", f"{BUDGET / 1e6}", *words, k=K, size=K).code == 3
    assert scene.billed() == billed


@pytest.mark.full
@row(139)
@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("since", [pytest.param(1, marks=pytest.mark.full), 2])
def test_answers_as_long_as_their_requests_allow_stay_within_the_budget(stage: Stage, dialect: str, since: int) -> None:
    scene = stage(dialect, rules=[{"do": "line-endless", "since": since}])
    run_with_kills(scene)


@pytest.mark.full
@row(140)
@pytest.mark.parametrize("dialect", BOTH)
def test_an_answer_that_a_short_limit_cuts_off_is_asked_again_with_the_full_limit(stage: Stage, dialect: str) -> None:
    rules: list[Json] = [{"do": "line-endless", "since": 2, "key": "3-0$"}]
    scene = stage(dialect, rules=rules)
    run_with_kills(scene)
    stored = next(event for event in scene.journal("stored") if event["cut_off"])
    cut = f"{stored['nonce']}-{stored['cut_off'][0][0]}-0"
    assert "tokens cut it off" in scene.program("explain", cut).stdout
    scene.end_faults()
    done = scene.run("--budget", "1", k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    scene.audit(status=True)


@pytest.mark.full
@row(141)
@pytest.mark.parametrize("dialect", BOTH)
def test_more_input_tokens_than_learnt_are_reserved_by_bytes_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "line-input-twice", "since": 2, "key": "3-0$"}])
    run_with_kills(scene, "--budget-mode", "learnt")
    above = [event["nonce"] for event in scene.journal("stored") if event["above"]]
    learnt = [event["nonce"] for event in scene.journal("intent") if event["tokens_per_byte"] is not None]
    assert above == learnt[-1:]
