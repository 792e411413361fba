"""One command from nothing to a report: whatever happens on the way, it ends the same, and is paid for once."""

import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.dispatch.scene import kill, wait_until
from tests.emulator.driver import TOKEN, Emulator
from tests.sweep.scene import SMALL, Home

Make = Callable[..., Home]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Homes with a sweep file in them."""
    homes: list[Home] = []

    def made(name: str = "home", text: str = SMALL) -> Home:
        homes.append(Home(tmp_path / name, text))
        return homes[-1]

    yield made
    for home in homes:
        home.close()


def reached(home: Home, until: int, process: "subprocess.Popen[str]") -> bool:
    return home.events() >= until or process.poll() is not None


def killed_again_and_again(home: Home, kills: int, seed: int) -> None:
    """Kill a sweep whenever its journals have grown by a random number of events."""
    chance = random.Random(seed)
    for _ in range(kills):
        until = home.events() + chance.randint(1, 14)
        process = home.start()
        wait_until(partial(reached, home, until, process), 60)
        if process.poll() is not None:  # so near the end that nothing was left to interrupt
            process.communicate()
            return
        kill(process)


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.full)])
def test_a_sweep_killed_at_random_ends_like_one_that_was_not(make: Make, kills: int) -> None:
    calm, killed = make("calm"), make("killed")
    whole = calm.sweep()
    assert whole.code == 0, whole
    killed_again_and_again(killed, kills, seed=kills)
    done = killed.sweep()
    assert done.code == 0, done
    results = killed.results()
    assert len(results) == 18  # three files of each of six runs
    assert results == calm.results()
    assert (killed.cost(), killed.billed()) == (calm.cost(), calm.billed())
    assert killed.spent() == killed.cost()
    assert json.loads(done.stdout)["spent_usd"] == json.loads(whole.stdout)["spent_usd"]
    assert all(not audit["findings"] for audit in killed.command("audit"))
    # Once more: nothing is asked, and nothing changes.
    before, lines = killed.events(), len(killed.ledger("accepted", "billed"))
    assert killed.sweep().code == 0
    assert (killed.events(), killed.results(), len(killed.ledger("accepted", "billed"))) == (before, results, lines)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.full)])
def test_one_budget_holds_over_all_runs_through_every_kill(make: Make, kills: int) -> None:
    home = make(text=f"budget = 0.004\n{SMALL}")
    chance = random.Random(kills)
    for _ in range(kills):
        until = home.events() + chance.randint(1, 14)
        process = home.start()
        wait_until(partial(reached, home, until, process), 60)
        process.kill()
        process.communicate()
        assert home.owed() <= 4_000
    stopped = home.sweep()
    assert stopped.code == 3, stopped
    assert "raise --budget and run the same command" in stopped.stderr
    assert 0 < home.cost() <= home.owed() <= 4_000
    told = json.loads(stopped.stdout)
    assert told["budget_usd"] == 0.004
    assert round(told["spent_usd"] * 1e6) == home.cost()
    assert "UNFINISHED" in Path(told["report"]).read_text()
    # Everybody got a share, nobody took it all; of one whose create was lost in a kill, the share may still be held.
    assert all(run["answered"] or run["reserved_usd"] for run in told["runs"]), told["runs"]
    paid = home.billed()
    done = home.sweep("--budget", "5")
    assert done.code == 0, done
    assert home.billed() == sum(run["asked"] for run in json.loads(done.stdout)["runs"]) > paid


def test_shares_decide_who_gets_how_much(make: Make) -> None:
    text = """\
budget = 0.01
probes = [{ name = "hiring_an", data = "sample", sample_k = "all" }]
models = [{ name = "sim:random", share = 3, batch_size = 5 }, { name = "sim:unbiased", batch_size = 5 }]
"""
    home = make(text=text)
    stopped = home.sweep()
    assert stopped.code == 3, stopped
    first, second = (run["answered"] for run in json.loads(stopped.stdout)["runs"])
    assert 2 < first / second < 4


# -- submit and leave --------------------------------------------------------------------------------------


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    """A provider that takes an hour for every batch."""
    emulator = Emulator(tmp_path / "provider", "--delay", "processing=3600")
    yield emulator
    emulator.stop()


def remote(provider: Emulator) -> str:
    rows = "".join(
        f"""
[[models]]
name = "{dialect}:{persona}"
base_url = "{provider.openai_url if dialect == "openai" else provider.anthropic_url}"
price = "0.075,0.30"
"""
        for dialect, persona in (("openai", "random"), ("anthropic", "stereotyping"))
    )
    return f'probes = [{{ name = "gest", data = "sample" }}, {{ name = "isear", data = "sample" }}]\n{rows}'


KEYS = {"OPENAI_API_KEY": TOKEN, "ANTHROPIC_API_KEY": TOKEN}


def test_what_was_submitted_is_collected_days_later_from_a_copy_of_the_folder(
    make: Make, provider: Emulator, tmp_path: Path
) -> None:
    home = make(text=remote(provider))
    left = home.sweep("--yes", "--detach", timeout=60, **KEYS)
    assert left.code == 6, left
    told = json.loads(left.stdout)
    assert told["report"] is None
    assert [run["answered"] for run in told["runs"]] == [0] * 4
    assert len(provider.events("accepted")) == 4
    shutil.copytree(home.folder, tmp_path / "elsewhere")
    shutil.rmtree(home.folder)
    provider.call("POST", "/__emu/clock", {"advance": 7200})
    there = Home(tmp_path / "elsewhere", remote(provider))
    done = there.sweep("--yes", timeout=60, **KEYS)
    assert done.code == 0, done
    told = json.loads(done.stdout)
    assert [run["missing"] for run in told["runs"]] == [0] * 4
    assert Path(told["report"]).is_file()
    assert len(provider.events("accepted")) == 4
    assert there.spent() == sum(event["cost"] for event in provider.events("billed"))


def test_detached_again_it_submits_nothing_twice(make: Make, provider: Emulator) -> None:
    home = make(text=remote(provider))
    for _ in range(3):
        assert home.sweep("--yes", "--detach", timeout=60, **KEYS).code == 6
    assert len(provider.events("accepted")) == 4


def test_what_this_process_carries_out_itself_is_not_left_to_anybody(make: Make, provider: Emulator) -> None:
    text = f"""\
probes = [{{ name = "gest", data = "sample" }}, {{ name = "isear", data = "sample" }}]
sample_k = 30
models = ["chat:random@{provider.openai_url}"]
"""
    home = make(text=text)
    done = home.sweep("--detach", timeout=60, CHAT_API_KEY=TOKEN)
    assert done.code == 0, done
    told = json.loads(done.stdout)
    assert [run["answered"] for run in told["runs"]] == [run["asked"] for run in told["runs"]]
    assert sum(event["n"] for event in provider.events("billed")) == sum(run["asked"] for run in told["runs"])


def test_what_costs_money_needs_a_yes(make: Make, provider: Emulator) -> None:
    home = make(text=remote(provider))
    asked = home.sweep(timeout=60, **KEYS)
    assert asked.code == 2, asked
    assert "allow it with --yes" in asked.stderr
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "batchbench", "sweep", str(home.file), "--home", str(home.folder)]
    client = subprocess.Popen(
        command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, env={**os.environ, **KEYS}, text=True
    )
    os.write(terminal, b"n\n")
    assert client.communicate(timeout=60)[0] == ""
    assert client.returncode == 130
    seen = os.read(terminal, 100_000).decode()
    os.close(theirs)
    os.close(terminal)
    assert re.search(r"This may cost up to \$\d+\.\d\d\. Go on\? \[y/N\]", seen)
    assert not provider.events("accepted")
    assert not list(home.folder.glob("cache/*/*/run.json"))


# -- without a file ----------------------------------------------------------------------------------------


def test_without_network_it_runs_on_samples_and_says_so(batchbench: Run, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    cut_off = dict.fromkeys(("http_proxy", "https_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), nowhere)
    home = Home(tmp_path)
    try:
        words = ("sweep", "--home", tmp_path, "--json")
        ran = batchbench(*words, env={"PATH": "/usr/bin:/bin", "PIP_RETRIES": "0", **cut_off})
    finally:
        home.close()
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert {run["probe"] for run in told["runs"]} >= {"hiring_an", "gest", "isear", "inventories", "wino_bias"}
    assert all(run["sample_data"] and run["emulated"] for run in told["runs"])
    page = Path(told["report"]).read_text()
    assert "SAMPLE DATA" in page
    assert "EMULATED" in page
    assert "our own small sample takes its place" in ran.stderr
