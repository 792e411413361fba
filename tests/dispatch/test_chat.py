"""A server without batches: batchbench makes single calls, survives kills, and counts every call."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Json, Scene, ended, wait_until

KILLED = -9
ROWS = 40
SYNC_PRICE = "0.15,0.60"  # the emulator charges single calls twice what batches cost


@pytest.fixture
def chat(stage: Stage) -> Stage:
    def set_up(*words: str, rules: list[Json] | None = None) -> Scene:
        scene = stage("chat", *words, rules=rules)
        scene.price = SYNC_PRICE
        return scene

    return set_up


def spooled(scene: Scene, pattern: str) -> list[str]:
    """The lines of files in the spool folder."""
    return [line for file in scene.run_folder.glob(f"spool/{pattern}") for line in file.read_text().split("\n") if line]


def check_calls(scene: Scene, rows: int) -> int:
    """Check that no answer is lost and every call is counted; returns how many calls have an unknown outcome."""
    results = [json.loads(line) for line in spooled(scene, "*.results.jsonl")]
    assert len({line["custom_id"] for line in results}) == len(results)
    lost: int = sum(line["error"] is not None and line["error"]["code"] == "call_lost" for line in results)
    assert len(results) == rows + lost
    calls = spooled(scene, "*.calls")
    assert sum(note[0] == "+" for note in calls) == rows + lost + sum(note[0] == "-" for note in calls)
    assert rows <= scene.billed() <= rows + lost
    found = scene.audit(status=True)["invariants"]
    assert found["answers_belong_to_their_prompts"]["looked_at"].startswith(f"{rows} answers")
    assert scene.program("audit").code == 0
    return lost


def micro(usd: float) -> int:
    return round(usd * 1_000_000)


@pytest.mark.full
@pytest.mark.parametrize("place", ["spool-call:9", "spool-line:1", "spool-line:9"])
def test_a_client_killed_between_calls_keeps_every_answer_and_counts_every_call(chat: Stage, place: str) -> None:
    scene = chat()
    assert scene.run(k=ROWS, size=ROWS, crash=place).code == KILLED
    kept = len(spooled(scene, "*.results.jsonl"))
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"], done.report["missing"]) == (0, ROWS, 0), done
    lost = check_calls(scene, ROWS)
    assert (place.startswith("spool-call") and lost > 0) or kept == int(place.partition(":")[2])
    assert micro(done.report["spent_usd"]) >= scene.cost()
    before = scene.billed()
    assert scene.run(k=ROWS, size=ROWS).code == 0
    assert scene.billed() == before


@pytest.mark.parametrize("damage", [lambda line: bytes(len(line)), lambda line: line[:16] + b"\xff" + line[17:]])
def test_a_damaged_line_of_results_loses_only_its_own_call(chat: Stage, damage: Callable[[bytes], bytes]) -> None:
    scene = chat()
    assert scene.run(k=ROWS, size=ROWS, crash="spool-line:9").code == KILLED
    (path,) = scene.run_folder.glob("spool/*.results.jsonl")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], damage(lines[2]), *lines[3:]]))
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code in (0, 6), "Traceback" in done.stderr) == (True, False), done
    assert done.report["answered"] + done.report["missing"] == ROWS
    assert micro(done.report["spent_usd"]) >= scene.cost()


def test_without_a_kill_each_call_is_made_once_and_costs_what_is_charged(chat: Stage) -> None:
    scene = chat()
    done = scene.run(k=ROWS, size=ROWS // 2)
    assert (done.code, scene.billed(), check_calls(scene, ROWS)) == (0, ROWS, 0), done
    assert micro(done.report["spent_usd"]) == scene.cost()


@pytest.mark.full
def test_refused_and_lost_calls_are_made_again_and_counted(chat: Stage) -> None:
    refused: Json = {"do": "429-ms", "on": "chat", "p": 0.1}
    scene = chat(rules=[refused, {"do": "reset-after", "on": "chat", "first": 1, "p": 0.1}])
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"]) == (0, ROWS), done
    assert check_calls(scene, ROWS) == scene.billed() - ROWS > 0
    assert micro(done.report["spent_usd"]) >= scene.cost()


OTHERS = ("502-after", "408-after", "empty-after", "close-after")
REST = [pytest.param(fault, marks=pytest.mark.full) for fault in OTHERS]


@pytest.mark.full
@pytest.mark.parametrize("fault", ["500-after", "html-after", *REST])
def test_a_call_that_was_charged_but_not_answered_is_made_again_with_new_money(chat: Stage, fault: str) -> None:
    scene = chat(rules=[{"do": fault, "on": "chat", "first": 1, "p": 0.2}])
    budget = 700
    stopped = scene.run("--budget", f"{budget / 1_000_000}", "--max-tokens", "5", k=ROWS, size=ROWS)
    assert stopped.code == 3, stopped
    assert "raise --budget to about $" in stopped.stderr
    assert 0 < scene.cost() <= micro(stopped.report["spent_usd"]) <= budget
    kept, billed = stopped.report["answered"], scene.billed()
    done = scene.run("--budget", "1", "--max-tokens", "5", k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"]) == (0, ROWS), done
    assert scene.billed() - billed <= ROWS - kept + check_calls(scene, ROWS)
    assert scene.billed() > ROWS
    assert micro(done.report["spent_usd"]) >= scene.cost()


@pytest.mark.full
def test_a_client_killed_again_and_again_never_spends_more_than_its_budget(chat: Stage) -> None:
    scene = chat()
    budget = 600
    for place in ("spool-call:3", "spool-call:1", "spool-line:2", "spool-call:2", "spool-line:1", "spool-call:4"):
        ran = scene.run("--budget", f"{budget / 1_000_000}", "--max-tokens", "5", k=ROWS, size=ROWS // 4, crash=place)
        assert ran.code in (KILLED, 3), ran
        assert scene.cost() <= budget
    stopped = scene.run("--budget", f"{budget / 1_000_000}", "--max-tokens", "5", k=ROWS, size=ROWS // 4)
    assert stopped.code == 3, stopped
    assert scene.cost() <= micro(stopped.report["spent_usd"]) <= budget
    done = scene.run("--budget", "1", "--max-tokens", "5", "--rebuy-missing", k=ROWS, size=ROWS // 4)
    assert (done.code, done.report["answered"]) == (0, ROWS), done
    check_calls(scene, ROWS)


def test_a_client_that_is_stopped_waits_for_its_calls_in_flight(chat: Stage) -> None:
    scene = chat()
    client = scene.start(k=ROWS, size=ROWS)
    wait_until(lambda: list(scene.home.glob("cache/*/*/spool/*.jsonl")))
    scene.emulator.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: len(spooled(scene, "*.calls")) > len(spooled(scene, "*.results.jsonl")))
    client.send_signal(signal.SIGINT)
    scene.emulator.process.send_signal(signal.SIGCONT)
    assert ended(client).code == 130
    assert ROWS > len(spooled(scene, "*.results.jsonl")) == scene.billed() > 0
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, check_calls(scene, ROWS), scene.billed()) == (0, 0, ROWS), done


@pytest.mark.full
def test_a_server_that_loses_every_call_is_given_up(chat: Stage) -> None:
    scene = chat(rules=[{"do": "503-before", "on": "chat"}])
    done = scene.run(k=ROWS, size=ROWS)
    assert done.code == 1, done
    assert "the server failed 5 times in a row: 503" in done.stderr
    assert len(spooled(scene, "*.calls")) < ROWS


def test_the_pilot_is_asked_and_paid_for(chat: Stage) -> None:
    scene = chat()
    done = scene.run("--pilot", "auto", k=ROWS, size=ROWS)
    assert (done.code, scene.billed()) == (0, ROWS + len(scene.journal("passed"))), done
    assert len(scene.journal("passed")) == min(20, ROWS // 5)
    assert micro(done.report["spent_usd"]) == scene.cost()


def test_a_server_that_refuses_the_key_ends_the_run(chat: Stage) -> None:
    scene = chat(rules=[{"do": "401-revoked", "on": "chat"}])
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, scene.billed()) == (77, 0), done


def test_an_audit_of_an_unfinished_run_makes_no_calls(chat: Stage) -> None:
    scene = chat()
    assert scene.run(k=ROWS, size=ROWS, crash="spool-line:3").code == KILLED
    billed, bytes_before = scene.billed(), contents(scene.run_folder)
    audited = scene.program("audit", "--remote")
    assert audited.code == 0, audited
    assert (scene.billed(), contents(scene.run_folder)) == (billed, bytes_before)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_cancelled_run_keeps_its_answers(chat: Stage) -> None:
    scene = chat()
    assert scene.run(k=ROWS, size=ROWS, crash="spool-line:5").code == KILLED
    assert scene.run(k=ROWS, size=ROWS, command="cancel").code == 0
    done = scene.run("--again", k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"]) == (0, ROWS), done
    answers = pl.concat(pl.read_parquet(file) for file in scene.run_folder.glob("answers/*.parquet"))
    assert sorted(answers["id"]) == list(range(ROWS))
    assert len(scene.journal("stored")) == 2
