"""Prices and budgets that change between two starts."""

import json
import os
import pty
import re
import subprocess

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, PROBE, Scene
from tests.emulator.driver import TOKEN
from tests.faults.rows import row
from tests.faults.test_people import rewritten

K = 24
CHEAPER, DEARER = "0.0075,0.03", "0.15,0.60"


def micro(usd: float) -> int:
    return round(usd * 1_000_000)


def without_rates(scene: Scene) -> None:
    """Rewrite the journal as a version wrote it that did not note rates with intents."""

    def older(event: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in event.items() if event["event"] != "intent" or name != "rates"}

    rewritten(scene, older)


@row(121)
@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("older", [False, True])
def test_a_batch_is_booked_at_the_price_at_which_it_was_bought(stage: Stage, dialect: str, older: bool) -> None:
    scene = stage(dialect, "--delay", "processing=1")
    assert scene.run("--detach", k=K, size=K).code == 6
    if older:
        without_rates(scene)
    scene.price = CHEAPER
    done = scene.run(k=K, size=K)
    assert (done.code, micro(done.report["spent_usd"])) == (0, scene.cost()), done
    assert scene.program("audit").code == 0
    scene.audit(status=True)
    answered = scene.journal("intent")[0]["nonce"]
    explained = json.loads(scene.program("explain", f"{answered}-0-0", "--json").stdout)
    first = next(e for e in scene.emulator.events("billed") if f"{answered}-0-0" in e["ids"])
    cost = first["costs"][first["ids"].index(f"{answered}-0-0")]
    assert explained["cost"] == f"{cost} micro-dollars"


@row(121)
@pytest.mark.parametrize("older", [False, True])
def test_a_higher_price_leaves_earlier_costs_as_they_were(stage: Stage, older: bool) -> None:
    scene = stage("openai")
    assert scene.run(k=12, size=12).code == 0
    if older:
        without_rates(scene)
    scene.emulator.stop()
    scene.emulator.words = ["--port", str(scene.emulator.port), "--price", DEARER]
    scene.emulator.start()
    scene.price = DEARER
    done = scene.run(k=K, size=12)
    assert (done.code, micro(done.report["spent_usd"])) == (0, scene.cost()), done
    found = scene.program("audit", "--json")
    assert (found.code, json.loads(found.stdout)[0]["spent"]) == (0, scene.cost()), found
    scene.audit(status=True)
    assert [event.get("rates", {}).get("input") for event in scene.journal("intent")][1] == 150_000


@row(121)
def test_late_answers_are_booked_at_the_price_of_their_batch(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "cut-line", "first": 5}])
    assert scene.run(k=K, size=K).code == 6
    scene.price = CHEAPER
    done = scene.run("--rebuy-missing", k=K, size=K)
    assert (done.code, len(scene.journal("late"))) == (0, 1), done
    assert micro(done.report["spent_usd"]) == scene.cost()
    assert scene.program("audit").code == 0
    scene.audit(status=True)


@pytest.mark.full
@row(121)
@pytest.mark.parametrize("dialect", BOTH)
def test_a_void_batch_that_is_found_is_booked_at_its_own_price(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "poll-404", "on": "poll"}, {"do": "list-lag", "seconds": 3600}])
    assert scene.run(k=K, size=K).code == 4
    (intent,) = scene.journal("intent")
    resolved = ("--resolve", f"{intent['nonce']}=void")
    assert scene.run("--budget", str(intent["reserve"] / 1e6), *resolved, k=K, size=K).code == 3
    scene.end_faults()
    scene.price = CHEAPER
    done = scene.run("--budget", "none", k=K, size=K)
    assert (done.code, micro(done.report["spent_usd"])) == (0, scene.cost()), done
    assert scene.journal("intent")[1]["rates"] == intent["rates"]
    assert len(scene.accepted()) == 1
    scene.audit(status=True)


@pytest.mark.full
@row(122)
def test_a_budget_stays_until_it_is_changed(stage: Stage) -> None:
    scene = stage("openai")
    small = ("--max-tokens", "5")
    assert scene.run("--budget", "0.0004", *small, k=60, size=10).code == 3
    billed, limit = scene.billed(), "budget of $0.000400 from an earlier start; --budget none lifts it\n"
    for _ in range(2):  # the start without a budget is the last start then
        again = scene.run(*small, k=60, size=10)
        assert (again.code, again.stderr.count(limit)) == (3, 1), again
        assert scene.status()["budget_usd"] == 0.0004
    assert scene.billed() == billed < 60
    scene.audit(status=True, budget=400)
    done = scene.run("--budget", "none", *small, k=60, size=10)
    assert (done.code, scene.billed(), limit in done.stderr) == (0, 60, False), done
    assert scene.status()["budget_usd"] is None
    later = scene.run(*small, k=70, size=10)
    assert (later.code, scene.billed(), "from an earlier start" in later.stderr) == (0, 70, False), later
    scene.audit(status=True)


@pytest.mark.full
@row(123)
def test_a_budget_for_a_server_without_a_price_is_refused(stage: Stage) -> None:
    scene = stage("chat")
    words = (*PROBE, "--model", f"chat:echo@{scene.emulator.openai_url}", "--sample-k", "8", "--anyway")
    for command in ("run", "export"):
        refused = scene.program(command, *words, "--budget", "0.000001")
        assert (refused.code, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1), refused
        assert "pass --price IN,OUT in dollars per million tokens, or --price 0,0 if it costs nothing" in refused.stderr
    assert (scene.billed(), list(scene.home.glob("cache/*/*/journal"))) == (0, [])
    free = scene.program("run", *words)
    assert (free.code, scene.billed()) == (0, 8), free
    assert (", not priced (" in free.stdout, "$" in free.stdout) == (True, False), free
    assert (scene.status()["spent_usd"], scene.status()["priced"]) == (0, False)
    for command in ("status", "audit", "estimate"):
        text = scene.program(command, *(words[:-1] if command == "estimate" else ())).stdout
        assert ("not priced" in text, "$" in text) == (True, False), text
    paid = scene.program("run", *words, "--price", "0,0", "--repetitions", "2", "--budget", "1")
    assert (paid.code, "$0.000000 spent" in paid.stdout) == (0, True), paid


@row(123)
def test_a_model_that_the_price_table_knows_is_not_free_on_this_machine(stage: Stage) -> None:
    scene = stage("chat")
    words = (*PROBE, "--model", f"chat:gpt-4.1-mini@{scene.emulator.openai_url}", "--sample-k", "8", "--json")
    (found,) = json.loads(scene.program("estimate", *words).stdout)
    (known,) = json.loads(scene.program("estimate", *PROBE, "--model", "openai:gpt-4.1-mini", *words[-3:]).stdout)
    assert (found["priced"], found["batch_usd"]) == (True, known["sync_usd"])  # a chat server is asked by single calls


EXPENSIVE = "1000,4000"


@row(125)
def test_a_run_without_a_budget_asks_before_it_spends(stage: Stage) -> None:
    scene = stage("openai", "--price", EXPENSIVE, "--delay", "processing=1")
    scene.price = EXPENSIVE
    refused = scene.run(k=K, size=K)
    assert (refused.code, len(refused.stderr.splitlines())) == (2, 1), refused
    cost = r"about \$\d+\.\d\d, at most \$\d+\.\d\d"
    assert re.search(f"{cost}: allow it with --yes, or limit it with --budget", refused.stderr)
    assert not list(scene.home.glob("cache/*/*/run.json"))
    assert scene.run("--yes", "--detach", k=K, size=K).code == 6
    collected = scene.run(k=K, size=K)  # nothing is left to ask
    assert (collected.code, scene.billed()) == (0, K), collected
    assert scene.run(k=2 * K, size=K).code == 2
    done = scene.run("--budget", "100000", k=2 * K, size=K)
    assert (done.code, scene.billed()) == (0, 2 * K), done
    scene.audit(status=True)


@row(125)
@pytest.mark.parametrize(("reply", "code"), [("n", 130), ("y", 0)])
def test_a_terminal_shows_the_estimate_and_asks(stage: Stage, reply: str, code: int) -> None:
    scene = stage("openai", "--price", EXPENSIVE)
    scene.price = EXPENSIVE
    terminal, theirs = pty.openpty()
    client = subprocess.Popen(
        scene.line("--quiet", k=K, size=K),
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENAI_API_KEY": TOKEN},
    )
    os.write(terminal, f"{reply}\n".encode())
    client.communicate(timeout=60)
    seen = os.read(terminal, 100_000).decode()
    os.close(theirs)
    os.close(terminal)
    assert (client.returncode, scene.billed()) == (code, K if reply == "y" else 0), seen
    assert "WORST CASE" in seen
    assert re.search(r"This costs about \$\d+\.\d\d, at most \$\d+\.\d\d\. Go on\? \[y/N\]", seen)


@row(125)
def test_cheap_emulated_and_unpriced_runs_do_not_ask(stage: Stage) -> None:
    scene = stage("chat")
    many = (*PROBE, "--sample-k", "8", "--anyway", "--pilot", "none")
    assert scene.program("run", *many, "--model", f"chat:echo@{scene.emulator.openai_url}").code == 0
    assert scene.program("run", *many, "--model", "sim:random", "--price", EXPENSIVE).code == 0
