"""A sweep: after any interruption it ends with the same results, and everything is paid for once."""

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
    """Makes homes with a sweep file."""
    homes: list[Home] = []

    def made(name: str = "home", text: str = SMALL) -> Home:
        homes.append(Home(tmp_path / name, text))
        return homes[-1]

    yield made
    for home in homes:
        home.close()


def reached(home: Home, until: int, process: "subprocess.Popen[str]") -> bool:
    return home.events() >= until or process.poll() is not None


def kill_repeatedly(home: Home, kills: int, seed: int) -> None:
    """Kill a sweep each time its journals have grown by a random number of events."""
    chance = random.Random(seed)
    for _ in range(kills):
        until = home.events() + chance.randint(1, 14)
        process = home.start()
        wait_until(partial(reached, home, until, process), 60)
        if process.poll() is not None:  # it ended before the kill
            process.communicate()
            return
        kill(process)


@pytest.mark.full
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.full)])
def test_a_sweep_killed_at_random_ends_like_an_uninterrupted_one(make: Make, kills: int) -> None:
    uninterrupted, killed = make("uninterrupted"), make("killed")
    whole = uninterrupted.sweep()
    assert whole.code == 0, whole
    kill_repeatedly(killed, kills, seed=kills)
    done = killed.sweep()
    assert done.code == 0, done
    results = killed.results()
    assert len(results) == 18  # three files of each of six runs
    assert results == uninterrupted.results()
    assert (killed.cost(), killed.billed()) == (uninterrupted.cost(), uninterrupted.billed())
    assert killed.spent() == killed.cost()
    assert json.loads(done.stdout)["spent_usd"] == json.loads(whole.stdout)["spent_usd"]
    assert all(not audit["findings"] for audit in killed.command("audit"))
    # The same command again asks nothing and changes nothing.
    before, lines = killed.events(), len(killed.ledger("accepted", "billed"))
    assert killed.sweep().code == 0
    assert (killed.events(), killed.results(), len(killed.ledger("accepted", "billed"))) == (before, results, lines)


@pytest.mark.full
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.full)])
def test_all_runs_together_stay_within_the_budget_through_every_kill(make: Make, kills: int) -> None:
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
    assert "raise --budget to about $" in stopped.stderr
    assert 0 < home.cost() <= home.owed() <= 4_000
    document = json.loads(stopped.stdout)
    assert document["budget_usd"] == 0.004
    assert round(document["spent_usd"] * 1e6) == home.cost()
    assert "UNFINISHED" in Path(document["report"]).read_text()
    # Every run got a share. A create whose reply was lost in a kill may still hold its reservation.
    assert all(run["answered"] or run["reserved_usd"] for run in document["runs"]), document["runs"]
    paid = home.billed()
    done = home.sweep("--budget", "5")
    assert done.code == 0, done
    assert home.billed() == sum(run["asked"] for run in json.loads(done.stdout)["runs"]) > paid


SIX = """\
sample_k = "all"
repetitions = 7
probes = [{ name = "gest", data = "sample", num_reorderings = 1 }, { name = "isear", data = "sample" }]
models = ["sim:random", "sim:stereotyping", "sim:unbiased"]
"""
SIX_COST = 21_718  # micro-dollars


@pytest.mark.full
@pytest.mark.parametrize("mode", ["absolute", "learnt"])
@pytest.mark.parametrize("part", [10, 25, 50, 100, 200])
def test_six_runs_spend_their_budget_to_its_end(make: Make, part: int, mode: str) -> None:
    """A run that has used up its share goes on when another run needs less than was reserved for it."""
    budget = SIX_COST * part // 100
    home = make(text=f"budget = {budget / 1e6:.6f}\n{SIX}")
    done = home.sweep("--budget-mode", mode)
    assert done.code == (0 if part == 200 else 3), done
    goal, cost = min(budget, SIX_COST), home.cost()
    assert 0.95 * goal <= cost <= budget
    spent = [run["spent_usd"] for run in json.loads(done.stdout)["runs"]]
    assert max(spent) < 1.3 * min(spent)  # equal shares, and the rest to whichever run can use it
    home.sweep("--budget-mode", mode)
    assert home.cost() == cost
    assert all(not audit["findings"] for audit in home.command("audit"))


@pytest.mark.full
def test_the_budget_of_a_sweep_stays_until_it_is_changed(make: Make) -> None:
    home = make(text=f"budget = 0.0005\n{SMALL}")
    assert home.sweep().code == 3
    home.file.write_text(SMALL)
    again = home.sweep()
    assert (again.code, json.loads(again.stdout)["budget_usd"]) == (3, 0.0005), again
    assert again.stderr.count("budget of $0.000500 from an earlier start; --budget none lifts it\n") == 1
    home.file.write_text(f'budget = "none"\n{SMALL}')
    done = home.sweep()
    assert (done.code, json.loads(done.stdout)["budget_usd"]) == (0, None), done


@pytest.mark.full
def test_shares_divide_the_budget(make: Make) -> None:
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


# -- detach ----------------------------------------------------------------------------------------------


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


def test_a_copy_of_the_folder_collects_submitted_batches_later(make: Make, provider: Emulator, tmp_path: Path) -> None:
    home = make(text=remote(provider))
    left = home.sweep("--yes", "--detach", timeout=60, **KEYS)
    assert left.code == 6, left
    document = json.loads(left.stdout)
    assert document["report"] is None
    assert [run["answered"] for run in document["runs"]] == [0] * 4
    assert len(provider.events("accepted")) == 4
    shutil.copytree(home.folder, tmp_path / "copy")
    shutil.rmtree(home.folder)
    provider.call("POST", "/__emu/clock", {"advance": 7200})
    copied = Home(tmp_path / "copy", remote(provider))
    done = copied.sweep("--yes", timeout=60, **KEYS)
    assert done.code == 0, done
    document = json.loads(done.stdout)
    assert [run["missing"] for run in document["runs"]] == [0] * 4
    assert Path(document["report"]).is_file()
    assert len(provider.events("accepted")) == 4
    assert copied.spent() == sum(event["cost"] for event in provider.events("billed"))


def test_a_repeated_detach_submits_nothing_twice(make: Make, provider: Emulator) -> None:
    home = make(text=remote(provider))
    for _ in range(3):
        assert home.sweep("--yes", "--detach", timeout=60, **KEYS).code == 6
    assert len(provider.events("accepted")) == 4


def test_detach_has_no_effect_on_batches_that_this_process_executes(make: Make, provider: Emulator) -> None:
    text = f"""\
probes = [{{ name = "gest", data = "sample" }}, {{ name = "isear", data = "sample" }}]
sample_k = 30
models = ["chat:random@{provider.openai_url}"]
"""
    home = make(text=text)
    done = home.sweep("--detach", timeout=60, CHAT_API_KEY=TOKEN)
    assert done.code == 0, done
    document = json.loads(done.stdout)
    assert [run["answered"] for run in document["runs"]] == [run["asked"] for run in document["runs"]]
    assert sum(event["n"] for event in provider.events("billed")) == sum(run["asked"] for run in document["runs"])


def test_a_sweep_that_costs_money_needs_a_yes(make: Make, provider: Emulator) -> None:
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


@pytest.mark.full
def test_a_sweep_without_network_uses_sample_data_and_says_so(batchbench: Run, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    cut_off = dict.fromkeys(("http_proxy", "https_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), nowhere)
    home = Home(tmp_path)
    try:
        words = ("sweep", "--home", tmp_path, "--json")
        ran = batchbench(*words, env={"PATH": "/usr/bin:/bin", "PIP_RETRIES": "0", **cut_off})
    finally:
        home.close()
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert {run["probe"] for run in document["runs"]} >= {"hiring_an", "gest", "isear", "inventories", "wino_bias"}
    assert all(run["sample_data"] and run["emulated"] for run in document["runs"])
    page = Path(document["report"]).read_text()
    assert "SAMPLE DATA" in page
    assert "EMULATED" in page
    assert "our own small sample takes its place" in ran.stderr
