"""Old files, other folders, other keys and late providers: what was paid for is found, and not bought again."""

import json
import shutil
import signal
import socket
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, DIALECTS, VARIABLES, Json, Scene, wait_until
from tests.emulator.driver import Emulator
from tests.faults.client_patches import hurry, run_first
from tests.faults.proxy import Call, Proxy
from tests.faults.rows import row

K, SIZE = 24, 12
EACH = pytest.mark.parametrize("dialect", DIALECTS)
MAINLY_OPENAI = pytest.mark.parametrize("dialect", BOTH)
AHEAD = """
import time
real = time.time
time.time = lambda: real() + {seconds}
"""


def remotes(scene: Scene) -> set[str]:
    """The batches that the journal has adopted."""
    return {event["remote"] for event in scene.journal("created", "intent") if event.get("remote")}


def nothing_is_paid_twice(scene: Scene) -> None:
    billed = [
        one
        for event in scene.emulator.events("billed")
        if event.get("owner", "client") == "client"
        for one in event.get("ids", [])
    ]
    rows = [one.split("-", 1)[1] for one in billed]
    assert len(rows) == len(set(rows))


# -- an old journal ------------------------------------------------------------------------------------------


@row(126)
@MAINLY_OPENAI
@pytest.mark.parametrize("how", ["a copy", "cut off"])
def test_an_old_journal_buys_nothing(stage: Stage, dialect: str, how: str) -> None:
    scene = stage(dialect)
    assert scene.run(k=6, size=SIZE).code == 0
    journal = scene.run_folder / "journal"
    old = journal.read_bytes()
    assert scene.run(k=K, size=SIZE).code == 0
    if how == "cut off":
        old = b"".join(journal.read_bytes().splitlines(keepends=True)[:-8])
    journal.write_bytes(old)
    billed = scene.billed()
    done = scene.run(k=K, size=SIZE)
    assert done.code == 65
    assert "is an older copy" in done.stderr
    assert "batchbench salvage" in done.stderr
    assert scene.billed() == billed
    found = scene.program("audit")
    assert found.code == 65
    assert "older copy" in found.stdout + found.stderr


@row(126)
def test_files_of_unknown_batches_stop_a_purchase_also_without_the_marks(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=6, size=SIZE).code == 0
    journal = scene.run_folder / "journal"
    old = journal.read_bytes()
    assert scene.run(k=K, size=SIZE).code == 0
    journal.write_bytes(old)
    (scene.run_folder / "mark").unlink()
    shutil.rmtree(scene.home / "cache" / "marks")
    billed = scene.billed()
    done = scene.run(k=K, size=SIZE)
    assert done.code == 65
    assert "files of batches that its journal does not know" in done.stderr
    assert scene.billed() == billed


@row(126)
def test_an_old_journal_does_not_ask_the_pilot_again(stage: Stage) -> None:
    """No batch is bought yet, but the single questions of the pilot are paid."""
    scene = stage("openai")
    assert scene.run("--collect", k=K, size=SIZE).code == 6
    journal = scene.run_folder / "journal"
    old = journal.read_bytes()
    scene.run("--pilot", "auto", k=K, size=SIZE, crash="before-intent:1")
    asked = len(scene.journal("passed"))
    assert asked
    journal.write_bytes(old)
    done = scene.run("--pilot", "auto", k=K, size=SIZE)
    assert done.code == 65, done
    assert "is an older copy" in done.stderr
    assert scene.billed() == asked


@row(127)
@EACH
def test_batches_that_a_restored_home_does_not_know_are_adopted(stage: Stage, dialect: str, tmp_path: Path) -> None:
    """A snapshot of the disk takes the marks back, too; here even the inode stays the same."""
    scene = stage(dialect)
    assert scene.run(k=6, size=SIZE).code == 0
    shutil.copytree(scene.home, tmp_path / "snapshot")
    assert scene.run(k=K, size=SIZE).code == 0
    restore(scene.home, tmp_path / "snapshot")
    done = scene.run(k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.billed() == K
    nothing_is_paid_twice(scene)
    scene.audit(status=True)
    assert scene.program("audit").code == 0


@row(127)
def test_results_that_cannot_be_read_at_once_may_be_those_of_this_run(stage: Stage, tmp_path: Path) -> None:
    """At Anthropic only results show whose a batch is; the second read of each is that of the restored home."""
    scene = stage("anthropic", rules=[{"do": "500-before", "on": "results", "nth": [2]}])
    assert scene.run(k=6, size=SIZE).code == 0
    shutil.copytree(scene.home, tmp_path / "snapshot")
    assert scene.run(k=K, size=SIZE).code == 0
    restore(scene.home, tmp_path / "snapshot")
    done = scene.run(k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.emulator.events("fault")
    assert scene.billed() == K
    scene.audit(status=True)


@pytest.mark.full
@row(127)
@pytest.mark.parametrize("place", ["[0-9]*7-0$", "-6-0$"], ids=["inside", "at the beginning"])
def test_a_request_whose_result_has_lost_its_id_is_not_bought_again(stage: Stage, tmp_path: Path, place: str) -> None:
    scene = stage("anthropic", rules=[{"do": "line-unknown-id", "key": place}])
    assert scene.run(k=6, size=SIZE).code == 0
    shutil.copytree(scene.home, tmp_path / "snapshot")
    assert scene.run(k=K, size=SIZE).code == 6
    restore(scene.home, tmp_path / "snapshot")
    done = scene.run(k=K, size=SIZE)
    assert done.code == 6
    assert done.report["missing"] >= 1
    assert scene.billed() <= K
    nothing_is_paid_twice(scene)


@row(127)
@EACH
def test_an_adopted_batch_is_read_whole(stage: Stage, dialect: str, tmp_path: Path) -> None:
    """The list of its requests is cut off between two lines, which no length shows."""
    read = 2 if dialect == "openai" else 3  # of the files of a batch; Anthropic shows its requests in its results
    scene = stage(dialect, rules=[{"do": "cut-line", "nth": [read]}])
    assert scene.run(k=6, size=SIZE).code == 0
    shutil.copytree(scene.home, tmp_path / "snapshot")
    assert scene.run(k=K, size=SIZE).code == 0
    restore(scene.home, tmp_path / "snapshot")
    done = scene.run(k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.emulator.events("fault")
    nothing_is_paid_twice(scene)
    scene.audit(status=True)


@row(127)
def test_a_remote_audit_names_the_batches_that_a_restored_home_does_not_know(stage: Stage, tmp_path: Path) -> None:
    scene = stage("openai")
    assert scene.run(k=6, size=SIZE).code == 0
    shutil.copytree(scene.home, tmp_path / "snapshot")
    assert scene.run(k=K, size=SIZE).code == 0
    restore(scene.home, tmp_path / "snapshot")
    found = scene.program("audit", "--remote", "--base-url", scene.emulator.openai_url)
    assert found.code == 65
    assert "not in the journal" in found.stdout


@pytest.mark.full
@row(127)
def test_a_running_batch_that_a_restored_home_does_not_know_is_waited_for(stage: Stage, tmp_path: Path) -> None:
    """At Anthropic nothing shows whose a running batch is, but it has the size of the batch that would be next."""
    scene = stage("anthropic", "--delay", "processing=3")
    assert scene.run("--detach", k=6, size=K).code == 6
    shutil.copytree(scene.home, tmp_path / "snapshot")
    assert scene.run("--detach", k=K, size=K).code == 6
    restore(scene.home, tmp_path / "snapshot")
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.billed() == K
    nothing_is_paid_twice(scene)
    scene.audit(status=True)


def restore(home: Path, snapshot: Path) -> None:
    """Give every file its old content, and keep the inodes of those that still exist."""
    kept = {path.relative_to(snapshot) for path in snapshot.rglob("*") if path.is_file()}
    for path in [path for path in home.rglob("*") if path.is_file()]:
        if path.relative_to(home) in kept:
            path.write_bytes((snapshot / path.relative_to(home)).read_bytes())
        else:
            path.unlink()


# -- another folder, another spelling -------------------------------------------------------------------------


@row(132)
@MAINLY_OPENAI
def test_a_new_folder_does_not_buy_what_the_provider_has(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    assert scene.run(k=K, size=SIZE).code == 0
    shutil.rmtree(scene.run_folder)
    refused = scene.run(k=K, size=SIZE)
    assert refused.code == 4
    assert "--adopt takes their answers, --anew buys everything again" in refused.stderr
    assert scene.billed() == K
    done = scene.run("--adopt", k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.billed() == K
    scene.audit(status=True)


@pytest.mark.full
@row(132)
def test_a_new_folder_waits_for_a_running_batch_that_may_be_of_the_old_one(stage: Stage) -> None:
    """The mark outside the removed folder shows that there was a run."""
    scene = stage("anthropic", "--delay", "processing=3")
    assert scene.run("--detach", k=K, size=K).code == 6
    shutil.rmtree(scene.run_folder)
    refused = scene.run(k=K, size=K)
    assert refused.code == 4
    assert "--adopt takes their answers, --anew buys everything again" in refused.stderr
    done = scene.run("--adopt", k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.billed() == K
    scene.audit(status=True)


@row(132)
@MAINLY_OPENAI
def test_a_new_folder_buys_anew_on_request(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    assert scene.run(k=K, size=SIZE).code == 0
    shutil.rmtree(scene.run_folder)
    done = scene.run("--anew", k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.billed() == 2 * K
    assert scene.run(k=K, size=SIZE).code == 0
    assert scene.billed() == 2 * K


@pytest.mark.full
@row(133)
def test_other_spellings_of_an_address_are_the_same_run(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=K, size=SIZE).code == 0
    port = scene.emulator.port
    for address in (
        f"localhost:{port}/openai/v1",
        f"127.0.0.1:0{port}/openai/v1",
        f"127.0.0.1:{port}/x/../openai/./v1/",
        f"127.0.0.1:{port}/%6Fpen%61i/v1",
    ):
        done = scene.run("--base-url", f"HTTP://{address}", k=K, size=SIZE)
        assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.billed() == K
    assert len(list(scene.home.glob("cache/*/*/run.json"))) == 1


@row(133)
def test_a_run_that_was_begun_with_another_spelling_is_continued(stage: Stage) -> None:
    """A run of an older version, whose folder has the name that its own spelling makes."""
    scene = stage("openai")
    scene.emulator.openai_url = scene.emulator.openai_url.replace("127.0.0.1", "localhost")
    assert scene.run(k=6, size=SIZE).code == 0
    folder = scene.run_folder
    target = json.loads((folder / "run.json").read_bytes())["target"]
    assert "localhost" in target["base_url"]
    scene.emulator.openai_url = scene.emulator.openai_url.replace("localhost", "127.0.0.1")
    done = scene.run(k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.run_folder == folder
    assert scene.billed() == K


@row(133)
def test_another_run_of_the_same_model_is_mentioned(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=6, size=SIZE).code == 0
    done = scene.run("--max-tokens", "299", k=6, size=SIZE)
    assert done.code == 0
    assert "has 6 answers of openai:echo to the same prompts with other settings" in done.stderr


# -- a provider that is late ---------------------------------------------------------------------------------


@pytest.mark.full
@row(128)
@pytest.mark.parametrize(
    "late", [[{"do": "output-late", "on": "poll", "seconds": 60}], [{"do": "output-null", "on": "poll"}]]
)
def test_a_stopped_batch_whose_files_are_named_late_is_not_bought_again(stage: Stage, late: list[Json]) -> None:
    scene = stage("openai", rules=[{"do": "expire-half", "on": "create", "seconds": 1, "first": 1}, *late])
    done = scene.run(k=K, size=K)
    assert done.code == 6
    assert (done.report["answered"], done.report["missing"]) == (0, K)
    assert done.report["spent_usd"] > 0
    assert len(scene.accepted()) == 1
    scene.end_faults()
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K)
    nothing_is_paid_twice(scene)
    scene.audit(status=True)


@row(128)
def test_a_batch_that_another_user_cancelled_is_fetched_when_its_files_are_named(stage: Stage) -> None:
    rules: list[Json] = [{"do": "cancelled-elsewhere", "seconds": 0.2}, {"do": "output-null", "on": "poll"}]
    scene = stage("openai", "--delay", "processing=0.4", rules=rules)
    assert scene.run(k=K, size=K).code in (1, 6)
    scene.end_faults()
    assert scene.run(k=K, size=K).code == 0
    nothing_is_paid_twice(scene)
    scene.audit(status=True)


@row(129)
def test_a_batch_that_is_called_failed_keeps_its_answers(stage: Stage) -> None:
    scene = stage("openai")

    def rename(call: Call, connection: socket.socket) -> bool:
        return answered(connection, between.answer(call).replace(b'"status":"completed"', b'"status":"failed"'))

    with Proxy(scene, rename) as between:
        for _ in range(2):
            done = scene.run(k=K, size=SIZE)
            assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.billed() == K
    scene.audit(status=True)


@pytest.mark.full
@row(130)
@MAINLY_OPENAI
def test_the_same_rows_are_not_bought_a_third_time_after_two_lost_creates(stage: Stage, dialect: str) -> None:
    """The listing is later than the settle time allows, so the first verdict is wrong. The second one is left open."""
    rules: list[Json] = [{"do": "list-lag", "on": "list", "seconds": 600}, {"do": "reset-after", "on": "create"}]
    scene = stage(dialect, rules=rules)
    done = scene.run(k=SIZE, size=SIZE)
    assert done.code == 4
    assert "like an earlier batch of the same requests" in done.stderr
    assert len(scene.accepted()) == 2
    scene.end_faults()
    scene.emulator.advance(2000)
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, SIZE)
    assert len(scene.accepted()) == 2
    scene.audit(status=True, late_listing=True)


@row(131)
@MAINLY_OPENAI
def test_a_batch_that_the_user_calls_void_is_found_in_the_listing(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "poll-404", "on": "poll"}])
    assert scene.run(k=K, size=K).code == 4
    nonce = scene.journal("intent")[-1]["nonce"]
    scene.end_faults()
    done = scene.run("--resolve", f"{nonce}=void", k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert len(scene.accepted()) == 1
    scene.audit(status=True)


@pytest.mark.full
@row(131)
def test_a_batch_that_the_user_calls_void_keeps_its_reserve(stage: Stage) -> None:
    """The provider may know it again, so a day later its cost still counts against the budget."""
    scene = stage("openai", rules=[{"do": "poll-404", "on": "poll"}, {"do": "list-lag", "seconds": 3600}])
    assert scene.run(k=K, size=K).code == 4
    (intent,) = scene.journal("intent")
    budget = ("--budget", str((intent["reserve"] + 100) / 1e6))
    assert scene.run(*budget, "--resolve", f"{intent['nonce']}=void", k=K, size=K).code == 3
    assert scene.journal("void")
    run_first(scene, AHEAD.format(seconds=90_000))  # 25 hours later by the wall clock
    assert scene.run(*budget, k=K, size=K).code == 3
    assert len(scene.accepted()) == 1
    scene.end_faults()
    done = scene.run(*budget, k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert len(scene.accepted()) == 1


@pytest.mark.full
@row(131)
def test_the_reserve_of_a_create_that_never_left_is_free_after_a_day(stage: Stage) -> None:
    scene = stage("openai")
    scene.run(k=K, size=K, crash="once-before-send:1")
    (intent,) = scene.journal("intent")
    budget = ("--budget", str((intent["reserve"] + 100) / 1e6))
    assert scene.run(*budget, k=K, size=K).code == 3  # void, but its money is held
    assert scene.journal("void")
    scene.emulator.advance(30 * 3600)
    done = scene.run(*budget, k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.journal("cleared")
    scene.audit(status=True)


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.full
@row(134)
@MAINLY_OPENAI
@pytest.mark.parametrize("crash", ["once-after-reply:1", "after-created:1"])
def test_another_key_concludes_nothing(
    stage: Stage, dialect: str, crash: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other key belongs to another project, which has no batches."""
    scene = stage(dialect, "--delay", "processing=0.5")
    scene.run(k=K, size=K, crash=crash)
    events = scene.journal()
    scene.emulator.stop()
    with monkeypatch.context() as patch:
        patch.setattr("tests.emulator.driver.TOKEN", "another-key")
        other = Emulator(tmp_path / "other", "--port", str(scene.emulator.port))
    scene.environment[VARIABLES[dialect]] = "another-key"
    done = scene.run(k=K, size=K)
    assert done.code == 77, done
    assert "was sent with another key" in done.stderr
    assert scene.journal() == events
    other.stop()
    del scene.environment[VARIABLES[dialect]]
    scene.emulator.words += ["--port", str(scene.emulator.port)]
    scene.emulator.start()
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.billed() == K
    scene.audit(status=True)


@pytest.mark.full
@row(134)
@MAINLY_OPENAI
def test_results_that_could_not_be_fetched_are_fetched_at_the_next_start(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "results-expired", "on": ["content", "results"]}])
    assert scene.run(k=K, size=SIZE).code == 4
    scene.end_faults()
    done = scene.run(k=K, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, K)
    assert scene.billed() == K
    assert not scene.journal("duplicate")
    scene.audit(status=True)


# -- creates and replies -------------------------------------------------------------------------------------


def listing(call: Call) -> bool:
    return call.method == "GET" and call.path.partition("?")[0].endswith("batches")


def creates(call: Call) -> bool:
    return call.method == "POST" and call.path.endswith("batches")


def answered(connection: socket.socket, reply: bytes) -> bool:
    """Send a reply whose body was changed; the connection is closed after it."""
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"content-length", b"connection"))]
    lines += [b"content-length: %d" % len(body), b"connection: close"]
    connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    return True


@pytest.mark.full
@row(135)
@MAINLY_OPENAI
def test_the_settle_time_begins_when_the_create_can_have_left(stage: Stage, dialect: str) -> None:
    """The process was frozen before it sent the create. The listing shows it four seconds later, within the settle
    time of the next process, but not within that of the line in the journal."""
    rules: list[Json] = [
        {"do": "list-lag", "on": "list", "seconds": 4},
        {"do": "hang-after", "on": "create", "seconds": 30, "first": 1},
    ]
    scene = stage(dialect, rules=rules)
    process = scene.start("--settle", 5, k=K, size=K, crash="once-before-send:1:STOP")
    wait_until(lambda: scene.home.glob("cache/*/*/journal") and "creating" in last_events(scene))
    time.sleep(6)
    process.send_signal(signal.SIGCONT)
    wait_until(scene.accepted)
    process.kill()
    done = scene.run("--settle", 5, k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert len(scene.accepted()) == 1
    scene.audit(status=True)


def last_events(scene: Scene) -> list[str]:
    return [event["event"] for event in scene.journal()] if list(scene.home.glob("cache/*/*/run.json")) else []


@row(136)
@MAINLY_OPENAI
def test_a_create_is_found_behind_a_gateway_whose_clock_is_wrong(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    lost: list[Call] = []

    def ahead(call: Call, connection: socket.socket) -> bool:
        reply = between.answer(call)
        if creates(call) and not lost:
            lost.append(call)
            return True  # the connection is closed without a reply
        head, _, body = reply.partition(b"\r\n\r\n")
        date = f"date: {formatdate(time.time() + 1200, usegmt=True)}".encode()
        lines = [date if line.lower().startswith(b"date:") else line for line in head.split(b"\r\n")]
        return answered(connection, b"\r\n".join(lines) + b"\r\n\r\n" + body)

    with Proxy(scene, ahead) as between:
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert len(scene.accepted()) == 1
    scene.audit(status=True)


@row(136)
def test_a_create_is_found_in_a_listing_that_begins_with_the_oldest(stage: Stage) -> None:
    scene = stage("openai")
    for name in ("one", "two", "three"):
        batch = scene.emulator.submit(name, 2)
        scene.emulator.wait(batch)
    scene.emulator.advance(400_000)
    run_first(scene, AHEAD.format(seconds=400_000))

    def oldest_first(call: Call, connection: socket.socket) -> bool:
        if not listing(call):
            return False
        everything = between.answer(call._replace(path=call.path.partition("?")[0] + "?limit=100"))
        head, _, body = everything.partition(b"\r\n\r\n")
        found = json.loads(body)["data"][::-1]
        after = parse_qs(urlsplit(call.path).query).get("after", [""])[0]
        start = next((number + 1 for number, one in enumerate(found) if one["id"] == after), 0)
        page = {"data": found[start : start + 2], "has_more": start + 2 < len(found)}
        return answered(connection, head + b"\r\n\r\n" + json.dumps(page).encode())

    with Proxy(scene, oldest_first) as between:
        scene.run(k=K, size=K, crash="once-after-reply:1")
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert [event["event"] for event in scene.journal("void")] == []
    assert scene.journal("created")[-1]["found"]


@row(137)
@MAINLY_OPENAI
def test_the_reply_to_a_create_is_about_another_batch(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    first: list[bytes] = []

    def repeat(call: Call, connection: socket.socket) -> bool:
        if not creates(call):
            return False
        first.append(between.answer(call))
        return answered(connection, first[0] if len(first) == 2 else first[-1])

    with Proxy(scene, repeat) as between:
        done = scene.run(k=K, size=SIZE + 1)  # batches of different sizes
    assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.billed() == K
    assert not scene.journal("duplicate")
    scene.audit(status=True)


@row(137)
def test_the_reply_to_a_create_is_about_a_batch_of_another_run(stage: Stage) -> None:
    """Two models of one command are asked the same questions, so that their batches have equal sizes."""
    scene = stage("anthropic")
    first: list[bytes] = []

    def repeat(call: Call, connection: socket.socket) -> bool:
        if not creates(call):
            return False
        first.append(between.answer(call))
        return answered(connection, first[0])

    with Proxy(scene, repeat) as between:
        done = scene.run("--model", "anthropic:random", k=K, size=K)
    assert [one["answered"] for one in json.loads(done.stdout)] == [K, K], done
    assert scene.billed() == 2 * K


@pytest.mark.full
@row(137)
@MAINLY_OPENAI
def test_a_wrong_id_for_a_lost_create_is_refused(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    assert scene.run(k=6, size=K).code == 0
    other = scene.journal("created")[0]["remote"]
    scene.run(k=K, size=K, crash="once-after-reply:1")
    nonce = scene.journal("creating")[-1]["nonce"]
    events = scene.journal()
    for answer in (other, "batch_of_nobody"):
        refused = scene.run("--resolve", f"{nonce}={answer}", k=K, size=K)
        assert refused.code == 2, refused
        assert scene.journal() == events
    done = scene.run("--resolve", f"{nonce}=void", k=K, size=K)  # the listing shows that it is not
    assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.billed() == K
    scene.audit(status=True)


@row(137)
def test_an_id_is_refused_while_nothing_shows_whose_batch_it_is(stage: Stage) -> None:
    """A running batch of another user has the size of the lost create."""
    scene = stage("anthropic", rules=[{"do": "stuck", "on": "create", "key": "other.*"}])
    scene.run(k=K, size=K, crash="once-after-reply:1")
    other = scene.emulator.submit_messages("other", K)
    nonce = scene.journal("creating")[-1]["nonce"]
    refused = scene.run("--resolve", f"{nonce}={other}", k=K, size=K)
    assert refused.code == 2, refused
    assert "run the same command when it has ended" in refused.stderr
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    assert scene.billed() == K
    assert not scene.journal("duplicate")


# -- batches of others ---------------------------------------------------------------------------------------


@row(138)
def test_a_batch_of_another_user_that_never_ends_does_not_hold_a_run(stage: Stage) -> None:
    """It has the size of a create that never left. After its announced end, the user is asked."""
    scene = stage("anthropic", rules=[{"do": "stuck", "on": "create", "key": "other.*"}])
    scene.emulator.submit_messages("other", K)
    scene.run(k=K, size=K, crash="once-before-send:1")
    scene.emulator.advance(28 * 3600)
    run_first(scene, AHEAD.format(seconds=28 * 3600))
    done = scene.run(k=K, size=K)
    assert done.code == 4, done
    assert "does not end" in done.stderr


@row(138)
def test_batches_of_another_user_are_read_once(stage: Stage) -> None:
    scene = stage("anthropic")
    for number in range(40):
        scene.emulator.wait(scene.emulator.submit_messages(f"other{number}", K))
    with Proxy(scene) as between:
        assert scene.run(k=6, size=6).code == 0
        first = len(between.asked("GET", "/results"))
        assert scene.run(k=K, size=K - 6).code == 0
        second = len(between.asked("GET", "/results")) - first
    assert (first, second) == (41, 1)  # those of others once, and the run's own
    assert len(scene.journal("foreign")) == 1


@pytest.mark.full
@row(138)
def test_a_running_batch_of_another_user_with_the_size_of_the_next_one_can_be_ignored(stage: Stage) -> None:
    """It is younger than the journal, so it may be a forgotten one. The user decides, once."""
    scene = stage("anthropic", rules=[{"do": "stuck", "on": "create", "key": "other.*"}])
    assert scene.run(k=6, size=K).code == 0
    other = scene.emulator.submit_messages("other", K - 6)
    hurry(scene, 100)
    done = scene.run(k=K, size=K)
    assert done.code == 4, done
    assert f"running batches may belong to this run ({other})" in done.stderr
    assert len(scene.accepted()) == 2
    done = scene.run("--anew", k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    nothing_is_paid_twice(scene)


@row(138)
def test_a_running_batch_of_another_run_in_the_home_holds_nobody(stage: Stage) -> None:
    """Two models are asked the same questions, so that their batches have equal sizes."""
    scene = stage("anthropic", "--delay", "processing=300")
    assert scene.run("--detach", k=6, size=K).code == 6
    shutil.rmtree(scene.run_folder)  # its mark remains
    scene.model = "random"
    assert scene.run("--detach", k=K, size=K).code == 6
    scene.model = "unbiased"
    assert scene.run("--detach", k=K, size=K).code == 6
    assert [event["n"] for event in scene.accepted()] == [6, K, K]
