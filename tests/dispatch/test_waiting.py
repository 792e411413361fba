"""While the program waits, it says what for and when it looks again; with --quiet it says nothing."""

import re
import time

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Json

TIME = r"\d\d:\d\d:\d\d"
WAITS: list[tuple[str, tuple[str, ...], list[Json]]] = [
    (f"waiting for 2 batches in progress at the provider; next check at {TIME}", ("--delay", "processing=7"), []),
    (
        rf"a listing of 2 batches created without a reply \(until {TIME} at least\); next check at {TIME}",
        (),
        [{"do": "reset-before", "on": "create"}],
    ),
    (
        rf"waiting for the provider to accept batches again, which it has not since {TIME} \(.* 429 .*\); next check",
        (),
        [{"do": "429-seconds", "on": "create"}],
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("words", "rules"), [wait[1:] for wait in WAITS], ids=["running", "unanswered", "refused"])
def test_the_program_says_what_it_waits_for(stage: Stage, words: tuple[str, ...], rules: list[Json]) -> None:
    scene = stage("openai", *words, rules=rules)
    client = scene.start("--settle", "8", k=20, size=10)
    expected = next(text for text, *rest in WAITS if rest == [words, rules])
    assert client.stderr is not None
    line = next((line for line in client.stderr if re.search(expected, line)), None)
    client.kill()
    assert line is not None


@pytest.mark.full
def test_a_quiet_run_prints_nothing(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=3")
    done = scene.run("--quiet", k=20, size=10)
    assert (done.code, done.stdout, done.stderr, scene.billed()) == (0, "", "", 20)


def test_a_time_to_wait_is_kept_and_no_batch_has_to_end_first(stage: Stage) -> None:
    rules: list[Json] = [{"do": "429-seconds", "on": "create", "p": 0.5}]
    scene = stage("openai", "--delay", "processing=3600", rules=rules)
    client = scene.start(k=80, size=10)
    until = time.monotonic() + 90
    while len(scene.accepted()) < 8 and time.monotonic() < until:
        time.sleep(0.2)
    client.kill()
    client.communicate()
    assert len(scene.accepted()) == 8
