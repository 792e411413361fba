"""Starting, finding and stopping an emulator, and its command line."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import batchbench.emulator
from batchbench.cli.commands import emulate
from batchbench.emulator.faults.rules import parse_rules


def ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()


def wait_for_end(pid: int) -> None:
    for _ in range(500):
        if ended(pid):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still running")


def test_a_second_client_finds_the_running_emulator(tmp_path: Path) -> None:
    first = batchbench.emulator.start(tmp_path, idle_exit=60)
    try:
        assert batchbench.emulator.find(tmp_path) == first
        assert batchbench.emulator.start(tmp_path, idle_exit=60) == first
        assert (tmp_path / "endpoint.json").stat().st_mode & 0o077 == 0
        assert os.getsid(first.pid) == first.pid, "it has its own session"
    finally:
        os.kill(first.pid, signal.SIGTERM)
        wait_for_end(first.pid)
    assert batchbench.emulator.find(tmp_path) is None
    assert not (tmp_path / "endpoint.json").exists()


def test_clients_that_start_at_the_same_time_share_one_emulator(tmp_path: Path) -> None:
    found: list[batchbench.emulator.Running] = []
    threads = [
        threading.Thread(target=lambda: found.append(batchbench.emulator.start(tmp_path, idle_exit=60)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len(found) == 3
        assert len(set(found)) == 1
    finally:
        os.kill(found[0].pid, signal.SIGTERM)
        wait_for_end(found[0].pid)


def test_the_endpoint_of_a_killed_emulator_is_ignored(tmp_path: Path) -> None:
    first = batchbench.emulator.start(tmp_path, idle_exit=60)
    os.kill(first.pid, signal.SIGKILL)
    wait_for_end(first.pid)
    assert (tmp_path / "endpoint.json").exists()
    assert batchbench.emulator.find(tmp_path) is None
    second = batchbench.emulator.start(tmp_path, idle_exit=60)
    assert second.pid != first.pid
    os.kill(second.pid, signal.SIGTERM)
    wait_for_end(second.pid)


def test_it_exits_after_the_idle_time(tmp_path: Path) -> None:
    running = batchbench.emulator.start(tmp_path, idle_exit=0.3)
    wait_for_end(running.pid)
    assert not (tmp_path / "endpoint.json").exists()


def test_it_survives_a_killed_client(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, batchbench.emulator as e\n"
        f"print(e.start(pathlib.Path({str(tmp_path)!r}), idle_exit=60).pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    client = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert client.returncode == -signal.SIGKILL
    running = batchbench.emulator.find(tmp_path)
    assert running
    assert running.pid == int(client.stdout)
    os.kill(running.pid, signal.SIGTERM)
    wait_for_end(running.pid)


def test_the_ready_line_is_one_json_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batchbench", "emulate", "--json", "--home", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        ready = json.loads(process.stdout.readline())
        assert set(ready) == {"openai", "anthropic", "token", "ledger"}
        assert ready["openai"].startswith("http://127.0.0.1:")
        assert ready["openai"].endswith("/openai/v1")
        assert ready["anthropic"].endswith("/anthropic")
        assert ready["ledger"] == str(tmp_path / "cache" / "emulator" / "ledger.jsonl")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest, errors) == (0, "", "")


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "batchbench", "emulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--price", "cheap"), "price 'cheap'"),
        (("--price", "0.1"), "IN,OUT"),
        (("--price=-1,1",), "IN,OUT"),
        (("--limit", "request=5"), "did you mean 'requests'"),
        (("--limit", "requests"), "requests=NUMBER"),
        (("--limit", "requests=none"), "--limit"),
        (("--delay", "processing=soon"), "processing=NUMBER"),
        (("--port", "99999"), "--port"),
        (("--idle-exit", "0"), "--idle-exit"),
        (("--faults", "/no/such/file"), "cannot read the fault rules"),
        (("--state", "/dev/null/x"), "state folder"),
    ],
)
def test_a_wrong_option_is_explained(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = run("--state", str(tmp_path / "s"), *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "s").exists()


def test_a_bad_rule_file_exits_with_2_and_names_the_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules.jsonl"
    rules.write_text('{"do": "500-before"}\n{"do": "explode"}\n')
    ran = run("--state", str(tmp_path / "s"), "--faults", str(rules))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{rules} line 2: unknown fault 'explode'" in ran.stderr


def test_a_ledger_in_a_missing_folder_is_explained(tmp_path: Path) -> None:
    ran = run("--state", str(tmp_path / "s"), "--ledger", str(tmp_path / "none" / "ledger.jsonl"))
    assert ran.returncode == 2
    assert "the ledger cannot be opened" in ran.stderr


def test_a_taken_port_is_explained(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = run("--state", str(tmp_path / "s"), "--port", str(taken.getsockname()[1]))
    assert ran.returncode == 2
    assert "choose another --port" in ran.stderr


def test_list_faults_prints_the_catalogue() -> None:
    ran = run("--list-faults")
    assert ran.returncode == 0
    assert "reset-after" in ran.stdout


def test_help_explains_personas_and_faults_with_an_example_each() -> None:
    parser = argparse.ArgumentParser()
    emulate.add(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["emulate", "--help"])
    args = parser.parse_args(["emulate", "--port", "1"])
    assert args.run is emulate.run
    text = emulate.DESCRIPTION
    assert '{"do": "reset-after", "on": "create", "p": 0.33}' in text
    assert "chat/completions" in text
    example = "\n".join(line for line in text.split("\n") if line.strip().startswith('{"do": "'))
    assert len(parse_rules(example, "help")) == 4
