"""Whatever a provider does to a batch, the run ends with every paid answer kept, or says exactly what is the matter."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, DIALECTS, Json, Ran, Scene, ended, wait_until

ROWS, SIZE = 48, 12


class Story(NamedTuple):
    """Rules for the provider, and how the run ends."""

    rules: list[Json]
    code: int | None = 0  # null: 6 if some row was never got to, which is up to the draw of the nonces, else 0
    answered: int | None = ROWS  # null: some, which the ledger tells
    says: str = ""
    damaged: int = 0  # answers in each batch that are none
    dialects: tuple[str, ...] = DIALECTS


LOST: Json = {"do": "reset-after", "on": "create"}
STORIES = {
    # The life of a batch.
    "half of it expires": Story([{"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}], None, None),
    "half of it expires and the file is cut": Story(
        [{"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}, {"do": "cut-line", "first": 1}], None, None
    ),
    "its lines are refused without end": Story(
        [{"do": "validation-failed"}], 6, 0, "answers are missing", dialects=("openai",)
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
    "a create that never arrives whole": Story([{"do": "400-not-json", "on": "create"}], 1, 0, "unreadable 2 times"),
    "a create that is carried out late": Story([{"do": "late-act", "on": "create", "seconds": 0.4}]),
    "a listing that lags": Story([LOST, {"do": "list-lag", "seconds": 0.7}]),
    "a listing that makes no sense": Story([LOST, {"do": "html-before", "on": "list", "first": 2}]),
    "a listing that counts nothing": Story([LOST, {"do": "counts-zero"}]),
    "strangers of the same size": Story([LOST, {"do": "foreign"}]),
    "a proxy that sends twice": Story([{"do": "dup-accept"}]),
    "a proxy that sends twice and loses the reply": Story([LOST, {"do": "dup-accept"}]),
    "downloads that break off": Story([{"do": "cut-length", "first": 1}]),
    "downloads that end at a line": Story([{"do": "cut-line", "first": 2}]),
    # Of ten fetches of two files, one of each comes whole, and not at the same time.
    "downloads of which now one is whole and now the other": Story(
        [{"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}, {"do": "cut-line", "nth": [1, 3, 4, 5, 6, 7, 8, 10]}],
        None,
        None,
        dialects=("openai",),
    ),
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
    "lines that fail at the provider's again and again": Story(
        [{"do": "line-500", "nth": [1, 2]}], 6, None, "--rebuy-missing asks for them again"
    ),
    "lines that the provider will never answer": Story([{"do": "line-policy", "nth": [1, 2]}], damaged=2),
    "nothing that the provider would answer": Story([{"do": "line-policy"}], 1, 0, "requests failed"),
    "everything expires": Story([{"do": "expire-none", "seconds": 0.1}], 6, 0, "given up"),
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
    assert done.code == (story.code if story.code is not None else 6 if done.report["missing"] else 0), done
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
    scene.end_faults()
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.billed() == ROWS
    scene.audit(status=True)


def test_an_unresolved_batch_is_settled_by_a_person(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "deleted-elsewhere", "key": "^[0-9a-f]"}])
    assert scene.run(k=12, size=12).code == 4
    assert scene.run(k=12, size=12).code == 4
    (batch,) = scene.journal("unresolved")
    scene.end_faults()
    done = scene.run("--resolve", f"{batch['nonce']}=void", k=12, size=12)
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert done.report["reserved_usd"] > 0  # it may yet be charged
    scene.audit()


def test_only_the_lines_that_a_provider_blames_have_failed(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "validation-failed"}])
    scene.run(k=ROWS, size=SIZE, crash="after-stored:1")
    scene.end_faults()
    done = scene.run(k=ROWS, size=SIZE)
    refused = 2 * sum(event["state"] == "failed" for event in scene.journal("ended"))  # the emulator names two lines
    assert 2 <= refused < ROWS
    assert (done.code, done.report["failed"], done.report["answered"]) == (0, refused, ROWS - refused), done
    assert scene.billed() == ROWS - refused
    answers = pl.concat(pl.read_parquet(file) for file in scene.run_folder.glob("answers/*.parquet"))
    failed = answers.filter(outcome="failed")
    assert set(failed["error"]) == {"invalid_json_line: This line is not parseable as valid JSON."}
    scene.audit(status=True)
    assert scene.program("audit").code == 0


@pytest.mark.parametrize(("limit", "rules", "size"), [("requests=5", [], SIZE), ("", [{"do": "validation-failed"}], 2)])
def test_a_batch_that_is_refused_as_a_whole_ends_the_run(
    stage: Stage, limit: str, rules: list[Json], size: int
) -> None:
    """No line is named, or every one: then what is wrong is not a line's fault, and asking again would not help."""
    scene = stage("openai", *(("--limit", limit) if limit else ()), rules=rules)
    done = scene.run(k=ROWS, size=size)
    assert (done.code, done.report["failed"], scene.billed()) == (1, 0, 0), done
    assert "the provider rejected batch" in done.stderr
    scene.audit(status=True)


@pytest.mark.parametrize("dialect", BOTH)
def test_a_create_that_did_not_arrive_whole_is_looked_for_and_then_made_anew(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "400-not-json", "on": "create"}])
    client = scene.start(k=SIZE, size=SIZE)
    wait_until(lambda: scene.emulator.events("fault"))
    scene.end_faults()
    done = ended(client)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    assert [len(scene.journal(kind)) for kind in ("intent", "creating", "void", "created")] == [2, 2, 1, 1]
    scene.audit(status=True)


CUT: Json = {"do": "cut-line", "first": 5}  # as often as results are fetched


@pytest.mark.parametrize("dialect", BOTH)
def test_answers_that_turn_up_later_are_kept_and_nothing_is_asked_for_them(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[CUT])
    first = scene.run(k=ROWS, size=SIZE)
    assert (first.code, first.report["answered"] + first.report["missing"]) == (6, ROWS), first
    assert 0 < first.report["answered"] < ROWS
    bought = len(scene.accepted())
    done = scene.run("--rebuy-missing", k=ROWS, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    assert len(scene.accepted()) == bought == len(scene.journal("late"))
    assert round(done.report["spent_usd"] * 1_000_000) == scene.cost() < round(first.report["spent_usd"] * 1_000_000)
    before = scene.audit(status=True)["snapshot"]
    assert scene.program("audit").code == 0
    assert scene.run(k=ROWS, size=SIZE).code == 0
    scene.audit(status=True, before=before)


def test_a_look_that_finds_nothing_new_is_not_taken_again_the_same_day(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-missing", "nth": [5]}])
    assert scene.run(k=ROWS, size=SIZE).code == 6
    stored = scene.journal("stored", "late")
    for place in ("before-looked", "mid-looked", "after-looked"):
        assert scene.run(k=ROWS, size=SIZE, crash=f"{place}:1").code == -9
    assert scene.run(k=ROWS, size=SIZE).code == 6
    assert (scene.journal("stored", "late"), len(scene.journal("looked"))) == (stored, len({*lacking(stored)}))
    before = scene.audit(status=True)["snapshot"]
    downloads = len(scene.emulator.events("downloaded"))
    assert scene.run(k=ROWS, size=SIZE).code == 6
    scene.audit(status=True, before=before)
    assert len(scene.emulator.events("downloaded")) == downloads


def lacking(stored: list[Json]) -> list[str]:
    return [event["nonce"] for event in stored if event["missing"]]


def test_what_a_provider_never_got_to_is_asked_again_only_if_told_so(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "expire-none", "seconds": 0.1}])
    assert scene.run(k=SIZE, size=SIZE).code == 6
    assert len(scene.accepted()) == 3
    scene.end_faults()
    assert scene.run(k=SIZE, size=SIZE).code == 6
    done = scene.run("--rebuy-missing", k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)
