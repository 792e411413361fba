"""The client dies between two steps of a batch: the next start continues, and pays once."""

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS, Ran, Scene, kill, wait_until
from tests.faults.rows import row

KILLED = -9
ROWS, SIZE = 12, 5  # three batches, two at a time
MANY = 1000


def die(scene: Scene, *places: str) -> None:
    """Start the client once per crash point; each start dies there."""
    for place in places:
        ran = scene.run("--settle", "1", k=ROWS, size=SIZE, crash=place if ":" in place else f"{place}:1")
        assert ran.code == KILLED, (place, ran)


def recover(scene: Scene, *words: str | int) -> Ran:
    """Run the same command again: every answer is there and was paid for once."""
    done = scene.run(*words, k=ROWS, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    scene.audit(status=True)
    return done


def torn(scene: Scene) -> bool:
    return not (scene.run_folder / "journal").read_bytes().endswith(b"\n")


@pytest.mark.full
@row(3)
def test_death_before_an_intent_leaves_nothing_behind(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "before-opened", "torn-opened", "after-opened", "before-asked", "torn-asked", "after-asked")
    die(scene, "before-intent")
    assert not scene.journal("intent")
    recover(scene)


@row(4)
def test_half_a_line_of_an_intent_is_cut_off(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "torn-intent:2")
    assert torn(scene)
    assert "the last line is torn" in scene.program("audit").stdout
    recover(scene)
    assert not scene.emulator.events("deleted")


@row(5)
def test_an_intent_that_was_not_sent_is_dropped_and_its_rows_are_asked_again(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "after-intent")
    assert not scene.emulator.events("uploaded")
    recover(scene, "--settle", 600)  # it does not wait
    assert [event["reason"] for event in scene.journal("rejected")] == ["interrupted before it was sent"]


@row(6)
def test_an_upload_that_was_not_noted_is_no_purchase(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "before-uploaded", "torn-uploaded")
    idle = {event["nonce"] for event in scene.emulator.events("uploaded")}
    assert idle
    assert not scene.accepted()
    recover(scene, "--settle", 600)
    assert not idle & {event["nonce"] for event in scene.accepted()}


@row(7)
def test_an_uploaded_batch_that_was_not_created_is_asked_again_at_once(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "after-uploaded", "before-creating", "torn-creating")
    assert not scene.accepted()
    recover(scene, "--settle", 600)
    assert not scene.journal("void")


@row(8)
def test_a_create_that_may_have_been_sent_is_searched_for_before_it_is_repeated(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "after-creating", "once-before-send")
    assert not scene.accepted()
    recover(scene)
    assert scene.journal("void")


@row(9)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_death_between_acceptance_and_reply_pays_once(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "hang-after", "on": "create", "seconds": 60}])
    client = scene.start(k=MANY, size=250)
    wait_until(scene.accepted)
    kill(client)
    accepted, sent = len(scene.accepted()), len(scene.journal("creating"))
    scene.end_faults()
    assert scene.run(k=MANY, size=250).code == 0
    assert scene.billed() == MANY
    found = sum(event["found"] for event in scene.journal("created"))
    assert accepted <= found <= sent  # the emulator may accept a create after its client was killed
    scene.audit(status=True)


@row(10)
def test_a_batch_whose_reply_was_not_noted_is_found(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "once-after-reply", "before-created")
    bought = len(scene.accepted())
    recover(scene)
    assert sum(event["found"] for event in scene.journal("created")) == bought > 0


@row(11)
def test_a_batch_whose_created_line_is_torn_is_found(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "torn-created")
    assert torn(scene)
    recover(scene)
    assert any(event["found"] for event in scene.journal("created"))


@row(12)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_death_while_batches_run_changes_nothing(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=1.5")
    client = scene.start(k=MANY, size=250)
    wait_until(lambda: len(scene.journal("created")) >= 4 if scene.accepted() else 0)
    kill(client)
    assert scene.billed() == 0
    assert scene.run(k=MANY, size=250).code == 0
    assert (scene.billed(), len(scene.accepted())) == (MANY, len(scene.journal("created")))
    scene.audit(status=True)


@pytest.mark.full
@row(13)
def test_death_before_a_download_downloads_it_later(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "after-created", "before-ended", "torn-ended", "after-ended")
    assert not scene.emulator.events("downloaded")
    recover(scene)


@row(14)
def test_death_in_the_middle_of_a_download_downloads_it_again(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "download-piece")
    assert not list(scene.run_folder.glob("raw/[!.]*"))
    assert list(scene.run_folder.glob("raw/.scratch-*"))
    recover(scene)
    assert not list(scene.run_folder.rglob(".scratch-*"))


@row(15)
def test_death_at_any_step_of_storing_results_counts_none_twice(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "segment-written", "segment-synced", "segment-renamed")
    die(scene, "answers-before", "answers-after", "before-stored")
    assert not scene.journal("stored")
    recover(scene)


@row(16)
def test_results_on_disk_with_a_torn_journal_line_are_not_downloaded_again(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "torn-stored")
    assert torn(scene)
    kept = {path.name for path in scene.run_folder.glob("raw/[!.]*")}
    fetched = {event["file"] for event in scene.emulator.events("downloaded")}
    recover(scene)
    after = [event["file"] for event in scene.emulator.events("downloaded") if event["file"] in fetched]
    assert kept
    assert sum(after.count(file) == 1 for file in fetched) >= len(kept)


@row(17)
def test_the_cost_of_a_stored_batch_counts_once_and_its_reserve_is_released(stage: Stage) -> None:
    scene = stage("openai")
    die(scene, "after-stored")
    (stored,) = scene.journal("stored")
    assert scene.status()["spent_usd"] == stored["cost"] / 1e6
    done = recover(scene, "--budget", "1")
    assert (done.report["spent_usd"], done.report["reserved_usd"]) == (scene.cost() / 1e6, 0)


@row(18)
def test_rows_to_ask_again_are_in_one_open_batch_wherever_planning_dies(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "expire-half", "seconds": 0.1}])
    die(scene, "before-intent:4", "torn-intent:1", "after-intent:1")
    assert scene.journal("stored")[0]["again"]
    scene.end_faults()
    recover(scene)
