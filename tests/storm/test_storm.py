"""Small storms; `python -m tests.storm` makes large ones."""

from collections.abc import Callable

import pytest

from tests.dispatch.conftest import Stage, manifests, stage
from tests.dispatch.scene import BOTH, DIALECTS
from tests.storm.storm import RULES, Storm

__all__ = ["manifests", "stage"]


def play(stage: Stage, dialect: str, requests: int, kills: int, seed: int, say: Callable[[str], None]) -> None:
    scene = stage(dialect, "--seed", str(seed), rules=RULES)
    storm = Storm(scene, requests, kills, seed, say)
    storm.blow()
    storm.verdict()
    assert storm.dead.total() >= kills or storm.answered() == requests


@pytest.mark.parametrize("seed", [3])
@pytest.mark.parametrize("dialect", BOTH)
def test_a_small_storm_loses_nothing_and_pays_once(stage: Stage, dialect: str, seed: int) -> None:
    play(stage, dialect, 300, 4, seed, lambda _: None)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [8])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_storm_loses_nothing_and_pays_once(stage: Stage, dialect: str, seed: int) -> None:
    play(stage, dialect, 3_000, 30, seed, print)
