"""Runs with models that think: readable answers by default, and no batch if thoughts leave no tokens for an answer."""

import json

import pytest

from batchbench.emulator.families.table import CLAUDE, LOCAL, OPENAI
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Scene

MODELS = [("openai", name) for name in OPENAI] + [("anthropic", name) for name in CLAUDE]
MODELS += [("chat", name) for name in LOCAL]
SOME = {"gpt-6.1-sol", "gpt-6.1-terra", "claude-opus-5-5", "claude-haiku-5-5", "local-think", "local-harmony"}
UNREADABLE = 5


def asked(scene: Scene, *words: str) -> list[str]:
    """The command for 100 prompts with a pilot, as a user would type it."""
    line = scene.line(*words, k=100, size=100)
    return [word for word in line[3:] if word not in ("--anyway", "--pilot", "none")]


def quick_ones(models: list[tuple[str, str]]) -> list[object]:
    return [pytest.param(*pair, marks=() if pair[1] in SOME else pytest.mark.full) for pair in models]


@pytest.mark.parametrize(("dialect", "model"), quick_ones(MODELS))
def test_default_settings_give_readable_answers(stage: Stage, dialect: str, model: str) -> None:
    scene = stage(dialect)
    scene.model = f"{model}/random"
    done = scene.program(*asked(scene))
    assert (done.code, done.report["answered"], done.report["empty"]) == (0, 100, 0), done
    found = scene.program("analyze", "hiring_an", "--set", "data=sample", "--model", str(scene.run_folder), "--json")
    readable = {one["kind"]: one["readable"] for one in json.loads(found.stdout)["readings"]}
    assert readable["careful"] == 100


@pytest.mark.parametrize(("dialect", "model"), quick_ones(MODELS))
def test_the_pilot_stops_a_run_with_too_few_tokens(stage: Stage, dialect: str, model: str) -> None:
    scene = stage(dialect)
    scene.model = f"{model}/random"
    done = scene.program(*asked(scene, "--max-tokens", "30", "--thinking", "default"))
    assert (done.code, done.report["answered"]) == (UNREADABLE, 0), done
    assert scene.billed() <= 30
    assert "raise --max-tokens" in done.stderr
    assert done.stderr.count("  row ") == 5
