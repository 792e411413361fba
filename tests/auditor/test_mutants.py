"""The auditor is worth what it catches: a good run passes, and every way of breaking it is found."""

import ast
import hashlib
import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.auditor.evidence import zstd
from tests.auditor.invariants import INVARIANTS, audit, load
from tests.dispatch.conftest import manifests as manifests  # a fixture
from tests.dispatch.scene import Scene

Json = dict[str, Any]
BUDGET = 20_000  # micro-dollars


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Path:
    """A run in which something was lost, found, expired and asked again, within a budget; with somebody else about."""
    folder = tmp_path_factory.mktemp("good") / "scene"
    rules = [
        {"do": "reset-after", "on": "create", "p": 0.5},
        {"do": "foreign", "key": "^[0-7]"},
        {"do": "expire-half", "seconds": 0.1, "key": "^[8-f]"},
    ]
    scene = Scene(folder, manifests, "openai", rules=rules)
    done = scene.run("--budget", "0.02", k=80, size=5)
    if done.code == 6:  # by the draw of the nonces, a row has expired three times
        scene.end_faults()
        done = scene.run("--budget", "0.02", "--rebuy-missing", k=80, size=5)
    scene.close()
    assert done.code == 0, done
    return folder


class Copy:
    """A run and its ledger, to be broken."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "state" / "ledger.jsonl"
        self.run = next(folder.glob("home/cache/*/*/run.json")).parent
        self.manifest = folder / "home" / "manifests" / self.run.parent.name
        lines = (self.run / "journal").read_bytes().split(b"\n")[:-1]
        self.journal: list[Json] = [json.loads(line.split(b" ", 2)[2]) for line in lines]
        self.events: list[Json] = [json.loads(line) for line in self.ledger.read_bytes().split(b"\n") if line]

    def write(self) -> None:
        """Put the journal, chained anew, and the ledger back."""
        crc, out = 0, b""
        for seq, event in enumerate(self.journal):
            body = b"%d %s" % (seq, json.dumps(event).encode())
            crc = zlib.crc32(body, crc)
            out += b"%08x %s\n" % (crc, body)
        (self.run / "journal").write_bytes(out)
        self.ledger.write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in self.events))

    def last(self, kind: str) -> Json:
        return [event for event in self.journal if event["event"] == kind][-1]

    def whole(self) -> Json:
        """The last batch whose rows were all answered."""
        stored = [event for event in self.journal if event["event"] == "stored" and event["answered"] > 1]
        frames = {event["nonce"]: pl.read_parquet(self.run / event["parts"][-1]["file"]) for event in stored}
        return [event for event in stored if set(frames[event["nonce"]]["outcome"]) == {"answered"}][-1]

    def mine(self, kind: str) -> list[Json]:
        """Ledger events about our own batches."""
        ours = {e["batch"] for e in self.events if e["event"] == "accepted" and e.get("owner", "client") == "client"}
        return [e for e in self.events if e["event"] == kind and e["batch"] in ours]

    def answers(self, stored: Json, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change a file of answers, and seal it again."""
        self.seal(stored, "answers/", lambda path: change(pl.read_parquet(path)).write_parquet(path))

    def seal(self, stored: Json, folder: str, change: Callable[[Path], object]) -> None:
        part = next(part for part in stored["parts"] if part["file"].startswith(folder))
        change(self.run / part["file"])
        content = (self.run / part["file"]).read_bytes()
        part |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def a_created_is_dropped(run: Copy) -> None:
    run.journal.remove(run.last("created"))


def an_intent_is_dropped(run: Copy) -> None:
    nonce = run.last("stored")["nonce"]
    run.journal = [event for event in run.journal if event.get("nonce") != nonce]


def a_batch_is_adopted_twice(run: Copy) -> None:
    first, second = [event for event in run.journal if event["event"] == "created"][:2]
    second["remote"] = first["remote"]


def a_foreign_batch_is_adopted(run: Copy) -> None:
    stranger = next(e for e in run.events if e["event"] == "accepted" and e.get("owner") == "someone else")
    run.last("created")["remote"] = stranger["batch"]


def ours_is_called_foreign(run: Copy) -> None:
    run.journal.append({"event": "foreign", "at": run.journal[-1]["at"], "remote": run.mine("accepted")[0]["batch"]})


def the_same_rows_are_accepted_twice(run: Copy) -> None:
    """As a create that is sent again blindly does, reported as if the second were the only one."""
    first = run.mine("accepted")[0]
    place = run.events.index(first)
    run.events.insert(place + 1, {**first, "batch": "batch_again"})
    for kind in ("validated", "billed", "ended"):
        event = next(e for e in run.events if e["event"] == kind and e["batch"] == first["batch"])
        run.events.insert(run.events.index(event) + 1, {**event, "batch": "batch_again"})


def a_row_is_asked_while_it_is_running(run: Copy) -> None:
    again = next(e for e in run.events if e["event"] == "ended" and e["outcome"] == "expired")
    run.events.remove(again)
    run.events.append(again)


def an_answer_is_billed_twice(run: Copy) -> None:
    billed = run.mine("billed")[0]
    run.events.insert(run.events.index(billed), billed)


def two_answers_are_swapped(run: Copy) -> None:
    def swap(frame: pl.DataFrame) -> pl.DataFrame:
        texts = frame["text"].to_list()
        return frame.with_columns(text=pl.Series([texts[1], texts[0], *texts[2:]]))

    run.answers(run.whole(), swap)


def ids_and_lines_are_joined_by_their_order(run: Copy) -> None:
    run.answers(run.whole(), lambda frame: frame.with_columns(text=pl.col("text").reverse()))


def an_answer_is_dropped(run: Copy) -> None:
    stored = run.whole()
    run.answers(stored, lambda frame: frame[1:])
    stored["answered"] -= 1


def an_answer_is_dropped_and_called_missing(run: Copy) -> None:
    stored = run.whole()
    first = pl.read_parquet(run.run / stored["parts"][-1]["file"])["id"][0]
    an_answer_is_dropped(run)
    stored["missing"] = [[first, first + 1]]


def an_answer_is_kept_twice(run: Copy) -> None:
    stored = run.whole()
    run.answers(stored, lambda frame: pl.concat([frame, frame[:1]]))
    stored["answered"] += 1


def an_answer_is_invented(run: Copy) -> None:
    """A row that the provider never answered turns up, with the right text."""
    event = run.mine("billed")[-1]
    for name in ("ids", "inputs", "outputs", "costs", "texts"):
        event[name] = event[name][1:]
    event["cost"] = sum(event["costs"])


def a_raw_line_is_lost(run: Copy) -> None:
    def cut(path: Path) -> None:
        lines = zstd.decompress(path.read_bytes()).split(b"\n")
        path.write_bytes(zstd.compress(b"\n".join(lines[1:])))

    stored = run.whole()
    run.seal(stored, "raw/", cut)
    run.answers(stored, lambda frame: frame[1:])
    stored["answered"] -= 1
    stored["cost"] -= 1


def a_raw_file_is_damaged(run: Copy) -> None:
    path = run.run / run.whole()["parts"][0]["file"]
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def a_reserve_is_too_small(run: Copy) -> None:
    run.last("intent")["reserve"] = 10


def a_cost_is_noted_too_low(run: Copy) -> None:
    run.whole()["cost"] -= 1


def the_budget_is_exceeded_on_paper(run: Copy) -> None:
    for event in run.journal:
        if event["event"] == "asked":
            event["budget"] = 3_000


def the_provider_bills_more_than_the_budget(run: Copy) -> None:
    run.mine("billed")[-1]["cost"] += BUDGET


def an_intent_comes_after_the_acceptance(run: Copy) -> None:
    run.last("intent")["at"] += 3600
    run.last("creating")["at"] += 3600


def a_create_is_sent_without_its_record(run: Copy) -> None:
    run.journal.remove(run.last("creating"))


def a_row_is_forgotten(run: Copy) -> None:
    event = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    event["again"] = event["again"][1:]


def a_stranger_lies_in_the_folder(run: Copy) -> None:
    (run.run / "answers" / "0123456789.json").write_text("{}")


def others_may_read_the_answers(run: Copy) -> None:
    (run.run / run.whole()["parts"][-1]["file"]).chmod(0o644)


def the_prompts_are_changed(run: Copy) -> None:
    path = run.manifest / "00000.parquet"
    pl.read_parquet(path).with_columns(prompt=pl.col("prompt") + ".").write_parquet(path)


MUTANTS: dict[Callable[[Copy], None], str] = {
    a_created_is_dropped: "I1",
    an_intent_is_dropped: "I1",
    a_batch_is_adopted_twice: "I1",
    a_foreign_batch_is_adopted: "I2",
    ours_is_called_foreign: "I2",
    the_same_rows_are_accepted_twice: "I3",
    a_row_is_asked_while_it_is_running: "I3",
    an_answer_is_billed_twice: "I4",
    two_answers_are_swapped: "I5",
    ids_and_lines_are_joined_by_their_order: "I7",
    an_answer_is_dropped: "I5",
    an_answer_is_dropped_and_called_missing: "I5",
    an_answer_is_kept_twice: "I8",
    an_answer_is_invented: "I6",
    a_raw_line_is_lost: "I5",
    a_raw_file_is_damaged: "I15",
    a_reserve_is_too_small: "I9",
    a_cost_is_noted_too_low: "I9",
    the_budget_is_exceeded_on_paper: "I9",
    the_provider_bills_more_than_the_budget: "I9",
    an_intent_comes_after_the_acceptance: "I12",
    a_create_is_sent_without_its_record: "I12",
    a_row_is_forgotten: "I10",
    a_stranger_lies_in_the_folder: "I14",
    others_may_read_the_answers: "I14",
    the_prompts_are_changed: "I15",
}


def found(run: Copy, **options: Any) -> set[str]:
    """The invariants that do not hold."""
    verdict = audit(load(run.ledger, run.run, run.manifest, **options))
    return {name for name, one in verdict["invariants"].items() if one["problems"]}


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Copy:
    return Copy(Path(shutil.copytree(good, tmp_path / "copy")))


def test_a_good_run_passes(copy: Copy) -> None:
    assert found(copy, budget=BUDGET) == set()
    copy.write()  # chained and written by us, it still does
    assert found(copy) == set()


def test_the_good_run_has_been_through_enough(copy: Copy) -> None:
    assert any(event["found"] for event in copy.journal if event["event"] == "created")
    assert any(event["again"] for event in copy.journal if event["event"] == "stored")
    assert any(event.get("owner") == "someone else" for event in copy.events)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_run_is_caught(copy: Copy, mutant: Callable[[Copy], None]) -> None:
    mutant(copy)
    copy.write()
    assert MUTANTS[mutant] in found(copy)


def test_every_invariant_is_broken_by_some_mutant() -> None:
    assert set(MUTANTS.values()) | {"I13"} == set(INVARIANTS)


@pytest.mark.parametrize("where", ["removed", "moved", "flipped", "foreign"])
def test_a_journal_line_that_was_touched_breaks_the_chain(copy: Copy, where: str) -> None:
    path = copy.run / "journal"
    lines = path.read_bytes().split(b"\n")
    match where:
        case "removed":
            del lines[4]
        case "moved":
            lines[4], lines[5] = lines[5], lines[4]
        case "flipped":
            lines[4] = lines[4].replace(b'"', b"'", 1)
        case "foreign":
            lines[4] = lines[3]
    path.write_bytes(b"\n".join(lines))
    assert "I15" in found(copy)


def test_whatever_happens_after_the_end_is_noticed(copy: Copy) -> None:
    before = audit(load(copy.ledger, copy.run, copy.manifest))["snapshot"]
    assert found(copy, before=before) == set()
    copy.events.append({**copy.mine("accepted")[0], "batch": "batch_late"})
    copy.write()
    assert "I13" in found(copy, before=before)


def test_status_is_held_against_the_files(copy: Copy) -> None:
    told = {"asked": 80, "answered": 80, "refused": 0, "failed": 0, "missing": 0}
    assert found(copy, status=told) == set()
    assert found(copy, status={**told, "answered": 79, "missing": 1}) == {"I10"}
    assert found(copy, status={**told, "answered": 79, "failed": 1}) == {"I10"}


def test_the_program_prints_a_line_per_invariant(copy: Copy) -> None:
    line = [sys.executable, "-m", "tests.auditor", "--ledger", copy.ledger, "--run", copy.run]
    line += ["--manifest", copy.manifest]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert [text.split()[:2] for text in ran.stdout.splitlines()] == [[name, "ok"] for name in INVARIANTS]
    a_created_is_dropped(copy)
    copy.write()
    ran = subprocess.run([*line, "--json"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["invariants"]["I1"]["problems"]


def test_the_auditor_shares_no_code_with_the_client() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        if path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "batchbench"], path
