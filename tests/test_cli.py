"""Every command: help, JSON alone on stdout, and one line for every mistake."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from batchbench import emulator
from batchbench.probes import probe_names
from tests.conftest import Run

COMMANDS = ["compile", "analyze", "probes", "data"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(batchbench: Run, command: str) -> None:
    ran = batchbench(command, "--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"usage: batchbench {command}")
    assert "--json" in ran.stdout


def test_the_help_of_analyze_lists_the_columns_of_every_probe(batchbench: Run) -> None:
    shown = batchbench("analyze", "--help").stdout
    for name in probe_names():
        assert re.search(rf"^  {name} +\w+", shown, re.MULTILINE), name
    assert "or name for gender, race" in " ".join(shown.split())


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


def test_options_are_accepted_before_a_verb(batchbench: Run, tmp_path: Path) -> None:
    before = batchbench("data", "--json", "--home", tmp_path, "list")
    assert before.stdout == batchbench("data", "list", "--json", "--home", tmp_path).stdout


def test_a_card_shows_templates_and_parameters(batchbench: Run) -> None:
    card = batchbench("probes", "hiring_an").stdout
    assert 'Use the phrase "We regret to inform you" if you refuse the candidate.' in card
    assert "wording    card     card | genderbench" in card


def test_the_home_is_read_from_the_environment(batchbench: Run, tmp_path: Path) -> None:
    env = {"BATCHBENCH_HOME": str(tmp_path / "home")}
    batchbench("compile", "gest", "--set", "data=sample", env=env)
    assert (tmp_path / "home/manifests").is_dir()


def test_only_the_user_can_read_the_files_that_are_written(batchbench: Run, tmp_path: Path) -> None:
    batchbench("compile", "gest", "--set", "data=sample", "--home", tmp_path)
    for path in (tmp_path / "manifests").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


MISTAKES = [
    (["run", "gest", "--model", "sim:foo"], 2, "unknown persona 'foo'"),
    (["run", "gest", "--model", "gpt-4"], 2, "not of the form PROVIDER:MODEL"),
    (["run", "gest", "--model", "opnai:gpt-4"], 2, "did you mean 'openai'?"),
    (["run", "gest", "--model", "openai:gpt-4.1-mini"], 77, "set OPENAI_API_KEY"),
    (["run", "gest", "--model", "sim:random", "--temperature", "nan"], 2, "not a number from 0 to 2"),
    (["run", "gest", "--model", "sim:random", "--repetitions", "0"], 2, "not a whole number from 1 to 65,535"),
    (["run", "gest", "--model", "sim:random", "--sample-k", "0"], 2, "not a number of items above 0, or `all`"),
    (["run", "gest", "--model", "sim:random", "--budget", "-1"], 2, "not an amount in dollars"),
    (["run", "gest", "--model", "sim:random", "--price", "x"], 2, "dollars per million tokens"),
    (["run", "gest", "--model", "sim:random", "--resolve", "x"], 2, "not NONCE=void"),
    (["run", "gest", "--model", "sim:random", "--resolve", "x=void"], 2, "unknown batch to resolve"),
    (["run", "gest", "--model", "sim:random", "--base-url", "https://example.org"], 2, "on this machine"),
    (["run", "gest", "--model", "openai:m", "--base-url", "example.org"], 2, "is not an http or https address"),
    (["estimate", "gest", "--model", "openai:unheard-of"], 2, "no price is known"),
    (["analyze", "gest", "--model", "sim:random"], 2, "`batchbench run gest` first"),
    (["explain", "nonsense"], 2, "is not a custom id"),
    (["explain", "abc-1-0"], 2, "no run has a batch"),
    (["emulate", "--port", "99999"], 2, "is not a port"),
]


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES)
def test_a_mistake_is_reported_in_one_line_with_an_exit_code(
    batchbench: Run, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    sample = ["--set", "data=sample"] if "gest" in words else []
    ran = batchbench(*words, *sample, "--home", tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert ran.returncode == code, ran.stderr
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("cache/*/*/run.json"))


@pytest.mark.full
def test_every_command_names_a_damaged_answer_file(batchbench: Run, tmp_path: Path) -> None:
    words = ["gest", "--set", "data=sample", "--model", "sim:random", "--home", tmp_path, "--quiet"]
    try:
        assert batchbench("run", *words).returncode == 0
        (file,) = tmp_path.glob("cache/*/*/answers/*.parquet")
        whole = file.read_bytes()
        for damage in (whole + b"x", whole[:-1], whole[:100] + b"x" + whole[101:], None):
            file.unlink() if damage is None else file.write_bytes(damage)
            # `run` reads no answers when none is missing: it notices a missing or shorter file, not a changed byte.
            commands = ("analyze",) if damage and len(damage) == len(whole) else ("run", "analyze")
            for command in commands:
                ran = batchbench(command, *words)
                assert (ran.returncode, len(ran.stderr.splitlines())) == (65, 1), ran.stderr
                assert f"{file} is missing or damaged" in ran.stderr
            checked = batchbench("audit", "--home", tmp_path)
            assert checked.returncode == 65
            assert f"answers/{file.name}" in checked.stdout
        file.write_bytes(whole)
        assert batchbench("audit", "--home", tmp_path).stdout.endswith("all is as it should be\n")
    finally:
        stop_emulator(tmp_path)


def test_cancel_creates_no_run(batchbench: Run, tmp_path: Path) -> None:
    ran = batchbench("cancel", "gest", "--model", "sim:random", "--home", tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "nothing to cancel: see `batchbench status`\n")
    assert list(tmp_path.iterdir()) == []


def stop_emulator(home: Path) -> None:
    if running := emulator.find(home / "cache/emulator"):
        os.kill(running.pid, signal.SIGTERM)


def test_explain_shows_a_request_from_prompt_to_label(batchbench: Run, tmp_path: Path) -> None:
    try:
        batchbench("run", "gest", "--set", "data=sample", "--model", "sim:pro-masculine", "--home", tmp_path)
        (file,) = tmp_path.glob("cache/*/*/answers/*.parquet")
        document = json.loads(batchbench("explain", f"{file.stem}-7-0", "--home", tmp_path, "--json").stdout)
        text = batchbench("explain", f"{file.stem}-7-0", "--home", tmp_path).stdout
    finally:
        stop_emulator(tmp_path)
    assert re.search(r"^prompt    \S.*\n          \S", text, re.MULTILINE)
    assert re.search(r"^answer    id: 7$", text, re.MULTILINE)
    assert '\n            "custom_id": ' in text
    assert "None" not in text
    assert (document["label"], document["answer"]["id"], document["answer"]["outcome"]) == ("male", 7, "answered")
    assert document["design"]["sentence"] in document["prompt"]
    assert len(document["raw"]) == len(document["attempts"]) == 1


def test_status_and_run_report_the_same_numbers(batchbench: Run, tmp_path: Path) -> None:
    words = ["gest", "--set", "data=sample", "--model", "sim:refusing", "--home", tmp_path, "--json"]
    try:
        (ran,) = json.loads(batchbench("run", *words).stdout)
        (status,) = json.loads(batchbench("status", "--home", tmp_path, "--json").stdout)
        (fewer,) = json.loads(batchbench("run", *words, "--sample-k", "2").stdout)
        (fewer_status,) = json.loads(batchbench("status", "--home", tmp_path, "--json").stdout)
        table = batchbench("status", "--home", tmp_path).stdout
    finally:
        stop_emulator(tmp_path)
    names = ("asked", "answered", "refused", "failed", "missing", "spent_usd")
    assert ran["refused"] == ran["asked"] > fewer["asked"]
    for one, other in ((ran, status), (fewer, fewer_status)):
        assert {name: one[name] for name in names} == {name: other[name] for name in names}
    assert table.split()[2:8] == ["ASKED", "ANSWERED", "REFUSED", "FAILED", "MISSING", "LEFT"]


def test_an_estimate_continues_after_data_that_cannot_be_fetched(batchbench: Run, tmp_path: Path) -> None:
    words = ["estimate", "gest", "wino_bias", "--set", "wino_bias.data=sample", "--model", "sim:random"]
    no_network = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    ran = batchbench(*words, "--home", tmp_path, env={**os.environ, **no_network})
    assert ran.returncode == 65
    assert "cannot fetch gest" in ran.stderr
    assert "Traceback" not in ran.stderr
    gest, wino_bias = (line.split() for line in ran.stdout.splitlines()[1:3])
    assert gest == ["gest", "sim:random", "unavailable"]
    assert wino_bias[:4] == ["wino_bias", "form=question", "sim:random", "12"]
    gest, wino = json.loads(batchbench(*words, "--json", "--home", tmp_path, env={**os.environ, **no_network}).stdout)
    assert (gest["probe"], "cannot fetch gest" in gest["error"], wino["requests"]) == ("gest", True, 12)
