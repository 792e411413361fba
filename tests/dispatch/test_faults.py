"""Whatever a provider does to a batch, the run ends with every paid answer kept, or says exactly what is the matter."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS, Json, Ran, Scene

ROWS, SIZE = 48, 12


class Story(NamedTuple):
    """Rules for the provider, and how the run ends."""

    rules: list[Json]
    code: int = 0
    answered: int | None = ROWS  # null: some, which the ledger tells
    says: str = ""
    damaged: int = 0  # answers in each batch that are none
    dialects: tuple[str, ...] = DIALECTS


LOST: Json = {"do": "reset-after", "on": "create"}
STORIES = {
    # The life of a batch.
    "half of it expires": Story([{"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}], answered=None),
    "half of it expires and the file is cut": Story(
        [{"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}, {"do": "cut-line", "first": 1}], answered=None
    ),
    "somebody cancels it": Story(
        [{"do": "cancelled-elsewhere", "seconds": 0.2}], 1, None, "cancelled by somebody else"
    ),
    "it is deleted": Story([{"do": "deleted-elsewhere"}], 4, 0, "does not know the batch any more"),
    "it is not found for a while": Story([{"do": "poll-404", "first": 4}]),
    "the queue has no room for its tokens": Story([{"do": "token-limit", "key": "^[0-7]"}], dialects=("openai",)),
    "the queue is full": Story([{"do": "429-queue-full", "on": "create", "key": "^[0-7]"}], dialects=("anthropic",)),
    "its results come late": Story([{"do": "output-late", "seconds": 0.6}], dialects=("openai",)),
    "its results are gone": Story([{"do": "results-expired"}], 4, 0, "cannot be fetched"),
    "states are spelt oddly": Story([{"do": "status-capitalised", "p": 0.4}, {"do": "status-unknown", "p": 0.3}]),
    # Replies.
    "rate limits with a time to wait": Story([{"do": "429-ms", "on": ["create", "poll", "list"], "p": 0.4}]),
    "a refused key": Story([{"do": "401-revoked", "on": "create"}], 77, 0, "refuses the key"),
    "an error after acting": Story([{"do": "500-after", "on": "create"}]),
    "nonsense after acting": Story([{"do": "html-after", "on": "create"}]),
    "a create that is carried out late": Story([{"do": "late-act", "on": "create", "seconds": 0.4}]),
    "a listing that lags": Story([LOST, {"do": "list-lag", "seconds": 0.7}]),
    "a listing that makes no sense": Story([LOST, {"do": "html-before", "on": "list", "first": 2}]),
    "a listing that counts nothing": Story([LOST, {"do": "counts-zero"}]),
    "strangers of the same size": Story([LOST, {"do": "foreign"}]),
    "a proxy that sends twice": Story([{"do": "dup-accept"}]),
    "a proxy that sends twice and loses the reply": Story([LOST, {"do": "dup-accept"}]),
    "downloads that break off": Story([{"do": "cut-length", "first": 1}]),
    "downloads that end at a line": Story([{"do": "cut-line", "first": 2}]),
    # Result lines.
    "lines that come twice": Story([{"do": "line-duplicate", "p": 0.3}]),
    "lines that are missing": Story([{"do": "line-missing", "nth": [2, 5]}], 6, says="answers are missing", damaged=2),
    "lines of nobody": Story([{"do": "line-unknown-id", "nth": [3]}], 6, says="answers are missing", damaged=1),
    "lines that are cut": Story([{"do": "line-malformed", "nth": [3]}], damaged=1),
    "a first line that is cut after a lost reply": Story([LOST, {"do": "line-malformed", "nth": [1]}], damaged=1),
    "a first line of nobody after a lost reply": Story(
        [LOST, {"do": "line-unknown-id", "nth": [1]}], 6, says="answers are missing", damaged=1, dialects=("anthropic",)
    ),
    "answers that contradict each other": Story([{"do": "line-conflict", "nth": [3]}], damaged=1),
    "answers with line separators in them": Story([{"do": "line-u2028", "p": 0.5}]),
    "a usage beyond all reason": Story([{"do": "line-usage-huge", "nth": [3]}], 3, ROWS, "check the price"),
    "lines that failed at the provider's": Story([{"do": "line-500", "nth": [1, 2]}], answered=None),
}


def cases(*, full: bool) -> list[tuple[str, str]]:
    """Every story in one dialect, turn by turn; or, in full, in the other."""
    return [
        (name, dialect)
        for k, (name, story) in enumerate(STORIES.items())
        for place, dialect in enumerate(story.dialects)
        if (place != k % len(story.dialects)) == full
    ]


Told = Callable[[str, str], tuple[Scene, Ran]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Iterator[Told]:
    """Stories are played a few at a time, because most of their time is spent waiting."""

    def play(name: str, dialect: str) -> tuple[Scene, Ran]:
        folder = tmp_path_factory.mktemp("story") / "scene"
        scene = Scene(folder, manifests, dialect, rules=STORIES[name].rules)
        scenes.append(scene)
        return scene, scene.run(k=ROWS, size=SIZE)

    def result(name: str, dialect: str) -> tuple[Scene, Ran]:
        if (name, dialect) not in played:
            full = (name, dialect) in cases(full=True)
            played.update({case: pool.submit(play, *case) for case in cases(full=full)})
        return played[name, dialect].result()

    scenes: list[Scene] = []
    played: dict[tuple[str, str], Future[tuple[Scene, Ran]]] = {}
    with ThreadPoolExecutor(3) as pool:
        yield result
        pool.shutdown(cancel_futures=True)
    for scene in scenes:
        scene.close()


@pytest.mark.parametrize(("name", "dialect"), cases(full=False))
def test_a_run_survives(told: Told, name: str, dialect: str) -> None:
    judge(STORIES[name], *told(name, dialect))


@pytest.mark.full
@pytest.mark.parametrize(("name", "dialect"), cases(full=True))
def test_a_run_survives_in_the_other_dialect(told: Told, name: str, dialect: str) -> None:
    judge(STORIES[name], *told(name, dialect))


def judge(story: Story, scene: Scene, done: Ran) -> None:
    assert done.code == story.code, done
    assert story.says in done.stderr
    assert "Traceback" not in done.stderr
    outcomes = [done.report[name] for name in ("answered", "refused", "failed", "missing")]
    assert done.report["asked"] == ROWS == sum(outcomes)
    if story.answered is not None:
        assert done.report["answered"] == story.answered - story.damaged * len(scene.accepted())
    scene.audit(status=True)
    scene.close()


def test_quarantine_holds_the_lines_that_nobody_could_attribute(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-unknown-id", "nth": [3]}])
    assert scene.run(k=ROWS, size=SIZE).code == 6
    kept = [line for file in scene.run_folder.glob("quarantine/*") for line in file.read_bytes().splitlines()]
    assert len(kept) == sum(event["quarantined"] for event in scene.journal("stored")) == ROWS // SIZE
    assert all(b'"nobody"' in line for line in kept)


def test_what_a_provider_lost_is_bought_again_only_if_told_so(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-missing", "nth": [12]}])
    assert scene.run(k=ROWS, size=SIZE).code == 6
    assert scene.run(k=ROWS, size=SIZE).code == 6
    assert len(scene.accepted()) == ROWS // SIZE
    done = scene.run("--rebuy-missing", k=ROWS, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, ROWS), done
    assert scene.billed() == ROWS + ROWS // SIZE
    scene.audit(status=True)


def test_a_batch_larger_than_the_whole_queue_is_made_smaller(stage: Stage) -> None:
    scene = stage("openai", "--limit", "enqueued_tokens=800")
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    scene.audit(status=True)


def test_the_rest_of_a_cancelled_run_is_asked_when_told_again(stage: Stage) -> None:
    scene = stage("anthropic", rules=[{"do": "cancelled-elsewhere", "seconds": 0.2}])
    assert scene.run(k=ROWS, size=SIZE).code == 1
    assert 0 < scene.billed() < ROWS
    restart_without_faults(scene)
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.billed() == ROWS
    scene.audit(status=True)


def test_an_unresolved_batch_is_settled_by_a_person(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "deleted-elsewhere", "key": "^[0-9a-f]"}])
    assert scene.run(k=12, size=12).code == 4
    assert scene.run(k=12, size=12).code == 4
    (batch,) = scene.journal("unresolved")
    restart_without_faults(scene)
    done = scene.run("--resolve", f"{batch['nonce']}=void", k=12, size=12)
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert done.report["reserved_usd"] > 0  # it may yet be charged
    scene.audit()


def restart_without_faults(scene: Scene) -> None:
    scene.emulator.stop()
    scene.emulator.words = ["--port", str(scene.emulator.port)]
    scene.emulator.start()
