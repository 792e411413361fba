"""`batchbench check`, and what `run` and `sweep` check before they compile anything."""

import json
import socket
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS

KEYS = {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""}


def levels(stdout: str) -> dict[tuple[str, str], str]:
    return {(one["subject"], one["check"]): one["level"] for one in json.loads(stdout)}


def test_the_home_alone_can_be_checked(batchbench: Run, tmp_path: Path) -> None:
    done = batchbench("check", "--json", "--home", tmp_path)
    assert done.returncode == 0, done.stderr
    assert levels(done.stdout) == {("home", "folder"): "ok", ("home", "disk"): "ok"}


@pytest.mark.parametrize(
    ("model", "code", "check"),
    [
        ("openai:gpt-6-lunna", 2, "price"),
        ("openai:gpt-6-luna", 77, "key"),
        ("sim:radnom", 2, "name"),
        ("opnai:gpt-6-luna", 2, "name"),
    ],
)
def test_what_is_wrong_with_a_model_is_named(
    batchbench: Run, tmp_path: Path, model: str, code: int, check: str
) -> None:
    done = batchbench("check", "--model", model, "--json", "--home", tmp_path, env=KEYS)
    assert done.returncode == code, done.stderr
    assert levels(done.stdout)[model, check] == "error"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_free_calls_show_key_model_batches_and_clock(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    done = scene.program(*scene.line(command="check")[3:], "--max-tokens", "20")
    found = levels(done.stdout)
    assert done.code == 0, done
    assert {"name", "price", "key", "batches", "clock", "limits", "hiring_an"} <= {check for _, check in found}
    assert scene.billed() == 0
    paid = scene.program(*scene.line(command="check")[3:], "--pay")
    assert (paid.code, scene.billed()) == (0, 1), paid
    (trial,) = [one for one in json.loads(paid.stdout) if one["check"] == "trial"]
    assert trial["level"] == "ok"


def test_a_refused_key_is_an_error(stage: Stage) -> None:
    scene = stage("openai")
    done = scene.program(*scene.line(command="check")[3:], OPENAI_API_KEY="wrong-key-12345")
    assert done.code == 77, done


@pytest.mark.parametrize("command", [["run", "hiring_an", "--model"], ["sweep"]])
@pytest.mark.parametrize(("model", "code"), [("openai:gpt-6-lunna", 2), ("openai:gpt-6-luna", 77), ("sim:radnom", 2)])
def test_names_prices_and_keys_are_checked_before_anything_is_compiled(
    batchbench: Run, tmp_path: Path, command: list[str], model: str, code: int
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(f'budget = 1\n[[probes]]\nname = "hiring_an"\n[[models]]\nname = "{model}"\n')
    words = [*command, model] if command[0] == "run" else ["sweep", str(file)]
    done = batchbench(*words, "--home", tmp_path / "home", env=KEYS)
    assert done.returncode == code, done.stderr
    assert not (tmp_path / "home" / "manifests").exists()
    assert command[0] == "run" or str(file) in done.stderr


def test_a_sample_larger_than_every_probe_is_refused_before_anything_is_compiled(
    batchbench: Run, tmp_path: Path
) -> None:
    words = ("run", "inventories", "gest", "--set", "data=sample", "--model", "sim:random", "--home", tmp_path)
    done = batchbench(*words, "--sample-k", "1000000")
    assert (done.returncode, (tmp_path / "manifests").exists()) == (2, False), done.stderr
    assert "use --sample-k all" in done.stderr


@pytest.mark.full
def test_a_chat_server_that_does_not_answer_is_an_error(batchbench: Run, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = batchbench("check", "--model", f"chat:m@http://127.0.0.1:{port}/v1", "--json", "--home", tmp_path, env=KEYS)
    assert done.returncode == 1, done.stdout
    (error,) = [one for one in json.loads(done.stdout) if one["level"] == "error"]
    assert (error["check"], f"127.0.0.1:{port}" in error["text"]) == ("address", True)
