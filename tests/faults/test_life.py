"""Whatever a provider does to a batch, the run ends with every paid answer kept, or says exactly what is the matter."""

import signal

import polars as pl
import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, PROBE, Json, Scene, ended, wait_until
from tests.faults.rows import row
from tests.faults.stories import ROWS, SIZE, Story, Told, by_draw, cases, judge, told

__all__ = ["told"]

LOST: Json = {"do": "reset-after", "on": "create"}
HALF: Json = {"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}
FAST = 60.0  # of the client's minutes pass in a second
STORIES = {
    "its lines are refused without end": Story(
        row(75), [{"do": "validation-failed"}], 6, 0, "answers are missing", dialects=("openai",), full=True
    ),
    "the queue has no room for its tokens": Story(
        row(76), by_draw("create", "token-limit"), dialects=("openai",), full=True
    ),
    "the queue is full": Story(row(76), by_draw("create", "429-queue-full"), dialects=("anthropic",)),
    "half of it expires": Story(row(77), [HALF], None, None),
    "half of it expires and the file is cut": Story(
        row(77), [HALF, {"do": "cut-line", "first": 1}], None, None, full=True
    ),
    "it has ended and names no results, which are where they always are": Story(
        row(78), [{"do": "output-null"}], dialects=("anthropic",), full=True
    ),
    "everything expires": Story(row(79), [{"do": "expire-none", "seconds": 0.1}], 6, 0, "given up"),
    "somebody cancels it": Story(
        row(80), [{"do": "cancelled-elsewhere", "seconds": 0.2}], 1, None, "cancelled by someone else"
    ),
    "somebody cancels it, which takes its time": Story(
        row(80),
        [{"do": "cancelled-elsewhere", "seconds": 0.2}],
        1,
        None,
        "cancelled by someone else",
        emulator=("--delay", "cancelling=3"),
        full=True,
    ),
    "it is deleted": Story(row(81), [{"do": "deleted-elsewhere"}], 4, 0, "does not know the batch any more"),
    "it is not found for a while": Story(row(81), [{"do": "poll-404", "first": 4}], size=ROWS, full=True),
    "its state is spelt with a capital": Story(row(83), [{"do": "status-capitalised"}]),
    "states are spelt oddly": Story(
        row(83), [{"do": "status-capitalised", "p": 0.4}, {"do": "status-unknown", "p": 0.3}], full=True
    ),
    "it has ended and then it has not": Story(
        row(83), [{"do": "status-backwards", "nth": [1, 3, 4]}], size=ROWS, full=True
    ),
    "it counts nothing": Story(row(84), [{"do": "counts-zero"}], full=True),
    "its counts contradict its results": Story(row(84), [{"do": "counts-contradict"}], full=True),
    "a lost batch that counts nothing": Story(row(84), [LOST, {"do": "counts-zero"}], voids=0),
    "its results come late": Story(row(85), [{"do": "output-late", "seconds": 0.6}], dialects=("openai",)),
    "its results are gone": Story(row(86), [{"do": "results-expired"}], 4, 0, "cannot be fetched"),
    "a listing that makes no sense": Story(
        row(87), [LOST, {"do": "html-before", "on": "list", "first": 2}], voids=0, full=True
    ),
    "a listing of another shape": Story(row(87), [LOST, {"do": "list-envelope", "first": 2}], voids=0, full=True),
    "a listing whose pages are empty and go on": Story(row(87), [LOST, {"do": "list-empty-more", "first": 4}], voids=0),
    "a listing whose pages are empty and go on for ever": Story(
        row(87), [LOST, {"do": "list-empty-more"}], 1, 0, "makes no sense", speed=FAST, voids=0, adrift=True, full=True
    ),
    "a listing that repeats itself": Story(row(87), [LOST, {"do": "list-repeat", "first": 4}], voids=0, full=True),
    "a listing of many pages, some of which cannot be had": Story(
        row(87),
        [LOST, {"do": "foreign"}, {"do": "list-cursor-gone", "nth": [2, 5]}],
        emulator=("--limit", "page=2"),
        voids=0,
    ),
    "a listing of many pages that overlap": Story(
        row(87),
        [LOST, {"do": "foreign"}, {"do": "list-duplicates"}],
        emulator=("--limit", "page=2"),
        voids=0,
        full=True,
    ),
    "a listing of many pages that are all the first": Story(
        row(87),
        [LOST, {"do": "foreign"}, {"do": "list-repeat", "first": 4}],
        emulator=("--limit", "page=2"),
        voids=0,
        full=True,
    ),
    "a listing that shows rows twice": Story(row(87), [LOST, {"do": "list-duplicates"}], voids=0, full=True),
    "a listing that lags": Story(row(88), [LOST, {"do": "list-lag", "seconds": 0.7}], voids=0),
    "a listing that is older than its reply": Story(
        row(88), [LOST, {"do": "list-stale", "seconds": 0.7}], voids=0, full=True
    ),
    "strangers of the same size": Story(row(89), [LOST, {"do": "foreign"}], voids=0),
    "the key is refused": Story(row(91), [{"do": "401-revoked", "on": "create"}], 77, 0, "refuses the key", full=True),
    "the key is refused for uploads": Story(
        row(91), [{"do": "401-echo-key", "on": "upload"}], 77, 0, "refuses the key", dialects=("openai",), full=True
    ),
    "the model is not for this key": Story(
        row(91), [{"do": "403-permission", "on": "create"}], 77, 0, "no access", full=True
    ),
}


@pytest.mark.parametrize(("name", "dialect"), cases(STORIES))
def test_a_run_survives(told: Told, name: str, dialect: str) -> None:
    judge(STORIES[name], *told(name, dialect))


@row(76)
@pytest.mark.full
def test_a_batch_larger_than_the_whole_queue_is_made_smaller(stage: Stage) -> None:
    scene = stage("openai", "--limit", "enqueued_tokens=800")
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    scene.audit(status=True)


@row(80)
@pytest.mark.full
def test_the_rest_of_a_cancelled_run_is_asked_when_told_again(stage: Stage) -> None:
    scene = stage("anthropic", rules=[{"do": "cancelled-elsewhere", "seconds": 0.2}])
    assert scene.run(k=ROWS, size=SIZE).code == 1
    assert 0 < scene.billed() < ROWS
    scene.end_faults()
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.billed() == ROWS
    scene.audit(status=True)


@row(81)
@pytest.mark.full
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


@row(75)
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


@row(75)
@pytest.mark.full
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


@row(79)
@pytest.mark.full
def test_what_a_provider_never_got_to_is_asked_again_only_if_told_so(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "expire-none", "seconds": 0.1}])
    assert scene.run(k=SIZE, size=SIZE).code == 6
    assert len(scene.accepted()) == 3
    scene.end_faults()
    assert scene.run(k=SIZE, size=SIZE).code == 6
    done = scene.run("--rebuy-missing", k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@row(78)
@pytest.mark.parametrize("fault", ["output-null", pytest.param("output-empty", marks=pytest.mark.full)])
def test_results_that_are_not_named_are_missing_until_they_are(stage: Stage, fault: str) -> None:
    scene = stage("openai", rules=[{"do": fault}])
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["missing"], done.report["answered"]) == (6, SIZE, 0), done
    assert "answers are missing" in done.stderr
    assert done.report["spent_usd"] * 1_000_000 > scene.cost()  # maybe paid for, and here it was
    scene.end_faults()
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@row(82)
def test_a_batch_that_never_ends_is_told_of_and_not_bought_again(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "stuck"}])
    client = scene.start(k=SIZE, size=SIZE)
    wait_until(lambda: scene.journal("created") if list(scene.home.glob("cache/*/*/run.json")) else [])
    scene.emulator.advance(26 * 3600)
    assert client.stderr is not None
    said = next(line for line in client.stderr if "past their own end" in line)
    assert "1 batch in progress at the provider, 1 of them more than an hour past their own end" in said
    client.send_signal(signal.SIGINT)
    assert ended(client).code == 130
    assert len(scene.accepted()) == 1
    scene.audit(unfinished=True)


@row(86)
@pytest.mark.parametrize("dialect", BOTH)
def test_answers_that_were_left_for_too_long_are_told_of_and_not_bought_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=600")
    assert scene.run("--detach", k=SIZE, size=SIZE).code == 6
    scene.emulator.advance(700)
    wait_until(lambda: scene.emulator.events("ended"))
    scene.emulator.advance(31 * 86_400)
    for _ in range(2):
        done = scene.run(k=SIZE, size=SIZE)
        assert done.code == 4, done
        assert "cannot be fetched" in done.stderr
        assert done.report["reserved_usd"] > 0
    assert len(scene.accepted()) == 1
    scene.audit(status=True)


@row(90)
def test_a_full_store_of_files_stops_the_buying_and_not_the_collecting(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1", "--limit", "files=2")
    done = scene.run(k=ROWS, size=SIZE)
    assert done.code == 1, done
    assert "The file storage of this project is full" in done.stderr
    assert done.report["answered"] == scene.billed() == 2 * SIZE
    assert scene.journal("intent")[-1]["nonce"] not in {event["nonce"] for event in scene.journal("creating")}
    scene.audit(status=True)


@row(91)
@pytest.mark.full
@pytest.mark.parametrize("dialect", BOTH)
def test_a_key_that_is_revoked_while_a_batch_runs_loses_nothing(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "401-revoked", "on": "poll", "nth": [1]}])
    done = scene.run(k=SIZE, size=SIZE)
    assert done.code == 77, done
    assert len(scene.journal("created")) == 1
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@row(91)
@pytest.mark.parametrize("dialect", BOTH)
def test_the_key_of_another_project_buys_nothing_while_batches_are_out(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=1", rules=[{"do": "404-foreign-key", "on": "poll"}])
    assert scene.run("--detach", k=SIZE, size=SIZE).code in (4, 6)
    done = scene.run(k=ROWS, size=SIZE)
    assert done.code == 4, done
    (batch,) = scene.accepted()
    assert batch["batch"] in done.stderr
    scene.end_faults()
    (intent,) = scene.journal("intent")
    done = scene.run("--resolve", f"{intent['nonce']}={batch['batch']}", k=ROWS, size=SIZE)
    assert (done.code, scene.billed()) == (0, ROWS), done
    scene.audit(status=True)


@row(91)
def test_a_create_that_another_key_sent_is_not_called_void_because_this_one_does_not_see_it(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "list-lag", "seconds": 60}])
    assert scene.run(k=SIZE, size=SIZE, crash="once-after-reply:1").code == -9
    (scene.emulator.words, scene.environment) = ([], {})
    scene.emulator.stop()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("tests.emulator.driver.TOKEN", "another-token")
        scene.emulator.words = ["--port", str(scene.emulator.port), "--faults", str(scene.folder / "state/rules.jsonl")]
        scene.emulator.start()
    scene.environment = {"OPENAI_API_KEY": "another-token"}
    done = scene.run(k=SIZE, size=SIZE)
    assert done.code == 4, done
    assert "it was sent with another key than this one" in done.stderr
    assert len(scene.accepted()) == 1
    (intent,) = scene.journal("intent")
    done = scene.run("--resolve", f"{intent['nonce']}={scene.accepted()[0]['batch']}", k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@row(92)
@pytest.mark.parametrize("dialect", BOTH)
def test_a_model_that_does_not_exist_is_found_out_by_one_question(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    done = scene.program("run", *nobody(scene), "--trial", "always")
    assert done.code == 77, done
    assert not scene.accepted()
    assert not scene.billed()


@row(92)
@pytest.mark.full
def test_a_model_that_cannot_be_had_in_batches_ends_the_run_and_not_its_requests(stage: Stage) -> None:
    scene = stage("openai")
    done = scene.program("run", *nobody(scene))
    assert (done.code, done.report["failed"], scene.billed()) == (1, 0, 0), done
    assert "the provider rejected batch" in done.stderr


def nobody(scene: Scene) -> list[str]:
    """How to ask a model that the provider does not have."""
    url = scene.emulator.openai_url if scene.dialect == "openai" else scene.emulator.anthropic_url
    words = [*PROBE, "--model", f"{scene.dialect}:nobody", "--base-url", url, "--price", "1,1", "--sample-k", "12"]
    return [*words, "--json"]


@row(93)
def test_a_model_without_a_known_price_is_not_asked(stage: Stage) -> None:
    scene = stage("openai")
    words = ("hiring_an", "--set", "data=sample", "--model", "openai:echo", "--base-url", scene.emulator.openai_url)
    done = scene.program("run", *words)
    assert done.code == 2, done
    assert "no price is known for openai:echo: pass --price IN,OUT" in done.stderr
    assert not scene.emulator.events("uploaded")
