"""What a user wants besides asking everything: collect only, cancel, ask cancelled or failed requests again."""

import signal
from pathlib import Path

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, Scene, wait_until
from tests.emulator.driver import Emulator
from tests.faults.rows import row

ROWS, SIZE = 24, 12


def cancelled(scene: Scene) -> list[dict[str, object]]:
    """Cancel the run's batches; what the program printed."""
    ran = scene.run(k=ROWS, size=SIZE, command="cancel")
    assert ran.code == 0, ran
    return [ran.report]


@pytest.mark.full
@row(148)
@pytest.mark.parametrize("dialect", BOTH)
def test_cancelled_requests_wait_until_the_user_wants_them(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=60")
    assert scene.run("--detach", k=ROWS, size=SIZE).code == 6
    bought = len(scene.accepted())
    assert cancelled(scene)[0]["cancelling"] == bought
    assert len(scene.journal("cancelling")) == bought
    for words in (("--collect",), ()):
        ran = scene.run(*words, k=ROWS, size=SIZE)
        assert ran.code == 6, ran
        assert f"{ROWS - ran.report['answered']} requests of batches that you cancelled have no answer" in ran.stderr
        assert "--again asks them again" in ran.stderr
        assert len(scene.accepted()) == bought, "nothing is bought without a word of the user"
        status = scene.status()
        assert (status["todo"], status["missing"], status["in_flight"]) == (ROWS - ran.report["answered"], 0, 0)
    client = scene.start("--again", k=ROWS, size=SIZE)
    wait_until(lambda: len(scene.accepted()) > bought)
    for _ in range(20):
        if client.poll() is None:
            scene.emulator.advance(100)
        try:
            client.wait(timeout=1)
            break
        except Exception:  # noqa: BLE001, S112 - it still runs
            continue
    out, err = client.communicate()
    assert client.returncode == 0, (out, err)
    assert scene.status()["answered"] == ROWS
    scene.audit(status=True)


@row(149)
@pytest.mark.parametrize("dialect", BOTH)
def test_cancel_finds_a_batch_whose_create_got_no_reply(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=60" if dialect == "openai" else "processing=0")
    assert scene.run(k=SIZE, size=SIZE, crash="once-after-reply:1").code == -signal.SIGKILL
    assert not scene.journal("created")
    found = cancelled(scene)[0]
    if dialect == "openai":
        assert (found["cancelling"], found["unanswered"]) == (1, 0)
    else:  # only its results show that it is ours
        wait_until(lambda: cancelled(scene)[0]["unanswered"] == 0)
    assert [event["found"] for event in scene.journal("created")] == [True]
    assert not scene.journal("void")
    ran = scene.run("--collect", k=SIZE, size=SIZE)
    assert len(scene.accepted()) == 1
    assert ran.code == (6 if ran.report["answered"] < SIZE else 0), ran
    scene.audit(status=True)


@pytest.mark.full
@row(149)
@pytest.mark.parametrize("dialect", BOTH)
def test_cancel_finds_a_batch_that_was_given_up(stage: Stage, dialect: str) -> None:
    """For a while the provider did not know it, so it is unresolved, but it runs."""
    delay = ("--delay", "processing=60")
    scene = stage(dialect, *delay, rules=[{"do": "poll-404", "on": "poll"}])
    assert scene.run(k=SIZE, size=SIZE).code == 4
    scene.emulator.stop()
    scene.emulator.words = ["--port", str(scene.emulator.port), *delay]
    scene.emulator.start()
    assert cancelled(scene)[0]["cancelling"] == 1
    assert len(scene.emulator.events("cancelled")) == 1
    ran = scene.run("--collect", k=SIZE, size=SIZE)
    assert ran.code == 6, ran
    assert len(scene.accepted()) == 1
    scene.audit(status=True)


@row(149)
def test_cancel_with_the_key_of_another_project_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That project does not have the batch, so nothing is cancelled."""
    scene = stage("openai", "--delay", "processing=60")
    assert scene.run("--detach", k=SIZE, size=SIZE).code == 6
    scene.emulator.stop()
    monkeypatch.setattr("tests.emulator.driver.TOKEN", "another-key")
    other = Emulator(tmp_path / "other", "--port", str(scene.emulator.port))
    scene.environment["OPENAI_API_KEY"] = "another-key"
    ran = scene.run(k=SIZE, size=SIZE, command="cancel")
    other.stop()
    assert ran.code == 77, ran
    assert "was sent with another key" in ran.stderr


@pytest.mark.full
@row(149)
def test_cancel_leaves_a_create_alone_that_no_listing_shows(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=SIZE, size=SIZE, crash="once-before-send:1").code == -signal.SIGKILL
    found = cancelled(scene)[0]
    assert (found["cancelling"], found["unanswered"]) == (0, 1)
    assert not scene.journal("void")
    assert scene.run(k=SIZE, size=SIZE).code == 0
    scene.audit(status=True)


@row(150)
@pytest.mark.parametrize("dialect", BOTH)
def test_collecting_buys_nothing(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=1")
    assert scene.run("--detach", k=SIZE, size=SIZE).code == 6
    intents = scene.journal("intent")
    ran = scene.run("--collect", k=ROWS, size=SIZE)  # waits for the running batch
    assert (ran.code, ran.report["answered"], scene.billed()) == (6, SIZE, SIZE), ran
    assert scene.journal("intent") == intents
    assert f"{SIZE} of {ROWS} requests have no answer, and none was bought (--collect)" in ran.stderr
    assert f"{SIZE} are in no batch: run the same command without --collect" in ran.stderr
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.run("--collect", k=ROWS, size=SIZE).code == 0
    scene.audit(status=True)


@row(150)
def test_collecting_from_a_chat_server_makes_no_call(stage: Stage) -> None:
    scene = stage("chat")
    scene.price = "0.15,0.60"
    assert scene.run(k=ROWS, size=SIZE, crash="spool-line:5").code == -signal.SIGKILL
    calls = scene.billed()
    ran = scene.run("--collect", k=ROWS, size=SIZE)
    assert (ran.code, scene.billed()) == (6, calls), ran
    assert "open batches: 1 created" in ran.stderr
    assert scene.run(k=ROWS, size=SIZE).code == 0
    scene.audit(status=True)


@pytest.mark.full
@row(151)
@pytest.mark.parametrize("dialect", BOTH)
def test_failed_requests_are_asked_again_on_request(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "line-malformed", "nth": [2, 7]}])
    ran = scene.run(k=ROWS, size=SIZE)
    failed = ran.report["failed"]
    assert failed == 4, ran
    scene.end_faults()
    assert scene.run(k=ROWS, size=SIZE).report["failed"] == failed
    bought = scene.billed()
    ran = scene.run("--retry-failed", k=ROWS, size=SIZE)
    assert (ran.code, ran.report["answered"], ran.report["failed"]) == (0, ROWS, 0), ran
    assert scene.billed() == bought + failed
    again = scene.run("--retry-failed", k=ROWS, size=SIZE)
    assert (again.code, scene.billed()) == (0, bought + failed), again
    audited = scene.program("audit")
    assert (audited.code, "all is as it should be" in audited.stdout) == (0, True), audited
    for event in scene.journal("late"):  # what the provider said at first is still there
        explained = scene.program("explain", f"{event['nonce']}-{event['held'][0][0]}-0").stdout
        assert explained.count(" (stored)") >= 2, explained
    scene.audit(status=True)


@pytest.mark.full
@row(151)
def test_a_request_may_fail_as_often_as_the_user_retries_it(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-malformed", "p": 0.3}])
    for words in ((), *[("--retry-failed",)] * 4):
        ran = scene.run(*words, k=SIZE, size=SIZE)
        assert (ran.code, ran.report["failed"] + ran.report["answered"]) == (0, SIZE), ran
    assert scene.program("audit").code == 0
    scene.audit(status=True)


@row(152)
def test_calls_that_a_kill_interrupted_are_reported(stage: Stage) -> None:
    scene = stage("chat")
    scene.price = "0.15,0.60"
    for line in (4, 6):
        assert scene.run(k=ROWS, size=SIZE, crash=f"spool-line:{line}").code == -signal.SIGKILL
    client = scene.start("--quiet", k=ROWS, size=SIZE, crash="spool-line:3")
    client.communicate()
    words = [word for word in scene.line(k=ROWS, size=SIZE)[3:] if word != "--json"]
    ran = scene.program(*words[: words.index("--home")])
    lost = scene.billed() - ROWS
    assert ran.code == 0, ran
    assert lost > 0
    assert "calls were lost in a kill and made again, counted at $0.00" in ran.stdout, ran
    assert int(ran.stdout.split(" calls were lost")[0].rpartition("\n")[2]) >= lost
    scene.audit(status=True)
