"""Whatever a provider does to a batch, the run keeps every paid answer or says what is wrong."""

import signal

import polars as pl
import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, PROBE, Json, Scene, ended, wait_until
from tests.faults.rows import row
from tests.faults.stories import ROWS, SIZE, Play, Story, by_draw, cases, judge, play

__all__ = ["play"]

LOST: Json = {"do": "reset-after", "on": "create"}
HALF: Json = {"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}
FAST = 60.0  # minutes of client time in one second
STORIES = {
    "every line is refused in every validation": Story(
        row(75), [{"do": "validation-failed"}], 6, 0, "answers are missing", dialects=("openai",), full=True
    ),
    "the queue has no room for the tokens of a batch": Story(
        row(76), by_draw("create", "token-limit"), dialects=("openai",), full=True
    ),
    "the queue is full": Story(row(76), by_draw("create", "429-queue-full"), dialects=("anthropic",)),
    "half of a batch expires": Story(row(77), [HALF], None, None),
    "half of a batch expires and its file is cut": Story(
        row(77), [HALF, {"do": "cut-line", "first": 1}], None, None, full=True
    ),
    "an ended batch names no results, but they are at the usual address": Story(
        row(78), [{"do": "output-null"}], dialects=("anthropic",), full=True
    ),
    "everything expires": Story(row(79), [{"do": "expire-none", "seconds": 0.1}], 6, 0, "given up"),
    "another user cancels a batch": Story(
        row(80), [{"do": "cancelled-elsewhere", "seconds": 0.2}], 1, None, "cancelled by someone else"
    ),
    "another user cancels a batch, slowly": Story(
        row(80),
        [{"do": "cancelled-elsewhere", "seconds": 0.2}],
        1,
        None,
        "cancelled by someone else",
        emulator=("--delay", "cancelling=3"),
        full=True,
    ),
    "a batch is deleted": Story(row(81), [{"do": "deleted-elsewhere"}], 4, 0, "does not know the batch any more"),
    "a batch is not found for a while": Story(row(81), [{"do": "poll-404", "first": 4}], size=ROWS, full=True),
    "a state is capitalised": Story(row(83), [{"do": "status-capitalised"}]),
    "states are capitalised or unknown": Story(
        row(83), [{"do": "status-capitalised", "p": 0.4}, {"do": "status-unknown", "p": 0.3}], full=True
    ),
    "a state goes backwards": Story(row(83), [{"do": "status-backwards", "nth": [1, 3, 4]}], size=ROWS, full=True),
    "all counts are zero": Story(row(84), [{"do": "counts-zero"}], full=True),
    "the counts contradict the results": Story(row(84), [{"do": "counts-contradict"}], full=True),
    "a lost batch whose counts are zero": Story(row(84), [LOST, {"do": "counts-zero"}], voids=0),
    "results are named late": Story(row(85), [{"do": "output-late", "seconds": 0.6}], dialects=("openai",)),
    "the results are gone": Story(row(86), [{"do": "results-expired"}], 4, 0, "cannot be fetched"),
    "a listing that makes no sense": Story(
        row(87), [LOST, {"do": "html-before", "on": "list", "first": 2}], voids=0, full=True
    ),
    "a listing of another shape": Story(row(87), [LOST, {"do": "list-envelope", "first": 2}], voids=0, full=True),
    "a listing with empty pages": Story(row(87), [LOST, {"do": "list-empty-more", "first": 4}], voids=0),
    "a listing with endless empty pages": Story(
        row(87),
        [LOST, {"do": "list-empty-more", "since": 2}],  # the first listing is that of the start
        1,
        0,
        "makes no sense",
        speed=FAST,
        voids=0,
        open_batches=True,
        full=True,
    ),
    "a listing that repeats itself": Story(row(87), [LOST, {"do": "list-repeat", "first": 4}], voids=0, full=True),
    "a listing of many pages with lost cursors": Story(
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
    "a listing whose pages all repeat the first": Story(
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
    "foreign batches of the same size": Story(row(89), [LOST, {"do": "foreign"}], voids=0),
    "the key is refused": Story(row(91), [{"do": "401-revoked", "on": "create"}], 77, 0, "refuses the key", full=True),
    "the key is refused for uploads": Story(
        row(91), [{"do": "401-echo-key", "on": "upload"}], 77, 0, "refuses the key", dialects=("openai",), full=True
    ),
    "the model is not for this key": Story(
        row(91), [{"do": "403-permission", "on": "create"}], 77, 0, "no access", full=True
    ),
}


@pytest.mark.parametrize(("name", "dialect"), cases(STORIES))
def test_a_run_survives(play: Play, name: str, dialect: str) -> None:
    judge(STORIES[name], *play(name, dialect))


@row(76)
@pytest.mark.full
def test_a_batch_larger_than_the_whole_queue_is_made_smaller(stage: Stage) -> None:
    scene = stage("openai", "--limit", "enqueued_tokens=800")
    done = scene.run(k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    scene.audit(status=True)


@row(80)
@pytest.mark.full
def test_the_rest_of_a_cancelled_run_is_asked_by_the_next_command(stage: Stage) -> None:
    scene = stage("anthropic", rules=[{"do": "cancelled-elsewhere", "seconds": 0.2}])
    assert scene.run(k=ROWS, size=SIZE).code == 1
    assert 0 < scene.billed() < ROWS
    scene.end_faults()
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.billed() == ROWS
    scene.audit(status=True)


@row(81)
@pytest.mark.full
def test_the_user_resolves_an_unresolved_batch(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "deleted-elsewhere", "key": "^[0-9a-f]"}])
    assert scene.run(k=12, size=12).code == 4
    assert scene.run(k=12, size=12).code == 4
    (batch,) = scene.journal("unresolved")
    scene.end_faults()
    done = scene.run("--resolve", f"{batch['nonce']}=void", k=12, size=12)
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert done.report["reserved_usd"] > 0  # it may still be billed
    scene.audit()


@pytest.mark.full
@row(75)
def test_only_the_lines_that_a_refusal_names_have_failed(stage: Stage) -> None:
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
    """The refusal names no line or every line, so asking single lines again would not help."""
    scene = stage("openai", *(("--limit", limit) if limit else ()), rules=rules)
    done = scene.run(k=ROWS, size=size)
    assert (done.code, done.report["failed"], scene.billed()) == (1, 0, 0), done
    assert "the provider rejected batch" in done.stderr
    scene.audit(status=True)


@row(79)
@pytest.mark.full
def test_given_up_rows_are_asked_again_only_with_rebuy_missing(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "expire-none", "seconds": 0.1}])
    assert scene.run(k=SIZE, size=SIZE).code == 6
    assert len(scene.accepted()) == 3
    scene.end_faults()
    assert scene.run(k=SIZE, size=SIZE).code == 6
    done = scene.run("--rebuy-missing", k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@pytest.mark.full
@row(78)
@pytest.mark.parametrize("fault", ["output-null", pytest.param("output-empty", marks=pytest.mark.full)])
def test_rows_are_missing_until_the_provider_names_their_results(stage: Stage, fault: str) -> None:
    scene = stage("openai", rules=[{"do": fault}])
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["missing"], done.report["answered"]) == (6, SIZE, 0), done
    assert "answers are missing" in done.stderr
    assert done.report["spent_usd"] * 1_000_000 > scene.cost()  # it may be paid for, and here it is
    scene.end_faults()
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@pytest.mark.full
@row(82)
def test_a_batch_that_never_ends_is_reported_and_not_bought_again(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "stuck"}])
    client = scene.start(k=SIZE, size=SIZE)
    wait_until(lambda: scene.journal("created") if list(scene.home.glob("cache/*/*/run.json")) else [])
    scene.emulator.advance(26 * 3600)
    assert client.stderr is not None
    said = next(line for line in client.stderr if "past their expected end" in line)
    assert "1 batch in progress at the provider, 1 of them more than an hour past their expected end" in said
    client.send_signal(signal.SIGINT)
    assert ended(client).code == 130
    assert len(scene.accepted()) == 1
    scene.audit(unfinished=True)


@pytest.mark.full
@row(86)
@pytest.mark.parametrize("dialect", BOTH)
def test_expired_results_are_reported_and_not_bought_again(stage: Stage, dialect: str) -> None:
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
def test_a_full_file_store_stops_buying_but_not_collecting(stage: Stage) -> None:
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


@pytest.mark.full
@row(91)
@pytest.mark.parametrize("dialect", BOTH)
def test_the_key_of_another_project_buys_nothing_while_batches_are_open(stage: Stage, dialect: str) -> None:
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


@pytest.mark.full
@row(91)
def test_a_create_of_another_key_is_not_declared_void(stage: Stage) -> None:
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
    assert done.code == 77, done
    assert "was sent with another key" in done.stderr
    assert len(scene.accepted()) == 1
    (intent,) = scene.journal("intent")
    done = scene.run("--resolve", f"{intent['nonce']}={scene.accepted()[0]['batch']}", k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    scene.audit(status=True)


@row(92)
@pytest.mark.parametrize("dialect", BOTH)
def test_the_pilot_finds_that_a_model_does_not_exist(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    done = scene.program("run", *unknown_model(scene), "--pilot", "auto")
    assert done.code == 77, done
    assert not scene.accepted()
    assert not scene.billed()


@row(92)
@pytest.mark.full
def test_a_model_without_batches_ends_the_run_and_fails_no_row(stage: Stage) -> None:
    scene = stage("openai")
    done = scene.program("run", *unknown_model(scene), "--pilot", "none")
    assert (done.code, done.report["failed"], scene.billed()) == (1, 0, 0), done
    assert "the provider rejected batch" in done.stderr


def unknown_model(scene: Scene) -> list[str]:
    """Options for a model that the provider does not have."""
    url = scene.emulator.openai_url if scene.dialect == "openai" else scene.emulator.anthropic_url
    words = [*PROBE, "--model", f"{scene.dialect}:unknown", "--base-url", url, "--price", "1,1", "--sample-k", "12"]
    return [*words, "--json"]


@row(93)
def test_a_model_without_a_price_is_not_asked(stage: Stage) -> None:
    scene = stage("openai")
    words = ("hiring_an", "--set", "data=sample", "--model", "openai:echo", "--base-url", scene.emulator.openai_url)
    done = scene.program("run", *words)
    assert done.code == 2, done
    assert "no price is known for openai:echo: pass --price IN,OUT" in done.stderr
    assert not scene.emulator.events("uploaded")
