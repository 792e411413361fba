"""A run grows, stops and continues: each start asks only for new rows."""

import signal

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, Scene, ended, kill, wait_until


def asked_rows(scene: Scene) -> int:
    """How many requests are in accepted batches."""
    return sum(len(event["ids"]) for event in scene.emulator.events("validated"))


def test_a_larger_sample_and_more_repetitions_ask_only_for_new_rows(stage: Stage) -> None:
    scene = stage("openai")
    for words, rows in ((("100",), 100), (("200",), 200), (("200", "--repetitions", "2"), 400)):
        done = scene.run(*words[1:], k=int(words[0]), size=40)
        assert (done.code, done.report["answered"], done.report["asked"]) == (0, rows, rows), done
        assert (asked_rows(scene), scene.billed()) == (rows, rows)
    before = scene.audit(status=True)["snapshot"]
    done = scene.run("--repetitions", "2", k=200, size=40)
    assert (done.code, done.report["answered"]) == (0, 400), done
    scene.audit(status=True, before=before)


@pytest.mark.parametrize("dialect", BOTH)
def test_a_finished_run_is_not_changed(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    assert scene.run().code == 0
    before = scene.audit()["snapshot"]
    assert scene.run().code == 0
    scene.audit(status=True, before=before)


def test_batches_in_flight_are_collected_even_if_fewer_repetitions_are_asked_for(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    client = scene.start("--repetitions", "2", k=20, size=10)
    wait_until(lambda: len(scene.accepted()) == 4)
    kill(client)
    done = scene.run("--repetitions", "1", k=10, size=10)
    assert (done.code, done.report["answered"]) == (0, 10), done
    done = scene.run("--repetitions", "2", k=20, size=10)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 40, 40), done
    scene.audit(status=True)


@pytest.mark.parametrize(
    ("dialect", "how"),
    [
        ("openai", signal.SIGINT),
        ("anthropic", signal.SIGTERM),
        pytest.param("openai", signal.SIGTERM, marks=pytest.mark.full),
        pytest.param("anthropic", signal.SIGINT, marks=pytest.mark.full),
    ],
)
def test_a_stopped_client_leaves_its_batches_running_and_continues_later(
    stage: Stage, dialect: str, how: signal.Signals
) -> None:
    scene = stage(dialect, "--delay", "processing=2")
    client = scene.start(k=40, size=10)
    wait_until(lambda: len(scene.accepted()) >= 4)
    client.send_signal(how)
    stopped = ended(client)
    assert stopped.code == 130, stopped
    assert "run the same command to continue" in stopped.stderr
    assert not scene.emulator.events("cancelled")
    done = scene.run(k=40, size=10)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 40, 40), done
    scene.audit(status=True)


def test_a_client_that_waits_for_a_rate_limit_can_be_stopped(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "429-huge", "on": "create"}, {"do": "429-seconds", "on": "create"}])
    client = scene.start()
    wait_until(lambda: scene.emulator.events("fault"))
    client.send_signal(signal.SIGINT)
    stopped = ended(client)
    assert stopped.code == 130, stopped
    assert stopped.report["answered"] == 0


@pytest.mark.parametrize("dialect", BOTH)
def test_answers_that_status_counts_are_still_there_after_a_kill(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=0.3")
    client = scene.start(k=400, size=5)
    wait_until(lambda: any(scene.home.glob("cache/*/*/answers/*.parquet")))
    answered = wait_until(lambda: scene.status()["answered"])
    kill(client)
    assert scene.status()["answered"] >= answered
    scene.audit(unfinished=True)
