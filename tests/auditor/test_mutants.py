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
from typing import Any, NamedTuple

import polars as pl
import pytest

from tests.auditor.evidence import zstd
from tests.auditor.invariants import INVARIANTS, audit, load
from tests.dispatch.conftest import manifests as manifests  # a fixture
from tests.dispatch.scene import Scene
from tests.emulator.driver import TOKEN
from tests.faults.first import DRAW, put_first

Json = dict[str, Any]
BUDGET = 20_000  # micro-dollars


Make = Callable[[Path, Path], Scene]


def eventful(folder: Path, manifests: Path) -> Scene:
    """Something was lost, found, expired and asked again, within a budget; with somebody else about."""
    rules: list[Json] = [
        {"do": "reset-after", "on": "create", "p": 0.5},
        {"do": "foreign", "key": "^[0-7]"},
        {"do": "expire-half", "seconds": 0.1, "key": "^[89ab]"},
    ]
    scene = Scene(folder, manifests, "openai", rules=rules)
    put_first(scene, DRAW)
    done = scene.run("--budget", "0.02", k=80, size=5)
    assert done.code == 0, done
    return scene


def distorted(folder: Path, manifests: Path) -> Scene:
    """Every create was doubled on its way and lines were damaged; what was lost was bought again, as it was wished."""
    lines = ("line-duplicate", "line-missing", "line-malformed", "line-policy")
    rules: list[Json] = [{"do": "dup-accept"}, *({"do": do, "nth": [place]} for place, do in enumerate(lines, 1))]
    scene = Scene(folder, manifests, "openai", rules=[*rules, {"do": "line-swapped", "nth": [5, 6]}])
    assert scene.run("--trial", "always", k=20, size=10).code == 6
    scene.end_faults()
    done = scene.run("--rebuy-missing", k=20, size=10)
    assert done.code == 0, done
    return scene


def single(folder: Path, manifests: Path) -> Scene:
    """A server without batches, some of whose answers got lost."""
    scene = Scene(folder, manifests, "chat", rules=[{"do": "reset-after", "on": "chat", "first": 1, "p": 0.3}])
    scene.price = "0.15,0.60"  # the emulator charges single calls twice what batches cost
    done = scene.run("--trial", "always", k=30, size=15)
    assert done.code == 0, done
    return scene


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Callable[[Make], Path]:
    """The folder of a run, each played once."""
    folders: dict[Make, Path] = {}

    def play(make: Make) -> Path:
        if make not in folders:
            folders[make] = tmp_path_factory.mktemp(make.__name__) / "scene"
            make(folders[make], manifests).close()
        return folders[make]

    return play


class Copy:
    """A run and its ledger, to be broken."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "state" / "ledger.jsonl"
        self.run = next(folder.glob("home/cache/*/*/run.json")).parent
        self.manifest = folder / "home" / "manifests" / self.run.parent.name
        lines = (self.run / "journal").read_bytes().split(b"\n")[:-1]
        self.journal: list[Json] = [json.loads(line.split(b" ", 2)[2]) for line in lines]
        self.tail = b""  # of the journal
        self.events: list[Json] = [json.loads(line) for line in self.ledger.read_bytes().split(b"\n") if line]

    def write(self) -> None:
        """Put the journal, chained anew, and the ledger back."""
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
        """An answered batch that is settled in one go, robbed of events of the journal; its `created`."""
        nonce = self.whole()["nonce"]
        created = next(e for e in self.journal if e["event"] == "created" and e["nonce"] == nonce)
        self.journal = [e for e in self.journal if not (e.get("nonce") == nonce and e["event"] in kinds)]
        return created

    def add(self, kind: str, nonce: str, **fields: Any) -> Json:
        """One more event at the end of the journal."""
        self.journal.append({"event": kind, "at": self.journal[-1]["at"], "nonce": nonce, **fields})
        return self.journal[-1]

    def insert(self, before: Json, kind: str, nonce: str, **fields: Any) -> None:
        """An event before another one."""
        event = {"event": kind, "at": before["at"], "nonce": nonce, **fields}
        self.journal.insert(self.journal.index(before), event)

    def struck(self, fault: str) -> tuple[Json, int]:
        """A batch with a line that a fault has struck, and the line's row."""
        ids = [one for e in self.mine("ended") for one in e.get("struck", {}).get(fault, [])]
        stored = {e["nonce"]: e for e in self.journal if e["event"] == "stored"}
        nonce, row, _ = next(one for one in ids if one.partition("-")[0] in stored).split("-")
        return stored[nonce], int(row)

    def raw(self, stored: Json, row: int) -> None:
        """Take a row's lines out of a batch's result file, and seal it again."""

        def cut(path: Path) -> None:
            lines = zstd.decompress(path.read_bytes()).split(b"\n")
            path.write_bytes(zstd.compress(b"\n".join(line for line in lines if b"-%d-0" % row not in line)))

        self.seal(stored, "raw/", cut)

    def lose(self, stored: Json, row: int) -> None:
        """Drop an answer as if the provider had not handed it out."""
        self.raw(stored, row)
        self.answers(stored, lambda frame: frame.filter(pl.col("id") != row))
        stored["answered"] -= 1
        stored["outcomes"]["answered"] -= 1
        stored["missing"] = sorted([*stored["missing"], [row, row + 1]])

    def say(self, stored: Json, row: int, **columns: Any) -> None:
        """Change what is kept of an answer."""
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
        """Change a file of answers, and seal it again."""
        self.seal(stored, "answers/", lambda path: change(pl.read_parquet(path)).write_parquet(path))

    def seal(self, stored: Json, folder: str, change: Callable[[Path], object]) -> None:
        part = next(part for part in stored["parts"] if part["file"].startswith(folder))
        change(self.run / part["file"])
        content = (self.run / part["file"]).read_bytes()
        part |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def stored_frame(run: Copy, stored: Json) -> pl.DataFrame:
    return pl.read_parquet(run.run / next(p["file"] for p in stored["parts"] if p["file"].startswith("answers/")))


def a_created_is_dropped(run: Copy) -> None:
    run.journal.remove(run.last("created"))


def an_intent_is_dropped(run: Copy) -> None:
    nonce = run.last("stored")["nonce"]
    run.journal = [event for event in run.journal if event.get("nonce") != nonce]


def a_batch_is_adopted_twice(run: Copy) -> None:
    first, second = [event for event in run.journal if event["event"] == "created"][:2]
    second["remote"] = first["remote"]


def a_batch_is_adopted_beside_another(run: Copy) -> None:
    first, second = [event for event in run.journal if event["event"] == "created"][:2]
    run.add("created", first["nonce"], remote=second["remote"], found=True)


def a_copy_is_adopted_as_well(run: Copy) -> None:
    copy = run.last("duplicate")
    run.insert(copy, "created", copy["nonce"], remote=copy["remote"], found=True)
    run.journal.remove(copy)


def a_batch_that_never_was_is_named(run: Copy) -> None:
    run.add("created", run.whole()["nonce"], remote="batch_never", found=True)


def nothing(run: Copy) -> None:
    """The run itself, judged by other rules."""


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
    (run.run / "answers" / "0123456789.json").touch(0o600)


def others_may_read_the_answers(run: Copy) -> None:
    (run.run / run.whole()["parts"][-1]["file"]).chmod(0o644)


def the_prompts_are_changed(run: Copy) -> None:
    path = run.manifest / "00000.parquet"
    pl.read_parquet(path).with_columns(prompt=pl.col("prompt") + ".").write_parquet(path)


def a_name_is_taken_back_while_the_batch_runs(run: Copy) -> None:
    """As if it had been refused; at the provider's it goes on, and will be charged."""
    created = run.without("ended", "stored")
    run.add("rejected", created["nonce"], reason="")
    keep_running(run, created["remote"])


def a_running_batch_is_called_void_by_a_person(run: Copy) -> None:
    created = run.without("created", "ended", "stored")
    run.add("unresolved", created["nonce"], reason="", candidates=[created["remote"]])
    run.add("void", created["nonce"], reason="")
    keep_running(run, created["remote"])


def a_batch_is_named_to_a_person_for_another_one(run: Copy) -> None:
    created = run.without("created", "ended", "stored")
    other = run.whole()["nonce"]
    run.insert(run.last("created"), "unresolved", other, reason="", candidates=[created["remote"]])


def a_person_is_told_another_id(run: Copy) -> None:
    created = run.without("created", "ended", "stored")
    run.add("unresolved", created["nonce"], reason="", candidates=["batch_other"])


def keep_running(run: Copy, batch: str) -> None:
    run.events = [e for e in run.events if not (e.get("batch") == batch and e["event"] in ("billed", "ended"))]


def the_client_made_the_copies_itself(run: Copy) -> None:
    run.events = [event for event in run.events if event.get("do") != "dup-accept"]


def the_client_made_one_more_copy_itself(run: Copy) -> None:
    """Beside one that somebody else made."""
    copy = run.last("duplicate")
    for event in [e for e in run.events if e.get("batch") == copy["remote"] and e["event"] in ("accepted", "ended")]:
        run.events.append({**event, "batch": "batch_more"})
    run.add("duplicate", copy["nonce"], remote="batch_more", reserve=copy["reserve"])


def a_copy_is_that_of_another_batch(run: Copy) -> None:
    run.last("duplicate")["nonce"] = run.journal[-1]["nonce"]


def a_copy_is_reserved_nothing_for(run: Copy) -> None:
    run.last("duplicate")["reserve"] = 0


def what_came_late_is_bought_all_the_same(run: Copy) -> None:
    stored, row = run.struck("line-missing")
    again = next(e for e in run.journal if e["event"] == "intent" and [row, row + 1] in e["ranges"])
    more = {"parts": [], "again": [], "quarantined": 0, "outcomes": {"answered": 1}, "missing": []}
    run.insert(again, "late", stored["nonce"], cost=stored["cost"], **more)


def what_is_running_is_intended_once_more(run: Copy) -> None:
    """And never sent, so that the provider knows nothing of it."""
    intend_once_more(run, next(event for event in run.journal if event["event"] == "created"))


def what_was_answered_is_intended_once_more(run: Copy) -> None:
    intend_once_more(run, run.last("stored"))


def intend_once_more(run: Copy, before: Json) -> None:
    first = next(event for event in run.journal if event["event"] == "intent")
    run.insert(before, "intent", "more", **{k: v for k, v in first.items() if k not in ("event", "at", "nonce")})
    run.add("rejected", "more", reason="")


def what_the_provider_has_answered_is_asked_again(run: Copy) -> None:
    """The ledger alone knows that it was, and not expired."""
    stored = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    billed = next(e for e in run.mine("billed") if e["ids"][0].startswith(stored["nonce"]))
    billed["ids"].append(f"{stored['nonce']}-{stored['again'][0][0]}-0")
    for name in ("costs", "texts"):
        billed[name].append(billed[name][0])


def what_was_asked_in_vain_thrice_is_asked_again(run: Copy) -> None:
    event = next(e for e in run.journal if e["event"] == "stored" and e["again"])
    event["again"] = event["again"] * 3


def a_call_is_billed_twice(run: Copy) -> None:
    run.events.append(next(e for e in run.events if e["event"] == "billed"))


def an_answer_is_dropped_and_called_missing(run: Copy) -> None:
    """Its result line, too, although the provider has handed out all of them."""
    stored = run.whole()
    run.lose(stored, run.row(stored))


def an_answer_is_neither_kept_nor_missing(run: Copy) -> None:
    stored = run.whole()
    run.lose(stored, run.row(stored))
    stored["missing"] = []
    for event in run.events:
        event["complete"] = False


def an_answer_is_called_missing_beside_its_result_line(run: Copy) -> None:
    """Which the provider did not hand out as a whole, but this one it did."""
    stored = run.whole()
    raw = run.run / stored["parts"][0]["file"]
    whole = raw.read_bytes()
    run.lose(stored, run.row(stored))
    run.seal(stored, "raw/", lambda path: path.write_bytes(whole))
    for event in run.events:
        event["complete"] = False


def an_answer_is_lost_of_a_batch_that_a_person_has_named(run: Copy) -> None:
    stored = run.whole()
    created = next(e for e in run.journal if e["event"] == "created" and e["nonce"] == stored["nonce"])
    run.insert(created, "unresolved", stored["nonce"], reason="", candidates=[created["remote"]])
    run.lose(stored, run.row(stored))


def an_answer_is_lost_whose_line_was_hardly_touched(run: Copy) -> None:
    run.lose(*run.struck("line-duplicate"))


def an_answer_whose_line_was_hardly_touched_is_another(run: Copy) -> None:
    stored, row = run.struck("line-duplicate")
    run.say(stored, row, text="A:000000000000")


def an_answer_whose_line_was_hardly_touched_has_failed(run: Copy) -> None:
    stored, row = run.struck("line-duplicate")
    run.say(stored, row, outcome="failed")


def an_answer_that_was_swapped_is_none_of_both(run: Copy) -> None:
    stored, row = run.struck("line-swapped")
    run.say(stored, row, text="A:000000000000")


def a_paid_answer_is_kept_as_failed(run: Copy) -> None:
    stored = run.whole()
    run.say(stored, run.row(stored), outcome="failed")


def a_batch_that_was_answered_is_forgotten_before_the_end(run: Copy) -> None:
    created = run.without("ended", "stored")
    run.add("rejected", created["nonce"], reason="")


def a_call_is_billed_and_not_kept(run: Copy) -> None:
    calls = [event for event in run.events if event["event"] == "billed"]
    run.events.append({**calls[-1], "ids": ["chatcmpl-more"]})


def two_answers_are_one_call(run: Copy) -> None:
    first, second = [e for e in run.journal if e["event"] == "stored"][:2]
    path = run.run / first["parts"][0]["file"]
    line = next(x for x in zstd.decompress(path.read_bytes()).split(b"\n") if b"chatcmpl-" in x)

    def add(path: Path) -> None:
        path.write_bytes(zstd.compress(zstd.decompress(path.read_bytes()) + line + b"\n"))

    run.seal(second, "raw/", add)


def a_kept_answer_is_of_no_call(run: Copy) -> None:
    taken = next(x for x in run.events if x["event"] == "billed" and x["ids"][0].encode() in everything_raw(run))
    run.events.remove(taken)


def everything_raw(run: Copy) -> bytes:
    return b"".join(zstd.decompress(path.read_bytes()) for path in run.run.glob("raw/*"))


def an_expired_row_is_kept_as_failed(run: Copy) -> None:
    """Nobody would ask it again."""
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


def answers_are_kept_of_a_batch_that_was_refused(run: Copy) -> None:
    nonce = run.whole()["nonce"]
    batch = next(e["batch"] for e in run.mine("accepted") if e["nonce"] == nonce)
    keep_running(run, batch)
    run.events.append({**run.events[-1], "event": "failed", "batch": batch, "at": 0.0, "errors": [{"line": 1}]})


def an_answer_is_that_of_a_row_that_the_batch_did_not_hold(run: Copy) -> None:
    stored = run.whole()
    far = pl.when(pl.col("id") == run.row(stored)).then(79).otherwise("id").cast(pl.UInt32)
    run.answers(stored, lambda frame: frame.with_columns(id=far))


def all_prompts_are_moved_by_one(run: Copy) -> None:
    """Kept as it was billed, and billed for what another row asks."""
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


def a_file_of_answers_is_named_twice(run: Copy) -> None:
    stored = run.whole()
    stored["parts"].append(stored["parts"][-1])
    stored["answered"] *= 2
    stored["outcomes"]["answered"] *= 2


def a_cost_is_noted_too_high(run: Copy) -> None:
    run.whole()["cost"] += 1


def a_cost_is_noted_far_too_high_because_a_line_was_damaged(run: Copy) -> None:
    stored, _ = run.struck("line-malformed")
    stored["cost"] += run.last("intent")["most"] * 10


def a_cost_is_noted_too_low_at_first(run: Copy) -> None:
    stored = run.whole()
    empty = {"parts": [], "again": [], "quarantined": 0, "outcomes": {}, "missing": []}
    run.add("late", stored["nonce"], cost=stored["cost"], **empty)
    stored["cost"] -= 1


def a_first_question_is_noted_too_low(run: Copy) -> None:
    run.last("passed")["cost"] -= 1


def a_first_question_is_not_noted(run: Copy) -> None:
    for kind in ("tried", "passed"):
        run.journal.remove(run.last(kind))


def a_first_question_has_no_room_in_the_budget(run: Copy) -> None:
    run.last("asked")["budget"] = 1_000_000
    run.last("tried")["reserve"] = 1_000_001


def what_one_row_may_cost_is_noted_too_low(run: Copy) -> None:
    run.last("intent")["most"] = 1


def calls_that_were_lost_are_noted_at_nothing(run: Copy) -> None:
    raw = {e["nonce"]: (run.run / e["parts"][0]["file"]) for e in run.journal if e["event"] == "stored"}
    for event in (event for event in run.journal if event["event"] == "stored"):
        lines = zstd.decompress(raw[event["nonce"]].read_bytes())
        event["cost"] = sum(e["cost"] for e in run.events if e["event"] == "billed" and e["ids"][0].encode() in lines)


def calls_cost_more_than_the_budget(run: Copy) -> None:
    """In the ledger only."""
    next(e for e in run.events if e["event"] == "billed")["cost"] += BUDGET
    run.journal[1]["budget"] = BUDGET


def what_was_answered_is_told_wrongly(run: Copy) -> None:
    run.whole()["outcomes"] = {"answered": 4, "refused": 1}


def an_expired_row_is_called_missing(run: Copy) -> None:
    """So that it takes a wish, and maybe money, to have it asked again."""
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


def an_end_is_not_noted(run: Copy) -> None:
    run.without("ended")


def an_answer_comes_late_before_its_batch_is_stored(run: Copy) -> None:
    stored = run.whole()
    run.insert(stored, "looked", stored["nonce"])


def a_batch_is_stored_before_it_has_ended(run: Copy) -> None:
    for event in run.mine("ended"):
        event["wall"] += 3600


def lines_that_were_set_aside_are_gone(run: Copy) -> None:
    stored, _ = run.struck("line-malformed")
    (run.run / "quarantine" / f"{stored['nonce']}.jsonl").unlink()


def the_key_lies_in_a_file(run: Copy) -> None:
    with (run.run / "lock").open("a") as file:
        file.write(TOKEN)


def a_digest_is_not_that_of_the_file(run: Copy) -> None:
    run.whole()["parts"][0]["sha256"] = "0" * 64


def the_result_lines_are_gone(run: Copy) -> None:
    stored = run.whole()
    for part in [part for part in stored["parts"] if part["file"].startswith("raw/")]:
        stored["parts"].remove(part)
        (run.run / part["file"]).unlink()


def an_answer_is_kept_as_a_refusal(run: Copy) -> None:
    stored = run.whole()
    run.say(stored, run.row(stored), outcome="refused")


def the_tokens_are_not_those_of_the_result_line(run: Copy) -> None:
    stored = run.whole()
    run.say(stored, run.row(stored), input_tokens=1)


def a_result_line_is_in_no_answers(run: Copy) -> None:
    """Nor in the ledger."""
    stored = run.whole()
    row = run.row(stored)
    run.answers(stored, lambda frame: frame.filter(pl.col("id") != row))
    for event in run.mine("billed"):
        for place in [k for k, one in enumerate(event["ids"]) if one == f"{stored['nonce']}-{row}-0"]:
            for name in ("ids", "costs", "texts"):
                del event[name][place]


def the_last_line_of_the_journal_is_torn(run: Copy) -> None:
    run.tail = b"00000000 99 {"


class Mutant(NamedTuple):
    """A way of breaking a run, and who has to notice."""

    do: Callable[[Copy], None]
    by: str
    of: Make = eventful
    options: Json = {}  # noqa: RUF012 - never changed


MUTANTS = [
    Mutant(a_created_is_dropped, "I1"),
    Mutant(an_intent_is_dropped, "I1"),
    Mutant(a_batch_is_adopted_twice, "I1"),
    Mutant(a_name_is_taken_back_while_the_batch_runs, "I1"),
    Mutant(a_name_is_taken_back_while_the_batch_runs, "I1", options={"unfinished": True}),
    Mutant(a_running_batch_is_called_void_by_a_person, "I1"),
    Mutant(a_batch_is_named_to_a_person_for_another_one, "I1"),
    Mutant(a_person_is_told_another_id, "I1"),
    Mutant(a_batch_is_adopted_beside_another, "I1"),
    Mutant(a_batch_that_never_was_is_named, "I1"),
    Mutant(the_client_made_the_copies_itself, "I1", distorted),
    Mutant(the_client_made_the_copies_itself, "I3", distorted),
    Mutant(the_client_made_the_copies_itself, "I4", distorted),
    Mutant(the_client_made_one_more_copy_itself, "I1", distorted),
    Mutant(a_foreign_batch_is_adopted, "I2"),
    Mutant(a_batch_is_adopted_beside_another, "I2"),
    Mutant(a_copy_is_adopted_as_well, "I2", distorted),
    Mutant(a_copy_is_that_of_another_batch, "I2", distorted),
    Mutant(ours_is_called_foreign, "I2"),
    Mutant(the_same_rows_are_accepted_twice, "I3"),
    Mutant(a_row_is_asked_while_it_is_running, "I3"),
    Mutant(what_is_running_is_intended_once_more, "I3"),
    Mutant(what_was_answered_is_intended_once_more, "I3"),
    Mutant(what_the_provider_has_answered_is_asked_again, "I3"),
    Mutant(what_came_late_is_bought_all_the_same, "I3", distorted),
    Mutant(nothing, "I3", distorted, {"rebuys": 0}),
    Mutant(what_was_asked_in_vain_thrice_is_asked_again, "I3", options={"rebuys": 0}),
    Mutant(an_answer_is_billed_twice, "I4"),
    Mutant(a_call_is_billed_twice, "I4", single),
    Mutant(two_answers_are_swapped, "I5"),
    Mutant(an_answer_is_dropped, "I5"),
    Mutant(an_answer_is_dropped_and_called_missing, "I5"),
    Mutant(an_answer_is_neither_kept_nor_missing, "I5"),
    Mutant(an_answer_is_called_missing_beside_its_result_line, "I5"),
    Mutant(an_answer_is_lost_of_a_batch_that_a_person_has_named, "I5"),
    Mutant(an_answer_is_lost_whose_line_was_hardly_touched, "I5", distorted),
    Mutant(an_answer_whose_line_was_hardly_touched_is_another, "I5", distorted),
    Mutant(an_answer_whose_line_was_hardly_touched_has_failed, "I5", distorted),
    Mutant(an_answer_that_was_swapped_is_none_of_both, "I5", distorted),
    Mutant(a_paid_answer_is_kept_as_failed, "I5"),
    Mutant(a_batch_that_was_answered_is_forgotten_before_the_end, "I5", options={"unfinished": True}),
    Mutant(a_call_is_billed_and_not_kept, "I5", single),
    Mutant(two_answers_are_one_call, "I5", single),
    Mutant(an_answer_is_invented, "I6"),
    Mutant(a_kept_answer_is_of_no_call, "I6", single),
    Mutant(an_expired_row_is_kept_as_failed, "I6"),
    Mutant(answers_are_kept_of_a_batch_that_was_refused, "I6"),
    Mutant(an_answer_is_that_of_a_row_that_the_batch_did_not_hold, "I6"),
    Mutant(ids_and_lines_are_joined_by_their_order, "I7"),
    Mutant(all_prompts_are_moved_by_one, "I7"),
    Mutant(an_answer_whose_line_was_hardly_touched_is_another, "I7", distorted),
    Mutant(an_answer_is_kept_twice, "I8"),
    Mutant(a_file_of_answers_is_named_twice, "I8"),
    Mutant(a_reserve_is_too_small, "I9"),
    Mutant(what_one_row_may_cost_is_noted_too_low, "I9"),
    Mutant(a_copy_is_reserved_nothing_for, "I9", distorted),
    Mutant(a_cost_is_noted_too_low, "I9"),
    Mutant(a_cost_is_noted_too_low_at_first, "I9"),
    Mutant(a_cost_is_noted_too_high, "I9"),
    Mutant(a_cost_is_noted_far_too_high_because_a_line_was_damaged, "I9", distorted),
    Mutant(a_first_question_is_noted_too_low, "I9", distorted),
    Mutant(a_first_question_is_not_noted, "I9", distorted),
    Mutant(a_first_question_has_no_room_in_the_budget, "I9", distorted),
    Mutant(a_first_question_is_noted_too_low, "I9", single),
    Mutant(calls_that_were_lost_are_noted_at_nothing, "I9", single),
    Mutant(calls_cost_more_than_the_budget, "I9", single),
    Mutant(the_budget_is_exceeded_on_paper, "I9"),
    Mutant(the_provider_bills_more_than_the_budget, "I9"),
    Mutant(a_row_is_forgotten, "I10"),
    Mutant(what_was_answered_is_told_wrongly, "I10"),
    Mutant(more_answers_are_noted_than_kept, "I10"),
    Mutant(an_expired_row_is_called_missing, "I10"),
    Mutant(a_batch_is_left_open, "I10"),
    Mutant(an_intent_comes_after_the_acceptance, "I12"),
    Mutant(a_create_is_sent_without_its_record, "I12"),
    Mutant(an_end_is_not_noted, "I12"),
    Mutant(an_answer_comes_late_before_its_batch_is_stored, "I12"),
    Mutant(a_batch_is_stored_before_it_has_ended, "I12"),
    Mutant(a_stranger_lies_in_the_folder, "I14"),
    Mutant(others_may_read_the_answers, "I14"),
    Mutant(lines_that_were_set_aside_are_gone, "I14", distorted),
    Mutant(the_key_lies_in_a_file, "I14", options={"key": TOKEN}),
    Mutant(a_raw_file_is_damaged, "I15"),
    Mutant(a_digest_is_not_that_of_the_file, "I15"),
    Mutant(the_result_lines_are_gone, "I15"),
    Mutant(a_result_line_is_in_no_answers, "I15"),
    Mutant(an_answer_is_kept_as_a_refusal, "I15"),
    Mutant(the_tokens_are_not_those_of_the_result_line, "I15"),
    Mutant(the_last_line_of_the_journal_is_torn, "I15"),
    Mutant(the_prompts_are_changed, "I15"),
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


@pytest.mark.parametrize("make", [eventful, distorted, single], ids=lambda make: make.__name__)
def test_a_good_run_passes(copied: Callable[[Make], Copy], make: Make) -> None:
    run = copied(make)
    assert found(run) == set()
    run.write()  # chained and written by us, it still does
    assert found(run) == set()
    if make is eventful:
        assert found(run, budget=BUDGET, rebuys=0) == set()


def test_the_good_runs_have_been_through_enough(played: Callable[[Make], Path]) -> None:
    run = Copy(played(eventful))
    assert any(event["found"] for event in run.journal if event["event"] == "created")
    assert any(event["again"] for event in run.journal if event["event"] == "stored")
    assert any(event.get("owner") == "someone else" for event in run.events)
    assert [event for event in Copy(played(distorted)).journal if event["event"] == "duplicate"]
    assert b"call_lost" in everything_raw(Copy(played(single)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.by}-{mutant.do.__name__}")
def test_a_broken_run_is_caught(copied: Callable[[Make], Copy], mutant: Mutant) -> None:
    run = copied(mutant.of)
    mutant.do(run)
    run.write()
    assert mutant.by in found(run, **mutant.options)


def test_every_invariant_is_broken_by_some_mutant() -> None:
    assert {mutant.by for mutant in MUTANTS} | {"I13"} == set(INVARIANTS)


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
    (copy.run / "lock").write_text("somebody has looked")
    assert found(copy, before=before) == set()
    whole = copy.ledger.read_bytes()
    copy.ledger.write_bytes(whole + json.dumps({**copy.events[-1], "event": "cancelled"}).encode() + b"\n")
    assert "I13" in found(copy, before=before)
    copy.ledger.write_bytes(whole)
    (copy.run / "report.html").touch(0o600)
    assert found(copy, before=before) == {"I13"}


def test_status_is_held_against_the_files(copy: Copy) -> None:
    told = {"asked": 80, "answered": 80, "refused": 0, "failed": 0, "missing": 0}
    assert found(copy, status=told) == set()
    assert found(copy, status={**told, "answered": 79, "missing": 1}) == {"I10"}
    assert found(copy, status={**told, "answered": 79, "failed": 1}) == {"I10"}


def test_the_program_prints_a_line_per_invariant(copy: Copy) -> None:
    line = [sys.executable, "-m", "tests.auditor", "--ledger", str(copy.ledger), "--run", str(copy.run)]
    line += ["--manifest", str(copy.manifest)]
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
