"""Output: one JSON document on stdout; on stderr a live screen on a terminal, lines elsewhere."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchbench.cli.terminal import Screen, Terminal, time_left
from batchbench.dispatch import Progress
from tests.conftest import Run
from tests.sweep.scene import Home
from tests.terminal import shown

GEST = ("gest", "--set", "data=sample", "--sample-k", "20", "--model", "sim:random")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home in which every stage has been executed."""
    text = 'sample_k = 20\nmodels = ["sim:random"]\nprobes = [{ name = "gest", data = "sample" }]\n'
    home = Home(tmp_path_factory.mktemp("swept"), text)
    assert home.sweep().code == 0
    yield home
    home.close()


COMMANDS = [
    ["sweep", "sweep.toml"],
    ["sweep", "--example"],
    ["compile", *GEST[:3]],
    ["estimate", *GEST],
    ["run", *GEST],
    ["run", *GEST, "--model", "sim:unbiased", "--model", "sim:openai/random"],
    ["cancel", "gest", "--model", "sim:random"],
    ["check", "gest", "--model", "sim:random"],
    ["salvage", *GEST[:3], *GEST[5:], "--offline"],
    ["status"],
    ["audit"],
    ["explain", "CUSTOM_ID"],
    ["answers", *GEST[:3], *GEST[5:], "--label", "male"],
    ["analyze", *GEST[:3], *GEST[5:]],
    ["report"],
    ["export", *GEST[:5], "--model", "sim:silent", "-o", "out"],
    ["import", "nothing.jsonl"],
    ["probes"],
    ["probes", "gest"],
    ["data"],
    ["data", "verify"],
    ["prices"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_json_is_one_document_alone_on_stdout(batchbench: Run, swept: Home, words: list[str]) -> None:
    answers = sorted(swept.folder.glob("cache/*/*/answers/*.parquet"))
    words = [f"{answers[0].stem}-7-0" if word == "CUSTOM_ID" else word for word in words]
    ran = batchbench(*words, "--json", "--home", swept.folder, cwd=swept.folder)
    document = json.loads(ran.stdout)
    assert document is not None
    assert ("error" in document) == (ran.returncode != 0)
    assert "{" not in ran.stderr


def test_the_list_above_has_every_command(batchbench: Run) -> None:
    commands = re.search(r"\n  COMMAND\n(.*)", batchbench("--help").stdout, re.DOTALL)
    assert commands
    found = set(re.findall(r"^    (\w+)", commands[1], re.MULTILINE))
    assert found == {words[0] for words in COMMANDS} | {"emulate", "read"}  # these have tests of their own


def test_quiet_prints_nothing(batchbench: Run, tmp_path: Path, swept: Home) -> None:
    ran = batchbench("run", *GEST, "--quiet", "--home", swept.folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def progress(answered: int, *, done: int = 0, rows: int = 100) -> Progress:
    return Progress(
        rows=rows, done=answered, done_at_provider=done, in_flight=0, missing=0, batches={}, spent=0, reserved=0
    )


def test_a_line_is_printed_within_a_second_and_no_line_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("batchbench.cli.terminal.time.monotonic", lambda: now)
    with Screen(Terminal(quiet=False), ["gest sim:random", "isear sim:random"], 5_000_000) as screen:
        for second in range(200):
            now = second / 10
            screen.show(0, progress(min(100, 10 * (second // 60))))
            screen.tick()
    lines = capsys.readouterr().err.splitlines()
    assert 1 < len(lines) <= 5
    assert len(set(lines)) == len(lines)
    assert all("of $5.00" in line for line in lines)


def test_the_time_left_counts_requests_that_the_provider_has_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("batchbench.cli.terminal.time.monotonic", lambda: now)
    with Screen(Terminal(quiet=False), ["gest sim:random"], None) as screen:
        screen.show(0, progress(0))
        now = 60.0
        screen.show(0, progress(0, done=25))
        screen.tick()
    assert "about 3 min 0 s left" in capsys.readouterr().err
    assert (time_left(0, 10, 5.0), time_left(10, 0, 5.0), time_left(1, 7200, 1.0)) == ("", "", "; about 2 h 0 min left")


def test_a_terminal_shows_one_screen_for_all_runs_and_each_result_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batchbench", "run", "gest", "isear", "--set", "data=sample"]
    command += ["--model", "sim:random", "--model", "sim:unbiased", "--home", str(tmp_path)]
    try:
        code, out, seen = shown(command, os.environ)
    finally:
        Home(tmp_path).close()
    assert code == 0, seen
    names = [f"{probe} sim:{model}" for probe in ("gest", "isear") for model in ("random", "unbiased")]
    for name in names:
        assert out.decode().count(f"{name}: ") == 1
        assert name.encode() in seen
    assert b" missing" not in seen.rpartition(b"\x1b[2K")[2]  # the screen is erased at the end
