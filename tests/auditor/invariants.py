"""The invariants, one function each: it yields what is wrong, and returns what was looked at."""

import hashlib
import stat
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.auditor.evidence import Folder, Journal, Json, Ledger, Manifest, Row, Submission, digest, read_line, rows_of

WINDOW = 86_400.0  # seconds for which a void batch's reserve stands
TRIES = 3  # after which a row that no batch got to is given up
STEPS = {  # event -> states it may follow; "" is no state yet
    "intent": {""},
    "uploaded": {"intent"},
    "creating": {"intent", "uploaded"},
    "created": {"creating", "unresolved"},
    "ended": {"created"},
    "stored": {"ended"},
    "void": {"creating", "unresolved"},
    "rejected": {"intent", "uploaded", "creating", "created"},
    "unresolved": {"creating", "created", "ended"},
}
KNOWN = {"run.json", "journal", "lock", "metrics.json", "metrics.parquet", "cells.parquet", "report.html"}
Check = Generator[str, None, str]


@dataclass
class Case:
    """Everything there is to be judged, and what follows from it directly."""

    ledger: Ledger
    journal: Journal
    manifest: Manifest
    folder: Folder
    budget: int | None = None
    unfinished: bool = False
    status: Json | None = None
    before: Json | None = None
    key: str = ""
    ours: list[Submission] = field(default_factory=list)
    intents: dict[str, Json] = field(default_factory=dict)
    created: dict[str, list[Json]] = field(default_factory=dict)  # remote -> events
    copies: set[str] = field(default_factory=set)  # remotes that somebody between us and the provider made
    unresolved: set[str] = field(default_factory=set)  # remotes a person has to decide about
    stored: dict[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ours = [batch for batch in self.ledger.batches.values() if batch.owner == "client"]
        self.intents = {event["nonce"]: event for event in self.journal.kind("intent")}
        for event in self.journal.kind("created"):
            before = self.created.setdefault(event["remote"], [])
            # A person may confirm what was known before: that the order of steps allows it is judged elsewhere.
            before += [event] * all(one["nonce"] != event["nonce"] for one in before)
        self.copies = {event["remote"] for event in self.journal.kind("duplicate")}
        self.unresolved = {one for event in self.journal.kind("unresolved") for one in event["candidates"]}
        for event in self.journal.kind("stored", "late"):
            before = self.stored.get(event["nonce"], {"parts": [], "again": [], "answered": 0})
            parts, again = before["parts"] + event["parts"], before["again"] + event["again"]
            answered = event.get("answered", before["answered"] + sum(event["outcomes"].values()))
            self.stored[event["nonce"]] = {**event, "parts": parts, "again": again, "answered": answered}

    def states(self) -> dict[str, str]:
        return {e["nonce"]: e["event"] for e in self.journal.events if e["event"] in STEPS}

    def bound(self, row: int, rates: Json) -> int:
        """The least that a reserve for a row may be: a token for every byte of it, and the longest answer."""
        size = len(self.manifest.prompts[row].encode()) + len((self.folder.target["system"] or "").encode())
        return -(-(size * rates["input"] + self.folder.target["max_tokens"] * rates["output"]) // 1_000_000)


def i1(case: Case) -> Check:
    open_yet = {nonce for nonce, state in case.states().items() if state == "creating"} if case.unfinished else set()
    for batch in case.ours:
        named = len(case.created.get(batch.id, ())) + (batch.id in case.copies)
        if batch.nonce not in case.intents:
            yield f"batch {batch.id} carries {batch.nonce}, which the journal never intended"
        elif named > 1 or (named == 0 and batch.id not in case.unresolved and batch.nonce not in open_yet):
            yield f"batch {batch.id} of {batch.nonce} is named {named} times"
    for remote in [*case.created, *case.copies]:
        if remote not in case.ledger.batches:
            yield f"batch {remote} is in the journal, and the provider never accepted it"
    return f"{len(case.ours)} batches accepted, {len(case.copies)} copies, {len(case.unresolved)} unresolved"


def i2(case: Case) -> Check:
    seen: Counter[str] = Counter()
    for remote, events in case.created.items():
        batch = case.ledger.batches.get(remote)
        for event in events:
            seen[event["nonce"]] += 1
            if batch and (batch.owner != "client" or batch.nonce != event["nonce"]):
                yield f"batch {remote} is {batch.nonce}'s and was adopted for {event['nonce']}"
    yield from (f"{nonce} has {count} batches" for nonce, count in seen.items() if count > 1)
    for event in case.journal.kind("foreign"):
        if case.ledger.batches[event["remote"]].owner == "client":
            yield f"batch {event['remote']} is ours and was called foreign"
    found = sum(event["found"] for event in case.journal.kind("created"))
    return f"{len(case.created)} adopted, {found} of them found by looking, {len(case.journal.kind('foreign'))} foreign"


def _originals(case: Case) -> list[Submission]:
    return [batch for batch in case.ours if batch.id not in case.copies]


def _rebought(case: Case, batch: Submission, row: Row) -> bool:
    """Whether the journal says that a row was lost by the provider, so that buying it again was the user's wish."""
    return batch.nonce in case.stored and row[0] in rows_of(case.stored[batch.nonce]["missing"])


def i3(case: Case) -> Check:
    last: dict[Row, Submission] = {}
    again = 0
    for batch in sorted(_originals(case), key=lambda one: one.place):
        for custom_id, row in zip(batch.ids, batch.rows(), strict=True):
            earlier = last.get(row)
            last[row] = batch
            if earlier is None:
                continue
            again += 1
            if earlier.ended is None or earlier.ended[1] > batch.place or earlier.ended[0] > batch.t:
                yield f"{custom_id} was accepted while {earlier.id} was running"
            elif f"{earlier.nonce}-{row[0]}-{row[1]}" in earlier.billed and not _rebought(case, earlier, row):
                yield f"{custom_id} was accepted although {earlier.id} had answered it"
    return f"{len(last)} rows, {again} accepted again"


def i4(case: Case) -> Check:
    billed: Counter[Row] = Counter()
    for batch in _originals(case):
        yield from (f"{one} was billed twice in {batch.id}" for one in batch.twice)
        for custom_id, row in zip(batch.ids, batch.rows(), strict=True):
            billed[row] += custom_id in batch.billed and not _rebought(case, batch, row)
    yield from (f"row {row} was billed {count} times" for row, count in billed.items() if count > 1)
    copies = sum(len(batch.billed) for batch in case.ours if batch.id in case.copies)
    return f"{sum(len(batch.billed) for batch in case.ours)} answers billed, {copies} of them in copies"


def _kept(case: Case) -> dict[str, Json]:
    return {f"{nonce}-{row['id']}-{row['rep']}": row for nonce, rows in case.folder.answers.items() for row in rows}


def i5(case: Case) -> Check:
    kept, damaged, lost = _kept(case), 0, 0
    for batch in case.ours:
        if batch.id in case.copies | case.unresolved or (case.unfinished and batch.nonce not in case.stored):
            continue
        missing = set(rows_of(case.stored[batch.nonce]["missing"])) if batch.nonce in case.stored else set()
        for custom_id, text in batch.billed.items():
            answer = kept.get(custom_id)
            if custom_id in batch.struck:
                damaged += 1
                lost += answer is None
                if answer is None and int(custom_id.split("-")[1]) not in missing:
                    yield f"{custom_id} was billed, damaged, and is nowhere"
            elif answer is None:
                yield f"{custom_id} was billed and is not kept"
            elif hashlib.sha256((answer["text"] or "").encode()).hexdigest()[:12] != text:
                yield f"{custom_id} was kept with another text"
    return f"{len(kept)} answers kept, {damaged} lines damaged by the provider, {lost} of them without an answer"


def i6(case: Case) -> Check:
    by_nonce = {event["nonce"]: remote for remote, events in case.created.items() for event in events}
    ids = {nonce: set(case.ledger.batches[one].ids) for nonce, one in by_nonce.items() if one in case.ledger.batches}
    for custom_id, row in _kept(case).items():
        nonce = custom_id.partition("-")[0]
        batch = case.ledger.batches.get(by_nonce.get(nonce, ""))
        if batch and batch.blamed:
            asked = rows_of(case.intents[nonce]["ranges"])
            if row["outcome"] != "failed" or asked.index(row["id"]) + 1 not in batch.blamed:
                yield f"{custom_id} is kept, and was not to blame for the end of its batch"
        elif batch is None or custom_id not in ids[nonce]:
            yield f"{custom_id} is kept, and no batch of that nonce held it"
        elif row["outcome"] in ("answered", "truncated", "refused") and custom_id not in batch.billed:
            yield f"{custom_id} is kept, and was never billed"
    return f"{len(case.folder.answers)} files"


def i7(case: Case) -> Check:
    struck = {one for batch in case.ours for one in batch.struck}
    checked = 0
    for custom_id, row in _kept(case).items():
        if row["outcome"] != "answered" or custom_id in struck:
            continue
        checked += 1
        if row["text"] != "A:" + digest(case.manifest.prompts[row["id"]].encode())[:12]:
            yield f"{custom_id} is not the answer to its prompt"
    return f"{checked} answers belong to their prompts"


def i8(case: Case) -> Check:
    seen = Counter((row["id"], row["rep"]) for rows in case.folder.answers.values() for row in rows)
    yield from (f"row {row} has {count} answers" for row, count in seen.items() if count > 1)
    return f"{len(seen)} rows with one answer"


def i9(case: Case) -> Check:
    yield from _journal_within_budget(case)
    asked = case.journal.kind("asked")
    billed, running, most = 0, dict.fromkeys([""], 0), 0
    copies = {batch.id for batch in case.ours if batch.id in case.copies}
    for event in case.ledger.events:
        if event.get("batch") == "sync":  # a trial
            billed += event["cost"]
        batch = case.ledger.batches.get(event.get("batch", ""))
        if batch is None or batch.owner != "client" or batch.id in copies:
            continue
        rates = next((a["rates"] for a in reversed(asked) if a["at"] <= event["wall"]), asked[0]["rates"])
        match event["event"]:
            case "accepted":
                running[batch.id] = sum(case.bound(row, rates) for row, _ in batch.rows())
            case "billed":
                billed += event["cost"]
                running[batch.id] -= sum(case.bound(int(one.split("-")[1]), rates) for one in event["ids"])
            case "ended" | "failed":
                running[batch.id] = 0
        budget = case.budget
        if budget is None:
            budget = next((a["budget"] for a in reversed(asked) if a["at"] <= event["wall"]), None)
        most = max(most, billed + sum(running.values()))
        if budget is not None and billed + sum(running.values()) > budget:
            yield f"{billed} billed and {sum(running.values())} running exceed {budget} at {event['t']}"
    for nonce, event in case.stored.items():
        cost = sum(sum(b.costs.values()) for b in _originals(case) if b.nonce == nonce)
        struck = any(b.struck for b in case.ours if b.nonce == nonce)
        if event["cost"] != cost and not (struck and event["cost"] > cost):
            yield f"{nonce} was billed {cost}, and {event['cost']} are noted"
    return f"{billed} micro-dollars billed, never more than {most} with what was running"


def _journal_within_budget(case: Case) -> Generator[str, None, None]:
    rates, budget = {}, None
    costs: dict[str, int] = {}
    held: dict[str, int] = {}
    voids: dict[str, float] = {}
    for event in case.journal.events:
        nonce = event.get("nonce", "")
        match event["event"]:
            case "asked":
                rates, budget = event["rates"], event["budget"]
            case "intent":
                held[nonce] = event["reserve"]
                now = sum(amount for one, amount in held.items() if event["at"] < voids.get(one, event["at"]) + WINDOW)
                if budget is not None and sum(costs.values()) + now > budget:
                    yield f"{nonce}: {sum(costs.values())} spent and {now} reserved exceed {budget}"
                least = sum(case.bound(row, rates) for row in rows_of(event["ranges"]))
                if event["reserve"] < least:
                    yield f"{nonce} reserves {event['reserve']}, and may cost {least}"
            case "duplicate":
                held[event["remote"]] = event["reserve"]
            case "tried":
                held["trial"] = held.get("trial", 0) + event["reserve"]
            case "passed":
                costs["trial"] = costs.get("trial", 0) + event["cost"]
                held["trial"] = 0
            case "stored" | "rejected":
                costs[nonce] = event.get("cost", 0)
                held.pop(nonce)
            case "late":
                costs[nonce] = event["cost"]
            case "void":
                voids[nonce] = event["at"]


def i10(case: Case) -> Check:
    for nonce, event in case.stored.items():
        answered = [row["id"] for row in case.folder.answers.get(nonce, [])]
        told = sorted([*answered, *rows_of(event["again"]), *rows_of(event["missing"])])
        if told != sorted(rows_of(case.intents[nonce]["ranges"])) or event["answered"] != len(answered):
            yield f"{nonce}: answered, again and missing are not the rows it asked"
    asked = case.journal.kind("asked")[-1]
    wanted = {(r, k) for r in range(asked["items"] * case.manifest.variants) for k in range(asked["repetitions"])}
    ends = {(row["id"], row["rep"]): row["outcome"] for rows in case.folder.answers.values() for row in rows}
    ends = {row: end for row, end in ends.items() if row in wanted}
    fruitless = [
        {name: [(row, case.intents[nonce]["rep"]) for row in rows_of(event[name])] for name in ("missing", "again")}
        for nonce, event in case.stored.items()
    ]
    tries = Counter(row for one in fruitless for row in one["again"])
    missing = {row for one in fruitless for row in one["missing"]} | {row for row in tries if tries[row] >= TRIES}
    missing = (missing & wanted) - ends.keys()
    if case.status is not None:
        count = Counter(ends.values())
        mine = {"asked": len(wanted), "answered": count["answered"] + count["truncated"], "missing": len(missing)}
        mine |= {"refused": count["refused"] + count["filtered"], "failed": count["failed"]}
        told_by = {name: case.status[name] for name in mine}
        if told_by != mine:
            yield f"status says {told_by}, the files say {mine}"
    states = Counter(case.states().values())
    if not case.unfinished and set(states) - {"stored", "void", "rejected", "unresolved"}:
        yield f"the run has stopped with batches open: {dict(states)}"
    return f"{len(ends)} of {len(wanted)} answered or failed, {len(missing)} missing, {dict(states)}"


def i12(case: Case) -> Check:
    state: dict[str, str] = {}
    at: dict[tuple[str, str], float] = {}
    for event in case.journal.events:
        name, nonce = event["event"], event.get("nonce", "")
        if name in STEPS:
            if state.get(nonce, "") not in STEPS[name]:
                yield f"{nonce}: `{name}` follows `{state.get(nonce, '')}`"
            state[nonce] = name
            at[nonce, name] = event["at"]
        elif nonce and nonce not in state:
            yield f"`{name}` of {nonce}, which was never intended"
    for batch in case.ours:
        for name in ("intent", "creating"):
            if at.get((batch.nonce, name), batch.wall + 1) > batch.wall:
                yield f"batch {batch.id} was accepted before `{name}` of {batch.nonce} was written"
    return f"{len(state)} batches in {len(case.journal.events)} events"


def i13(case: Case) -> Check:
    if case.before is None:
        return "not asked for"
    fresh = [event for event in case.ledger.events[case.before["events"] :] if event["event"] != "downloaded"]
    yield from (f"`{event['event']}` reached the provider since" for event in fresh)
    if case.folder.state() != case.before["folder"]:
        yield "the run's bytes have changed"
    return "nothing has changed" if not fresh else f"{len(fresh)} events"


def i14(case: Case) -> Check:
    known = KNOWN | {part["file"] for event in case.stored.values() for part in event["parts"]}
    open_yet = set(case.intents) - set(case.stored) if case.unfinished else set()
    files = case.folder.files()
    for name, path in files.items():
        nonce = Path(name).name.removeprefix(".scratch-").split(".")[0].partition("-")[0]
        beside = name.startswith(("quarantine/", "spool/")) and nonce in case.intents
        if name not in known and not beside and nonce not in open_yet:
            yield f"{name}: nobody knows this file"
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 or not path.is_file() or path.is_symlink():
            yield f"{name}: others may read it, or it is no plain file"
        if case.key and case.key.encode() in path.read_bytes():
            yield f"{name} holds the key"
    return f"{len(files)} files"


def i15(case: Case) -> Check:
    yield from [*case.journal.damage, *case.manifest.damage]
    if case.journal.torn and not case.unfinished:
        yield "the journal's last line is torn"
    provider = case.folder.target["provider"]
    struck = {one for batch in case.ours for one in batch.struck}
    asked = {one for batch in case.ours for one in batch.ids}
    kept, lines = _kept(case), 0
    for event in case.stored.values():
        for part in event["parts"]:
            path = case.folder.path / part["file"]
            content = path.read_bytes() if path.exists() else b""
            if (len(content), digest(content)) != (part["bytes"], part["sha256"]):
                yield f"{part['file']} is not what was sealed"
                continue
            if not part["file"].startswith("raw/"):
                continue
            for line in case.folder.raw(part["file"]):
                found = read_line(line, provider)
                if found is None or found[0] in struck or found[0] not in asked:
                    continue  # a line the provider damaged, or one that answers nothing we asked
                lines += 1
                custom_id, text, tokens_in, tokens_out = found
                row = kept.get(custom_id)
                if text is not None and row is None:
                    yield f"{custom_id} is in the raw lines and not in the answers"
                elif row and text is not None and (row["text"] or "", row["input_tokens"], row["output_tokens"]) != (text, tokens_in, tokens_out):  # fmt: skip  # noqa: E501
                    yield f"{custom_id} differs from its raw line"
    return f"{len(case.journal.events)} events, {lines} raw lines"


INVARIANTS: dict[str, Callable[[Case], Check]] = {
    check.__name__.upper(): check for check in (i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i12, i13, i14, i15)
}


def audit(case: Case) -> Json:
    """Every invariant: what was looked at, and what is wrong."""
    found: Json = {}
    for name, check in INVARIANTS.items():
        problems: list[str] = []
        steps = check(case)
        try:
            while True:
                problems.append(next(steps))
        except StopIteration as end:
            found[name] = {"looked_at": end.value, "problems": problems}
        except (KeyError, IndexError, ValueError, TypeError) as error:  # evidence so broken that it cannot be judged
            found[name] = {"looked_at": "", "problems": [*problems, f"cannot be judged: {error!r}"]}
    snapshot = {"events": len(case.ledger.events), "folder": case.folder.state()}
    return {"ok": not any(one["problems"] for one in found.values()), "invariants": found, "snapshot": snapshot}


def load(ledger: Path, run: Path, manifest: Path, **options: Any) -> Case:
    """The evidence, read."""
    return Case(
        Ledger.read(ledger), Journal.read(run / "journal"), Manifest.read(manifest), Folder.read(run), **options
    )
