"""A good run passes the auditor, and the auditor finds every way of breaking it."""

import ast
import hashlib
import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from tests.auditor.evidence import rows_of, zstd
from tests.auditor.invariants import INVARIANTS, audit, load
from tests.dispatch.conftest import manifests as manifests  # a fixture
from tests.dispatch.scene import Scene
from tests.emulator.driver import TOKEN
from tests.faults.client_patches import DRAW, run_first

Json = dict[str, Any]
BUDGET = 20_000  # micro-dollars


Make = Callable[[Path, Path], Scene]


def eventful(folder: Path, manifests: Path) -> Scene:
    """A run within a budget with lost replies, expired rows that are asked again, and foreign batches beside it."""
    rules: list[Json] = [
        {"do": "reset-after", "on": "create", "p": 0.5},
        {"do": "foreign", "key": "^[0-7]"},
        {"do": "expire-half", "seconds": 0.1, "key": "^[89ab]"},
    ]
    scene = Scene(folder, manifests, "openai", rules=rules)
    run_first(scene, DRAW)
    done = scene.run("--budget", "0.02", k=80, size=5)
    assert done.code == 0, done
    return scene


def distorted(folder: Path, manifests: Path) -> Scene:
    """Faults doubled every create and damaged lines; --rebuy-missing bought the missing rows again."""
    lines = ("line-duplicate", "line-missing", "line-malformed", "line-policy")
    rules: list[Json] = [{"do": "dup-accept"}, *({"do": do, "nth": [place]} for place, do in enumerate(lines, 1))]
    scene = Scene(folder, manifests, "openai", rules=[*rules, {"do": "line-swapped", "nth": [5, 6]}])
    assert scene.run("--pilot", "auto", k=20, size=10).code == 6
    scene.end_faults()
    done = scene.run("--rebuy-missing", k=20, size=10)
    assert done.code == 0, done
    return scene


def single(folder: Path, manifests: Path) -> Scene:
    """A server without batches; some of its answers were lost."""
    scene = Scene(folder, manifests, "chat", rules=[{"do": "reset-after", "on": "chat", "first": 1, "p": 0.3}])
    scene.price = "0.15,0.60"  # the emulator bills single calls at twice the batch price
    done = scene.run("--pilot", "auto", k=30, size=15)
    assert done.code == 0, done
    return scene


def thrifty(folder: Path, manifests: Path) -> Scene:
    """A run within a small budget: short limits cut answers off, and input is reserved by the answers so far."""
    scene = Scene(folder, manifests, "openai", rules=[{"do": "line-endless", "since": 2, "key": "[05]-0$"}])
    done = scene.run("--budget", "0.004", "--budget-mode", "learnt", k=200, size=100)
    assert done.code == 3, done
    return scene


def retried(folder: Path, manifests: Path) -> Scene:
    """Lines were damaged, so that their rows failed; --retry-failed asked these rows again."""
    scene = Scene(folder, manifests, "openai", rules=[{"do": "line-malformed", "nth": [2]}])
    assert scene.run(k=20, size=10).code == 0
    scene.end_faults()
    done = scene.run("--retry-failed", k=20, size=10)
    assert (done.code, done.report["answered"]) == (0, 20), done
    return scene


def restored(folder: Path, manifests: Path) -> Scene:
    """The home was put back to an earlier state, and the batches that it did not know were adopted."""
    scene = Scene(folder, manifests, "openai")
    assert scene.run(k=10, size=10).code == 0
    shutil.copytree(scene.home, folder / "snapshot")
    assert scene.run(k=30, size=10).code == 0
    shutil.rmtree(scene.home)
    shutil.copytree(folder / "snapshot", scene.home)
    done = scene.run("--adopt", k=40, size=10)
    assert (done.code, done.report["answered"]) == (0, 40), done
    return scene


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Callable[[Make], Path]:
    """The folder of a run; each run is played once."""
    folders: dict[Make, Path] = {}

    def play(make: Make) -> Path:
        if make not in folders:
            folders[make] = tmp_path_factory.mktemp(make.__name__) / "scene"
            make(folders[make], manifests).close()
        return folders[make]

    return play


class Copy:
    """A copy of a run and its ledger that a test breaks."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "state" / "ledger.jsonl"
        self.run = next(folder.glob("home/cache/*/*/run.json")).parent
        self.manifest = folder / "home" / "manifests" / self.run.parent.name
        lines = (self.run / "journal").read_bytes().split(b"\n")[:-1]
        self.journal: list[Json] = [json.loads(line.split(b" ", 2)[2]) for line in lines]
        self.tail = b""  # of the journal
        self.events: list[Json] = [json.loads(line) for line in self.ledger.read_bytes().split(b"\n") if line]

    def write(self) -> None:
        """Write the journal, with new checksums, and the ledger."""
        crc, out = 0, b""
        for seq, event in enumerate(self.journal):
            body = b"%d %s" % (seq, json.dumps(event).encode())
            crc = zlib.crc32(body, crc)
            out += b"%08x %s\n" % (crc, body)
        (self.run / "journal").write_bytes(out + self.tail)
        self.ledger.write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in self.events))

    def last(self, kind: str) -> Json:
        return [event for event in self.journal if event["event"] == kind][-1]

    def whole(self) -> Json:
        """The last batch whose rows were all answered."""
        stored = [event for event in self.journal if event["event"] == "stored" and event["answered"] > 1]
        frames = {event["nonce"]: pl.read_parquet(self.run / event["parts"][-1]["file"]) for event in stored}
        return [event for event in stored if set(frames[event["nonce"]]["outcome"]) == {"answered"}][-1]

    def without(self, *kinds: str) -> Json:
        """Remove events of a completely answered batch from the journal; returns its `created`."""
        nonce = self.whole()["nonce"]
        created = next(e for e in self.journal if e["event"] == "created" and e["nonce"] == nonce)
        self.journal = [e for e in self.journal if not (e.get("nonce") == nonce and e["event"] in kinds)]
        return created

    def add(self, kind: str, nonce: str, **fields: Any) -> Json:
        """Append an event to the journal."""
        self.journal.append({"event": kind, "at": self.journal[-1]["at"], "nonce": nonce, **fields})
        return self.journal[-1]

    def insert(self, before: Json, kind: str, nonce: str, **fields: Any) -> None:
        """Insert an event before another one."""
        event = {"event": kind, "at": before["at"], "nonce": nonce, **fields}
        self.journal.insert(self.journal.index(before), event)

    def struck(self, fault: str) -> tuple[Json, int]:
        """A batch with a line that a fault has changed, and the line's row."""
        ids = [one for e in self.mine("ended") for one in e.get("struck", {}).get(fault, [])]
        stored = {e["nonce"]: e for e in self.journal if e["event"] == "stored"}
        nonce, row, _ = next(one for one in ids if one.partition("-")[0] in stored).split("-")
        return stored[nonce], int(row)

    def raw(self, stored: Json, row: int) -> None:
        """Remove a row's lines from a batch's result file, and note its new digest."""

        def cut(path: Path) -> None:
            lines = zstd.decompress(path.read_bytes()).split(b"\n")
            path.write_bytes(zstd.compress(b"\n".join(line for line in lines if b"-%d-0" % row not in line)))

        self.seal(stored, "raw/", cut)

    def lose(self, stored: Json, row: int) -> None:
        """Remove an answer as if the provider had not handed it out."""
        self.raw(stored, row)
        self.answers(stored, lambda frame: frame.filter(pl.col("id") != row))
        stored["answered"] -= 1
        stored["outcomes"]["answered"] -= 1
        stored["missing"] = sorted([*stored["missing"], [row, row + 1]])

    def say(self, stored: Json, row: int, **columns: Any) -> None:
        """Change columns of a kept answer."""
        here = pl.col("id") == row
        changes = {name: pl.when(here).then(pl.lit(value)).otherwise(name) for name, value in columns.items()}
        self.answers(stored, lambda frame: frame.with_columns(**changes))
        if "outcome" in columns:
            stored["outcomes"]["answered"] -= 1
            stored["outcomes"][columns["outcome"]] = stored["outcomes"].get(columns["outcome"], 0) + 1

    def row(self, stored: Json) -> int:
        """The first row of a batch."""
        return int(stored_frame(self, stored)["id"][0])

    def mine(self, kind: str) -> list[Json]:
        """Ledger events about our own batches."""
        ours = {e["batch"] for e in self.events if e["event"] == "accepted" and e.get("owner", "client") == "client"}
        return [e for e in self.events if e["event"] == kind and e["batch"] in ours]

    def answers(self, stored: Json, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change an answers file, and note its new digest."""
        self.seal(stored, "answers/", lambda path: change(pl.read_parquet(path)).write_parquet(path))

    def seal(self, stored: Json, folder: str, change: Callable[[Path], object]) -> None:
        part = next(part for part in stored["parts"] if part["file"].startswith(folder))
        change(self.run / part["file"])
        content = (self.run / part["file"]).read_bytes()
        part |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def stored_frame(run: Copy, stored: Json) -> pl.DataFrame:
    return pl.read_parquet(run.run / next(p["file"] for p in stored["parts"] if p["file"].startswith("answers/")))


def a_created_event_is_dropped(run: Copy) -> None:
    run.journal.remove(run.last("created"))


def an_intent_is_dropped(run: Copy) -> None:
    nonce = run.last("stored")["nonce"]
    run.journal = [event for event in run.journal if event.get("nonce") != nonce]


def a_batch_is_adopted_twice(run: Copy) -> None:
    first, second = [event for event in run.journal if event["event"] == "created"][:2]
    second["remote"] = first["remote"]


def one_nonce_adopts_two_batches(run: Copy) -> None:
    first, second = [event for event in run.journal if event["event"] == "created"][:2]
    run.add("created", first["nonce"], remote=second["remote"], found=True)


def a_copy_is_adopted_as_well(run: Copy) -> None:
    copy = run.last("duplicate")
    run.insert(copy, "created", copy["nonce"], remote=copy["remote"], found=True)
    run.journal.remove(copy)


def the_journal_names_a_batch_that_does_not_exist(run: Copy) -> None:
    run.add("created", run.whole()["nonce"], remote="batch_never", found=True)


def nothing(run: Copy) -> None:
    """Break nothing: only the options of the audit differ."""


def a_foreign_batch_is_adopted(run: Copy) -> None:
    foreign = next(e for e in run.events if e["event"] == "accepted" and e.get("owner") == "someone else")
    run.last("created")["remote"] = foreign["batch"]


def our_batch_is_noted_as_foreign(run: Copy) -> None:
    run.journal.append({"event": "foreign", "at": run.journal[-1]["at"], "remote": run.mine("accepted")[0]["batch"]})


def the_same_rows_are_accepted_twice(run: Copy) -> None:
    """As if the client had sent a create twice and noted only the second."""
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


def an_answer_is_kept_twice(run: Copy) -> None:
    stored = run.whole()
    run.answers(stored, lambda frame: pl.concat([frame, frame[:1]]))
    stored["answered"] += 1


def an_answer_is_invented(run: Copy) -> None:
    """A row that the provider never answered is kept, with the right text."""
    event = run.mine("billed")[-1]
    for name in ("ids", "inputs", "outputs", "costs", "texts"):
        event[name] = event[name][1:]
    event["cost"] = sum(event["costs"])


def a_raw_file_is_damaged(run: Copy) -> None:
    path = run.run / run.whole()["parts"][0]["file"]
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def a_reserve_is_too_small(run: Copy) -> None:
    run.last("intent")["reserve"] = 10


def a_batch_is_bought_at_other_rates_than_planned(run: Copy) -> None:
    intent = run.last("intent")
    intent["rates"] = intent["rates"] | {"input": 1, "output": 1}


def a_cost_is_noted_too_low(run: Copy) -> None:
    run.whole()["cost"] -= 1


def the_journal_exceeds_the_budget(run: Copy) -> None:
    for event in run.journal:
        if event["event"] == "asked":
            event["budget"] = 3_000


def the_provider_bills_more_than_the_budget(run: Copy) -> None:
    run.mine("billed")[-1]["cost"] += BUDGET


def an_intent_is_noted_after_the_acceptance(run: Copy) -> None:
    run.last("intent")["at"] += 3600
    run.last("creating")["at"] += 3600


def a_create_is_sent_without_its_record(run: Copy) -> None:
    run.journal.remove(run.last("creating"))


def a_row_is_forgotten(run: Copy) -> None:
    event = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    event["again"] = event["again"][1:]


def the_folder_holds_an_unknown_file(run: Copy) -> None:
    (run.run / "answers" / "0123456789.json").touch(0o600)


def other_users_may_read_the_answers(run: Copy) -> None:
    (run.run / run.whole()["parts"][-1]["file"]).chmod(0o644)


def the_prompts_are_changed(run: Copy) -> None:
    path = run.manifest / "00000.parquet"
    pl.read_parquet(path).with_columns(prompt=pl.col("prompt") + ".").write_parquet(path)


def a_running_batch_is_noted_as_rejected(run: Copy) -> None:
    """The journal says that the batch was refused; the provider runs it and will bill it."""
    created = run.without("ended", "stored")
    run.add("rejected", created["nonce"], reason="")
    keep_running(run, created["remote"])


def the_user_declares_a_running_batch_void(run: Copy) -> None:
    created = run.without("created", "ended", "stored")
    run.add("unresolved", created["nonce"], reason="", candidates=[created["remote"]])
    run.add("void", created["nonce"], reason="")
    keep_running(run, created["remote"])


def the_user_is_shown_a_batch_of_another_nonce(run: Copy) -> None:
    created = run.without("created", "ended", "stored")
    other = run.whole()["nonce"]
    run.insert(run.last("created"), "unresolved", other, reason="", candidates=[created["remote"]])


def the_user_is_shown_the_id_of_another_batch(run: Copy) -> None:
    created = run.without("created", "ended", "stored")
    run.add("unresolved", created["nonce"], reason="", candidates=["batch_other"])


def keep_running(run: Copy, batch: str) -> None:
    run.events = [e for e in run.events if not (e.get("batch") == batch and e["event"] in ("billed", "ended"))]


def the_client_made_the_copies_itself(run: Copy) -> None:
    run.events = [event for event in run.events if event.get("do") != "dup-accept"]


def the_client_made_one_more_copy_itself(run: Copy) -> None:
    """Beside a copy that a fault made."""
    copy = run.last("duplicate")
    for event in [e for e in run.events if e.get("batch") == copy["remote"] and e["event"] in ("accepted", "ended")]:
        run.events.append({**event, "batch": "batch_more"})
    run.add("duplicate", copy["nonce"], remote="batch_more", reserve=copy["reserve"])


def a_copy_is_noted_for_another_batch(run: Copy) -> None:
    run.last("duplicate")["nonce"] = run.journal[-1]["nonce"]


def no_money_is_reserved_for_a_copy(run: Copy) -> None:
    run.last("duplicate")["reserve"] = 0


def a_row_is_bought_again_after_its_late_answer(run: Copy) -> None:
    stored, row = run.struck("line-missing")
    later = run.journal[run.journal.index(stored) :]
    again = next(e for e in later if e["event"] == "intent" and row in rows_of(e["ranges"]))
    more = {"parts": [], "again": [], "quarantined": 0, "outcomes": {"answered": 1}, "missing": []}
    run.insert(again, "late", stored["nonce"], cost=stored["cost"], **more)


def a_running_row_is_intended_again(run: Copy) -> None:
    """The second intent is never sent, so only the journal shows it."""
    intend_again(run, next(event for event in run.journal if event["event"] == "created"))


def an_answered_row_is_intended_again(run: Copy) -> None:
    intend_again(run, run.last("stored"))


def intend_again(run: Copy, before: Json) -> None:
    first = next(event for event in run.journal if event["event"] == "intent")
    run.insert(before, "intent", "more", **{k: v for k, v in first.items() if k not in ("event", "at", "nonce")})
    run.add("rejected", "more", reason="")


def a_row_that_the_provider_answered_is_asked_again(run: Copy) -> None:
    """Only the ledger shows that the row was answered and had not expired."""
    stored = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    billed = next(e for e in run.mine("billed") if e["ids"][0].startswith(stored["nonce"]))
    billed["ids"].append(f"{stored['nonce']}-{stored['again'][0][0]}-0")
    for name in ("costs", "texts"):
        billed[name].append(billed[name][0])


def a_given_up_row_is_asked_again(run: Copy) -> None:
    event = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    event["again"] = event["again"] * 3


def a_call_is_billed_twice(run: Copy) -> None:
    run.events.append(next(e for e in run.events if e["event"] == "billed"))


def an_answer_is_dropped_and_noted_as_missing(run: Copy) -> None:
    """Its result line is removed, too, although the provider handed out all lines."""
    stored = run.whole()
    run.lose(stored, run.row(stored))


def an_answer_is_neither_kept_nor_missing(run: Copy) -> None:
    stored = run.whole()
    run.lose(stored, run.row(stored))
    stored["missing"] = []
    for event in run.events:
        event["complete"] = False


def an_answer_with_a_result_line_is_noted_as_missing(run: Copy) -> None:
    """The provider handed out an incomplete file, but this line was in it."""
    stored = run.whole()
    raw = run.run / stored["parts"][0]["file"]
    whole = raw.read_bytes()
    run.lose(stored, run.row(stored))
    run.seal(stored, "raw/", lambda path: path.write_bytes(whole))
    for event in run.events:
        event["complete"] = False


def an_answer_of_a_batch_that_the_user_named_is_lost(run: Copy) -> None:
    stored = run.whole()
    created = next(e for e in run.journal if e["event"] == "created" and e["nonce"] == stored["nonce"])
    run.insert(created, "unresolved", stored["nonce"], reason="", candidates=[created["remote"]])
    run.lose(stored, run.row(stored))


def an_answer_with_a_duplicated_line_is_lost(run: Copy) -> None:
    run.lose(*run.struck("line-duplicate"))


def an_answer_with_a_duplicated_line_has_another_text(run: Copy) -> None:
    stored, row = run.struck("line-duplicate")
    run.say(stored, row, text="A:000000000000")


def an_answer_with_a_duplicated_line_is_kept_as_failed(run: Copy) -> None:
    stored, row = run.struck("line-duplicate")
    run.say(stored, row, outcome="failed")


def a_swapped_answer_is_neither_of_the_two(run: Copy) -> None:
    stored, row = run.struck("line-swapped")
    run.say(stored, row, text="A:000000000000")


def a_paid_answer_is_kept_as_failed(run: Copy) -> None:
    stored = run.whole()
    run.say(stored, run.row(stored), outcome="failed")


def an_answered_batch_is_forgotten_in_an_unfinished_run(run: Copy) -> None:
    created = run.without("ended", "stored")
    run.add("rejected", created["nonce"], reason="")


def a_call_is_billed_and_not_kept(run: Copy) -> None:
    calls = [event for event in run.events if event["event"] == "billed"]
    run.events.append({**calls[-1], "ids": ["chatcmpl-more"]})


def two_answers_claim_the_same_call(run: Copy) -> None:
    first, second = [e for e in run.journal if e["event"] == "stored"][:2]
    path = run.run / first["parts"][0]["file"]
    line = next(x for x in zstd.decompress(path.read_bytes()).split(b"\n") if b"chatcmpl-" in x)

    def add(path: Path) -> None:
        path.write_bytes(zstd.compress(zstd.decompress(path.read_bytes()) + line + b"\n"))

    run.seal(second, "raw/", add)


def a_kept_answer_has_no_billed_call(run: Copy) -> None:
    taken = next(x for x in run.events if x["event"] == "billed" and x["ids"][0].encode() in everything_raw(run))
    run.events.remove(taken)


def everything_raw(run: Copy) -> bytes:
    return b"".join(zstd.decompress(path.read_bytes()) for path in run.run.glob("raw/*"))


def an_expired_row_is_kept_as_failed(run: Copy) -> None:
    """The client would never ask it again."""
    stored = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    (start, stop), *rest = stored["again"]
    stored["again"] = [*([[start + 1, stop]] if stop > start + 1 else []), *rest]
    failed = pl.lit("failed")
    run.answers(
        stored,
        lambda frame: pl.concat(
            [frame, frame[:1].with_columns(id=pl.lit(start, pl.UInt32), outcome=failed, text=None)]
        ),
    )
    stored["answered"] += 1
    stored["outcomes"]["failed"] = 1


def answers_of_a_refused_batch_are_kept(run: Copy) -> None:
    nonce = run.whole()["nonce"]
    batch = next(e["batch"] for e in run.mine("accepted") if e["nonce"] == nonce)
    keep_running(run, batch)
    run.events.append({**run.events[-1], "event": "failed", "batch": batch, "at": 0.0, "errors": [{"line": 1}]})


def an_answer_has_a_row_that_the_batch_did_not_hold(run: Copy) -> None:
    stored = run.whole()
    far = pl.when(pl.col("id") == run.row(stored)).then(79).otherwise("id").cast(pl.UInt32)
    run.answers(stored, lambda frame: frame.with_columns(id=far))


def all_prompts_are_moved_by_one(run: Copy) -> None:
    """Every answer is kept as it was billed, but for the prompt of another row."""
    path = run.manifest / "00000.parquet"
    frame = pl.read_parquet(path)
    prompts = frame["prompt"].to_list()
    frame.with_columns(prompt=pl.Series([prompts[-1], *prompts[:-1]])).write_parquet(path)
    about = json.loads((run.manifest / "manifest.json").read_bytes())
    text = b"".join(prompt.encode() + b"\0" for prompt in [prompts[-1], *prompts[:-1]])
    about["shards"][0] |= {
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "text_sha256": hashlib.sha256(text).hexdigest(),
    }
    (run.manifest / "manifest.json").write_text(json.dumps(about))


def an_answers_file_is_named_twice(run: Copy) -> None:
    stored = run.whole()
    stored["parts"].append(stored["parts"][-1])
    stored["answered"] *= 2
    stored["outcomes"]["answered"] *= 2


def a_cost_is_noted_too_high(run: Copy) -> None:
    run.whole()["cost"] += 1


def the_cost_of_a_damaged_line_is_noted_far_too_high(run: Copy) -> None:
    stored, _ = run.struck("line-malformed")
    stored["cost"] += run.last("intent")["most"] * 10


def a_cost_is_noted_too_low_at_first(run: Copy) -> None:
    stored = run.whole()
    empty = {"parts": [], "again": [], "quarantined": 0, "outcomes": {}, "missing": []}
    run.add("late", stored["nonce"], cost=stored["cost"], **empty)
    stored["cost"] -= 1


def the_cost_of_the_pilot_is_noted_too_low(run: Copy) -> None:
    run.last("passed")["cost"] -= 1


def a_question_of_the_pilot_is_not_noted(run: Copy) -> None:
    for kind in ("tried", "passed"):
        run.journal.remove(run.last(kind))


def the_pilot_exceeds_the_budget(run: Copy) -> None:
    run.last("asked")["budget"] = 1_000_000
    run.last("tried")["reserve"] = 1_000_001


def the_maximum_cost_of_a_row_is_noted_too_low(run: Copy) -> None:
    run.last("intent")["most"] = 1


def lost_calls_are_noted_without_a_cost(run: Copy) -> None:
    raw = {e["nonce"]: (run.run / e["parts"][0]["file"]) for e in run.journal if e["event"] == "stored"}
    for event in (event for event in run.journal if event["event"] == "stored"):
        lines = zstd.decompress(raw[event["nonce"]].read_bytes())
        event["cost"] = sum(e["cost"] for e in run.events if e["event"] == "billed" and e["ids"][0].encode() in lines)


def calls_cost_more_than_the_budget(run: Copy) -> None:
    """Only the ledger shows it."""
    next(e for e in run.events if e["event"] == "billed")["cost"] += BUDGET
    run.journal[1]["budget"] = BUDGET


def outcomes_are_noted_wrongly(run: Copy) -> None:
    run.whole()["outcomes"] = {"answered": 4, "refused": 1}


def an_expired_row_is_noted_as_missing(run: Copy) -> None:
    """The client would then ask it again only with --rebuy-missing."""
    stored = [e for e in run.journal if e["event"] == "stored" and e["again"]][-1]
    stored["missing"], stored["again"] = stored["again"], []
    rows = {row for start, stop in stored["missing"] for row in range(start, stop)}
    others = [e for e in run.journal if e["event"] == "stored" and e is not stored]
    gone = {e["nonce"] for e in others if rows & set(stored_frame(run, e)["id"])}
    run.journal = [event for event in run.journal if event.get("nonce") not in gone]


def more_answers_are_noted_than_kept(run: Copy) -> None:
    run.whole()["answered"] += 1


def a_batch_is_left_open(run: Copy) -> None:
    run.without("stored")


def the_end_of_a_batch_is_not_noted(run: Copy) -> None:
    run.without("ended")


def a_recheck_is_noted_before_its_batch_is_stored(run: Copy) -> None:
    stored = run.whole()
    run.insert(stored, "looked", stored["nonce"])


def a_batch_is_stored_before_it_has_ended(run: Copy) -> None:
    for event in run.mine("ended"):
        event["wall"] += 3600


def quarantined_lines_are_gone(run: Copy) -> None:
    stored, _ = run.struck("line-malformed")
    (run.run / "quarantine" / f"{stored['nonce']}.jsonl").unlink()


def a_file_holds_the_key(run: Copy) -> None:
    with (run.run / "lock").open("a") as file:
        file.write(TOKEN)


def a_noted_digest_is_wrong(run: Copy) -> None:
    run.whole()["parts"][0]["sha256"] = "0" * 64


def the_result_lines_are_gone(run: Copy) -> None:
    stored = run.whole()
    for part in [part for part in stored["parts"] if part["file"].startswith("raw/")]:
        stored["parts"].remove(part)
        (run.run / part["file"]).unlink()


def an_answer_is_kept_as_a_refusal(run: Copy) -> None:
    stored = run.whole()
    run.say(stored, run.row(stored), outcome="refused")


def the_tokens_differ_from_the_result_line(run: Copy) -> None:
    stored = run.whole()
    run.say(stored, run.row(stored), input_tokens=1)


def an_answer_is_only_in_the_result_lines(run: Copy) -> None:
    """It is not in the ledger either."""
    stored = run.whole()
    row = run.row(stored)
    run.answers(stored, lambda frame: frame.filter(pl.col("id") != row))
    for event in run.mine("billed"):
        for place in [k for k, one in enumerate(event["ids"]) if one == f"{stored['nonce']}-{row}-0"]:
            for name in ("ids", "costs", "texts"):
                del event[name][place]


def the_last_line_of_the_journal_is_torn(run: Copy) -> None:
    run.tail = b"00000000 99 {"


def thrifty_intent(run: Copy) -> Json:
    """The last intent with a short limit."""
    return [event for event in run.journal if event["event"] == "intent" and event["max_tokens"]][-1]


def a_limit_is_noted_lower_than_it_was(run: Copy) -> None:
    thrifty_intent(run)["max_tokens"] = 1
    for event in run.mine("billed"):
        event["outputs"] = [max(2, count) for count in event["outputs"]]


def a_short_limit_is_not_noted(run: Copy) -> None:
    """Then its reserve is too small, and answers that it cut off were bought twice."""
    thrifty_intent(run)["max_tokens"] = None


def a_cut_off_answer_is_kept(run: Copy) -> None:
    stored = next(event for event in run.journal if event["event"] == "stored" and event["cut_off"])
    row = stored["cut_off"][0][0]
    kept = stored_frame(run, stored)
    line = kept.head(1).with_columns(id=pl.lit(row, kept["id"].dtype), outcome=pl.lit("truncated"))
    run.answers(stored, lambda frame: pl.concat([frame, line]))


def a_whole_answer_is_noted_as_cut_off(run: Copy) -> None:
    """So that it could be bought again."""
    stored = next(event for event in run.journal if event["event"] == "stored" and event["cut_off"])
    row = run.row(stored)
    stored["cut_off"] = [*stored["cut_off"], [row, row + 1]]


def a_cut_off_row_is_asked_with_a_short_limit_again(run: Copy) -> None:
    cut = next(event for event in run.journal if event["event"] == "stored" and event["cut_off"])["cut_off"]
    rows = {row for start, stop in cut for row in range(start, stop)}
    intents = [event for event in run.journal if event["event"] == "intent" and event["max_tokens"] is None]
    again = [event for event in intents if rows & {row for one in event["ranges"] for row in range(*one)}]
    again[-1]["max_tokens"] = 299


def input_is_reserved_by_fewer_tokens_than_an_answer_had(run: Copy) -> None:
    thrifty_intent(run)["tokens_per_byte"] /= 1.5


def input_is_reserved_by_the_answers_after_one_had_more(run: Copy) -> None:
    stored = next(event for event in run.journal if event["event"] == "stored" and event["answered"] > 1)
    run.answers(stored, lambda frame: frame.with_columns(input_tokens=pl.col("input_tokens") * 10))


def a_retry_is_not_on_record(run: Copy) -> None:
    for event in run.journal:
        if event["event"] == "late":
            event["held"] = []


def a_row_is_released_that_was_not_asked_again(run: Copy) -> None:
    """It is in no answer file, and in no later batch."""
    late = run.last("late")
    stored = next(event for event in run.journal if event["event"] == "stored" and event["nonce"] == late["nonce"])
    row = next(row for row in stored_frame(run, stored)["id"] if row not in [start for start, _ in late["held"]])
    late["held"] = sorted([*late["held"], [row, row + 1]])


def adopted(run: Copy) -> Json:
    """The intent of an adopted batch."""
    return next(event for event in run.journal if event["event"] == "intent" and event["remote"])


def an_adopted_batch_is_dropped(run: Copy) -> None:
    nonce = adopted(run)["nonce"]
    run.journal = [event for event in run.journal if event.get("nonce") != nonce]


def a_batch_is_adopted_without_its_last_row(run: Copy) -> None:
    """Its answer is then that of no request, and the row can be bought again."""
    intent = adopted(run)
    intent["ranges"][-1][1] -= 1
    intent["rows"] -= 1
    stored = next(e for e in run.journal if e["event"] == "stored" and e["nonce"] == intent["nonce"])
    run.answers(stored, lambda frame: frame.filter(pl.col("id") < intent["ranges"][-1][1]))
    stored["answered"] -= 1


def a_batch_is_adopted_without_a_reserve(run: Copy) -> None:
    adopted(run)["reserve"] = 0


class Mutant(NamedTuple):
    """A way of breaking a run, and the invariant that has to find it."""

    do: Callable[[Copy], None]
    by: str
    of: Make = eventful
    options: Json = {}  # noqa: RUF012 - never changed


MUTANTS = [
    Mutant(a_retry_is_not_on_record, "nothing_is_bought_twice", retried),
    Mutant(a_retry_is_not_on_record, "nothing_is_billed_twice", retried),
    Mutant(a_retry_is_not_on_record, "every_billed_answer_is_kept", retried),
    Mutant(a_row_is_released_that_was_not_asked_again, "every_row_is_accounted_for", retried),
    Mutant(an_adopted_batch_is_dropped, "every_batch_is_on_record", restored),
    Mutant(an_adopted_batch_is_dropped, "every_billed_answer_is_kept", restored),
    Mutant(a_batch_is_adopted_without_its_last_row, "every_billed_answer_is_kept", restored),
    Mutant(a_batch_is_adopted_without_a_reserve, "the_budget_holds", restored),
    Mutant(a_created_event_is_dropped, "every_batch_is_on_record"),
    Mutant(an_intent_is_dropped, "every_batch_is_on_record"),
    Mutant(a_batch_is_adopted_twice, "every_batch_is_on_record"),
    Mutant(a_running_batch_is_noted_as_rejected, "every_batch_is_on_record"),
    Mutant(a_running_batch_is_noted_as_rejected, "every_batch_is_on_record", options={"unfinished": True}),
    Mutant(the_user_declares_a_running_batch_void, "every_batch_is_on_record"),
    Mutant(the_user_is_shown_a_batch_of_another_nonce, "every_batch_is_on_record"),
    Mutant(the_user_is_shown_the_id_of_another_batch, "every_batch_is_on_record"),
    Mutant(one_nonce_adopts_two_batches, "every_batch_is_on_record"),
    Mutant(the_journal_names_a_batch_that_does_not_exist, "every_batch_is_on_record"),
    Mutant(the_client_made_the_copies_itself, "every_batch_is_on_record", distorted),
    Mutant(the_client_made_the_copies_itself, "nothing_is_bought_twice", distorted),
    Mutant(the_client_made_the_copies_itself, "nothing_is_billed_twice", distorted),
    Mutant(the_client_made_one_more_copy_itself, "every_batch_is_on_record", distorted),
    Mutant(a_foreign_batch_is_adopted, "no_foreign_batch_is_adopted"),
    Mutant(one_nonce_adopts_two_batches, "no_foreign_batch_is_adopted"),
    Mutant(a_copy_is_adopted_as_well, "no_foreign_batch_is_adopted", distorted),
    Mutant(a_copy_is_noted_for_another_batch, "no_foreign_batch_is_adopted", distorted),
    Mutant(our_batch_is_noted_as_foreign, "no_foreign_batch_is_adopted"),
    Mutant(the_same_rows_are_accepted_twice, "nothing_is_bought_twice"),
    Mutant(a_row_is_asked_while_it_is_running, "nothing_is_bought_twice"),
    Mutant(a_running_row_is_intended_again, "nothing_is_bought_twice"),
    Mutant(an_answered_row_is_intended_again, "nothing_is_bought_twice"),
    Mutant(a_row_that_the_provider_answered_is_asked_again, "nothing_is_bought_twice"),
    Mutant(a_row_is_bought_again_after_its_late_answer, "nothing_is_bought_twice", distorted),
    Mutant(nothing, "nothing_is_bought_twice", distorted, {"rebuys": 0}),
    Mutant(a_given_up_row_is_asked_again, "nothing_is_bought_twice", options={"rebuys": 0}),
    Mutant(an_answer_is_billed_twice, "nothing_is_billed_twice"),
    Mutant(a_call_is_billed_twice, "nothing_is_billed_twice", single),
    Mutant(two_answers_are_swapped, "every_billed_answer_is_kept"),
    Mutant(an_answer_is_dropped, "every_billed_answer_is_kept"),
    Mutant(an_answer_is_dropped_and_noted_as_missing, "every_billed_answer_is_kept"),
    Mutant(an_answer_is_neither_kept_nor_missing, "every_billed_answer_is_kept"),
    Mutant(an_answer_with_a_result_line_is_noted_as_missing, "every_billed_answer_is_kept"),
    Mutant(an_answer_of_a_batch_that_the_user_named_is_lost, "every_billed_answer_is_kept"),
    Mutant(an_answer_with_a_duplicated_line_is_lost, "every_billed_answer_is_kept", distorted),
    Mutant(an_answer_with_a_duplicated_line_has_another_text, "every_billed_answer_is_kept", distorted),
    Mutant(an_answer_with_a_duplicated_line_is_kept_as_failed, "every_billed_answer_is_kept", distorted),
    Mutant(a_swapped_answer_is_neither_of_the_two, "every_billed_answer_is_kept", distorted),
    Mutant(a_paid_answer_is_kept_as_failed, "every_billed_answer_is_kept"),
    Mutant(
        an_answered_batch_is_forgotten_in_an_unfinished_run,
        "every_billed_answer_is_kept",
        options={"unfinished": True},
    ),
    Mutant(a_call_is_billed_and_not_kept, "every_billed_answer_is_kept", single),
    Mutant(two_answers_claim_the_same_call, "every_billed_answer_is_kept", single),
    Mutant(an_answer_is_invented, "every_kept_answer_was_billed"),
    Mutant(a_kept_answer_has_no_billed_call, "every_kept_answer_was_billed", single),
    Mutant(an_expired_row_is_kept_as_failed, "every_kept_answer_was_billed"),
    Mutant(answers_of_a_refused_batch_are_kept, "every_kept_answer_was_billed"),
    Mutant(an_answer_has_a_row_that_the_batch_did_not_hold, "every_kept_answer_was_billed"),
    Mutant(ids_and_lines_are_joined_by_their_order, "answers_belong_to_their_prompts"),
    Mutant(all_prompts_are_moved_by_one, "answers_belong_to_their_prompts"),
    Mutant(an_answer_with_a_duplicated_line_has_another_text, "answers_belong_to_their_prompts", distorted),
    Mutant(an_answer_is_kept_twice, "no_row_has_two_answers"),
    Mutant(an_answers_file_is_named_twice, "no_row_has_two_answers"),
    Mutant(a_reserve_is_too_small, "the_budget_holds"),
    Mutant(the_maximum_cost_of_a_row_is_noted_too_low, "the_budget_holds"),
    Mutant(no_money_is_reserved_for_a_copy, "the_budget_holds", distorted),
    Mutant(a_batch_is_bought_at_other_rates_than_planned, "the_budget_holds"),
    Mutant(a_cost_is_noted_too_low, "the_budget_holds"),
    Mutant(a_cost_is_noted_too_low_at_first, "the_budget_holds"),
    Mutant(a_cost_is_noted_too_high, "the_budget_holds"),
    Mutant(the_cost_of_a_damaged_line_is_noted_far_too_high, "the_budget_holds", distorted),
    Mutant(the_cost_of_the_pilot_is_noted_too_low, "the_budget_holds", distorted),
    Mutant(a_question_of_the_pilot_is_not_noted, "the_budget_holds", distorted),
    Mutant(the_pilot_exceeds_the_budget, "the_budget_holds", distorted),
    Mutant(the_cost_of_the_pilot_is_noted_too_low, "the_budget_holds", single),
    Mutant(lost_calls_are_noted_without_a_cost, "the_budget_holds", single),
    Mutant(calls_cost_more_than_the_budget, "the_budget_holds", single),
    Mutant(the_journal_exceeds_the_budget, "the_budget_holds"),
    Mutant(the_provider_bills_more_than_the_budget, "the_budget_holds"),
    Mutant(a_limit_is_noted_lower_than_it_was, "reserves_follow_the_answers", thrifty),
    Mutant(a_cut_off_answer_is_kept, "reserves_follow_the_answers", thrifty),
    Mutant(a_whole_answer_is_noted_as_cut_off, "reserves_follow_the_answers", thrifty),
    Mutant(a_cut_off_row_is_asked_with_a_short_limit_again, "reserves_follow_the_answers", thrifty),
    Mutant(input_is_reserved_by_fewer_tokens_than_an_answer_had, "reserves_follow_the_answers", thrifty),
    Mutant(input_is_reserved_by_the_answers_after_one_had_more, "reserves_follow_the_answers", thrifty),
    Mutant(a_short_limit_is_not_noted, "the_budget_holds", thrifty),
    Mutant(a_reserve_is_too_small, "the_budget_holds", thrifty),
    Mutant(a_cost_is_noted_too_low, "the_budget_holds", thrifty),
    Mutant(an_answer_is_dropped, "every_billed_answer_is_kept", thrifty),
    Mutant(a_row_is_forgotten, "every_row_is_accounted_for"),
    Mutant(outcomes_are_noted_wrongly, "every_row_is_accounted_for"),
    Mutant(more_answers_are_noted_than_kept, "every_row_is_accounted_for"),
    Mutant(an_expired_row_is_noted_as_missing, "every_row_is_accounted_for"),
    Mutant(a_batch_is_left_open, "every_row_is_accounted_for"),
    Mutant(an_intent_is_noted_after_the_acceptance, "events_are_in_order"),
    Mutant(a_create_is_sent_without_its_record, "events_are_in_order"),
    Mutant(the_end_of_a_batch_is_not_noted, "events_are_in_order"),
    Mutant(a_recheck_is_noted_before_its_batch_is_stored, "events_are_in_order"),
    Mutant(a_batch_is_stored_before_it_has_ended, "events_are_in_order"),
    Mutant(the_folder_holds_an_unknown_file, "every_file_is_known_and_private"),
    Mutant(other_users_may_read_the_answers, "every_file_is_known_and_private"),
    Mutant(quarantined_lines_are_gone, "every_file_is_known_and_private", distorted),
    Mutant(a_file_holds_the_key, "every_file_is_known_and_private", options={"key": TOKEN}),
    Mutant(a_raw_file_is_damaged, "files_match_their_digests"),
    Mutant(a_noted_digest_is_wrong, "files_match_their_digests"),
    Mutant(the_result_lines_are_gone, "files_match_their_digests"),
    Mutant(an_answer_is_only_in_the_result_lines, "files_match_their_digests"),
    Mutant(an_answer_is_kept_as_a_refusal, "files_match_their_digests"),
    Mutant(the_tokens_differ_from_the_result_line, "files_match_their_digests"),
    Mutant(the_last_line_of_the_journal_is_torn, "files_match_their_digests"),
    Mutant(the_prompts_are_changed, "files_match_their_digests"),
]


def found(run: Copy, **options: Any) -> set[str]:
    """The invariants that do not hold."""
    verdict = audit(load(run.ledger, run.run, run.manifest, **{"rebuys": 1, **options}))
    return {name for name, one in verdict["invariants"].items() if one["problems"]}


@pytest.fixture
def copied(played: Callable[[Make], Path], tmp_path: Path) -> Callable[[Make], Copy]:
    return lambda make: Copy(Path(shutil.copytree(played(make), tmp_path / "copy")))


@pytest.fixture
def copy(copied: Callable[[Make], Copy]) -> Copy:
    return copied(eventful)


@pytest.mark.parametrize(
    "make", [eventful, distorted, single, thrifty, retried, restored], ids=lambda make: make.__name__
)
def test_a_good_run_passes(copied: Callable[[Make], Copy], make: Make) -> None:
    run = copied(make)
    assert found(run) == set()
    run.write()  # it also passes when this test has written it
    assert found(run) == set()
    if make is eventful:
        assert found(run, budget=BUDGET, rebuys=0) == set()


def test_the_good_runs_contain_every_kind_of_event(played: Callable[[Make], Path]) -> None:
    run = Copy(played(eventful))
    assert any(event["found"] for event in run.journal if event["event"] == "created")
    assert any(event["again"] for event in run.journal if event["event"] == "stored")
    assert any(event.get("owner") == "someone else" for event in run.events)
    assert [event for event in Copy(played(distorted)).journal if event["event"] == "duplicate"]
    assert b"call_lost" in everything_raw(Copy(played(single)))
    assert [event for event in Copy(played(thrifty)).journal if event["event"] == "stored" and event["cut_off"]]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.by}-{mutant.do.__name__}")
def test_a_broken_run_is_caught(copied: Callable[[Make], Copy], mutant: Mutant) -> None:
    run = copied(mutant.of)
    mutant.do(run)
    run.write()
    assert mutant.by in found(run, **mutant.options)


def test_every_invariant_is_broken_by_some_mutant() -> None:
    assert {mutant.by for mutant in MUTANTS} | {"a_finished_run_stays_unchanged"} == set(INVARIANTS)


@pytest.mark.parametrize("where", ["removed", "moved", "flipped", "foreign"])
def test_a_changed_journal_line_breaks_the_chain(copy: Copy, where: str) -> None:
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
    assert "files_match_their_digests" in found(copy)


def test_a_change_after_the_end_is_noticed(copy: Copy) -> None:
    before = audit(load(copy.ledger, copy.run, copy.manifest))["snapshot"]
    assert found(copy, before=before) == set()
    (copy.run / "lock").write_text("another process held the lock")
    assert found(copy, before=before) == set()
    whole = copy.ledger.read_bytes()
    copy.ledger.write_bytes(whole + json.dumps({**copy.events[-1], "event": "cancelled"}).encode() + b"\n")
    assert "a_finished_run_stays_unchanged" in found(copy, before=before)
    copy.ledger.write_bytes(whole)
    (copy.run / "report.html").touch(0o600)
    assert found(copy, before=before) == {"a_finished_run_stays_unchanged"}


def test_status_is_compared_with_the_files(copy: Copy) -> None:
    status = {"asked": 80, "answered": 80, "refused": 0, "failed": 0, "missing": 0}
    assert found(copy, status=status) == set()
    assert found(copy, status={**status, "answered": 79, "missing": 1}) == {"every_row_is_accounted_for"}
    assert found(copy, status={**status, "answered": 79, "failed": 1}) == {"every_row_is_accounted_for"}


def test_the_program_prints_one_line_per_invariant(copy: Copy) -> None:
    line = [sys.executable, "-m", "tests.auditor", "--ledger", str(copy.ledger), "--run", str(copy.run)]
    line += ["--manifest", str(copy.manifest)]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert [text.split()[:2] for text in ran.stdout.splitlines()] == [[name, "ok"] for name in INVARIANTS]
    a_created_event_is_dropped(copy)
    copy.write()
    ran = subprocess.run([*line, "--json"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["invariants"]["every_batch_is_on_record"]["problems"]


def test_the_auditor_shares_no_code_with_the_client() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        if path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "batchbench"], path
