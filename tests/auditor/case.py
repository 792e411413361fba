"""All the evidence about a run, and what follows from it directly."""

import math
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property

from tests.auditor.evidence import (
    Call,
    Folder,
    Journal,
    Json,
    Ledger,
    Manifest,
    Reading,
    Row,
    Submission,
    digest,
    parsed,
    read_line,
    rows_of,
)

TRIES = 3  # batches that may leave a row unanswered before it is given up
NOTHING_RAN = {"void", "cleared", "rejected"}
SETTLED = NOTHING_RAN | {"stored"}
STEPS = {  # event -> states that it may follow; "" is the start
    "intent": {""},
    "adopted": {"", "void", "cleared", "rejected"},  # an intent for a batch that exists already
    "uploaded": {"intent"},
    "creating": {"intent", "uploaded"},
    "created": {"creating", "unresolved", "void"},
    "ended": {"created", "adopted", "ended"},
    "stored": {"ended"},
    "void": {"creating", "unresolved"},
    "cleared": {"void"},
    "rejected": {"intent", "uploaded", "creating", "created", "adopted"},
    "unresolved": {"creating", "created", "adopted", "ended"},
}
Problems = Generator[str, None, None]
Check = Generator[str, None, str]  # yields what is wrong, and returns what was examined


@dataclass
class Stored:
    """What the journal says about a batch's results, over all events."""

    at: list[float] = field(default_factory=list)  # when the client read its results
    parts: list[Json] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    cut_off: set[int] = field(default_factory=set)  # rows of `again` that were answered, but not to the end
    missing: set[int] = field(default_factory=set)
    answered: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    counted: bool = True  # whether the journal has the outcomes
    quarantined: int = 0

    def add(self, event: Json) -> None:
        self.at.append(event["at"])
        self.parts += event["parts"]
        self.again += rows_of(event["again"])
        self.cut_off |= set(rows_of(event.get("cut_off", [])))
        self.missing = set(rows_of(event["missing"]))
        outcomes = event.get("outcomes", {})  # none in the oldest journals
        self.counted &= "outcomes" in event
        self.answered += event.get("answered", sum(outcomes.values()))
        self.outcomes.update(outcomes)
        self.quarantined += event["quarantined"]


@dataclass
class Purchases:
    """The rows of every intent, compared with what the journal said about them at that time."""

    wrong: list[str] = field(default_factory=list)
    lost: set[tuple[str, int]] = field(default_factory=set)  # nonce, row: missing when the row was bought again
    rebought: Counter[Row] = field(default_factory=Counter)  # purchases that need --rebuy-missing


def step(event: Json) -> str:
    """The name of an event, where an intent for a batch that exists already has its own name."""
    return "adopted" if event["event"] == "intent" and event.get("remote") else str(event["event"])


def current_answers(names: list[str]) -> list[str]:
    """The files with the answers of a batch: one that was made by reading its lines again replaces those before it."""
    answers = [name for name in names if name.startswith("answers/")]
    return answers[max((number for number, name in enumerate(answers) if "-reread" in name), default=0) :]


@dataclass
class Case:
    ledger: Ledger
    journal: Journal
    manifest: Manifest
    folder: Folder
    budget: int | None = None
    rebuys: int = 0  # how often the user typed --rebuy-missing
    unfinished: bool = False
    wrong_clock: bool = False  # the client's clock was wrong, so its times cannot be compared with the ledger's
    late_listing: bool = False  # the listing showed a batch too late, so that a void batch may turn out to exist
    status: Json | None = None
    before: Json | None = None
    key: str = ""

    def __post_init__(self) -> None:
        self.provider: str = self.folder.target["provider"]
        self.calls_singly = self.provider == "chat"  # the client itself splits such a batch into calls
        self.ours = [batch for batch in self.ledger.batches.values() if batch.owner == "client"]
        asked: Json = {}
        self.intents = {event["nonce"]: event for event in self.journal.kind("intent")}
        for event in self.intents.values():  # the oldest journals have no bound for each row
            event["most"] = event.get("most") or -(-event["reserve"] // event["rows"])
        self.rates: dict[str, Json] = {}  # nonce -> at which it was bought; older journals: the plan before the intent
        for event in self.journal.kind("asked", "intent"):
            asked = event["rates"] if event["event"] == "asked" else asked
            if event["event"] == "intent":
                self.rates[event["nonce"]] = event.get("rates") or asked
        # nonce -> the limit in its requests if it is not the target's own, and the tokens per byte it was reserved by
        self.limits: dict[str, int | None] = {one: event.get("max_tokens") for one, event in self.intents.items()}
        self.ratios: dict[str, float | None] = {
            one: event.get("tokens_per_byte") for one, event in self.intents.items()
        }
        self.learns = any(ratio is not None for ratio in self.ratios.values())
        steps = [(event["nonce"], step(event)) for event in self.journal.events if step(event) in STEPS]
        self.states: dict[str, str] = dict(steps)
        self.created: dict[str, set[str]] = {}  # remote -> nonces; a user may name a batch again
        for event in self.journal.kind("created", "intent"):
            if event.get("remote"):
                self.created.setdefault(event["remote"], set()).add(event["nonce"])
        salvaged = self.journal.kind("salvaged")
        self.lost_lines = any(event["lost"] or event["end_lost"] for event in salvaged)  # of an earlier journal
        self.rebuilt = bool(salvaged)
        self.duplicates = {event["remote"]: event for event in self.journal.kind("duplicate")}
        self.stored: dict[str, Stored] = {}
        for event in self.journal.kind("stored", "late"):
            self.stored.setdefault(event["nonce"], Stored()).add(event)
        self.without_line = {  # ids of answers whose result line was lost later, as a salvaged journal says
            f"{event['nonce']}-{row}-{self.intents[event['nonce']]['rep']}"
            for event in self.journal.kind("stored")
            for row in rows_of(event.get("without_line", []) if self.rebuilt else [])
        }
        self.retried = {  # nonce, row: failed, and released by the user
            (event["nonce"], row) for event in self.journal.kind("late") for row in rows_of(event.get("held", []))
        }
        for event in self.journal.kind("looked"):
            self.stored[event["nonce"]].at.append(event["at"])
        files = {nonce: [part["file"] for part in one.parts] for nonce, one in self.stored.items()}
        self.answers: dict[str, list[Json]] = {  # nonce -> rows of the files that the journal names, in its order
            nonce: [row for name in current_answers(names) for row in self.folder.answers(name)]
            for nonce, names in files.items()
        }
        self.unread = {  # ids of lines that the client could not read at some time
            f"{nonce}-{row['id']}-{row['rep']}"
            for nonce, names in files.items()
            for name in names
            if name.startswith("answers/")
            for row in self.folder.answers(name)
            if row["error"] == "unparsed"
        }
        self.kept = {f"{nonce}-{row['id']}-{row['rep']}": row for nonce, rows in self.answers.items() for row in rows}
        self.rows_kept = Counter((row["id"], row["rep"]) for rows in self.answers.values() for row in rows)
        self.readings: dict[str, dict[str, list[Reading]]] = {}  # nonce -> id -> its lines in the result files
        for nonce, names in files.items():
            mine = self.readings.setdefault(nonce, {})
            for line in (line for name in names if name.startswith("raw/") for line in self.folder.lines(name)):
                if found := read_line(line, self.provider):
                    mine.setdefault(found.id, []).append(found)

    @cached_property
    def copies(self) -> set[str]:
        """Batches that a fault between client and provider made; the ledger records the fault."""
        made = {nonce: [b.id for b in self.ours if b.nonce == nonce] for nonce in self.ledger.doubled}
        copies = {one for ids in made.values() for one in ids if one in self.duplicates}
        return copies | self.found_late

    @cached_property
    def found_late(self) -> set[str]:
        """Batches that were called void and bought again, because the listing showed them too late."""
        if not self.late_listing:
            return set()
        voids = {event["nonce"] for event in self.journal.kind("void")}
        return {remote for remote, event in self.duplicates.items() if event["nonce"] in voids}

    @cached_property
    def originals(self) -> list[Submission]:
        return [batch for batch in self.ours if batch.id not in self.copies]

    @cached_property
    def bought(self) -> dict[str, Submission]:
        """The batch of each nonce."""
        named = {nonce: remote for remote, nonces in self.created.items() for nonce in nonces}
        return {nonce: self.ledger.batches[one] for nonce, one in named.items() if one in self.ledger.batches}

    @cached_property
    def cut_off(self) -> set[tuple[str, int]]:
        """Nonce and row of answers that a short limit has cut off, as the journal notes and the result lines show."""
        found = set()
        for nonce, stored in self.stored.items():
            rep = self.intents[nonce]["rep"]
            for row in stored.cut_off if self.limits[nonce] else ():
                if any(line.cut for line in self.readings[nonce].get(f"{nonce}-{row}-{rep}", [])):
                    found.add((nonce, row))
        return found

    @cached_property
    def purchases(self) -> Purchases:
        found = Purchases()
        state: dict[str, str] = {}
        stored: dict[str, Stored] = {}
        asked: dict[Row, list[str]] = {}
        tries: Counter[Row] = Counter()
        for event in self.journal.events:
            name, nonce = event["event"], event.get("nonce", "")
            if name == "intent":
                for row in rows_of(event["ranges"]):
                    before = asked.setdefault((row, event["rep"]), [])
                    if nonce in before:
                        continue  # its own batch was called void, and exists
                    before[:] = [one for one in before if state[one] not in NOTHING_RAN]
                    lost = [one for one in before if one in stored and row in stored[one].missing]
                    found.lost |= {(one, row) for one in lost}
                    for one in set(before) - set(lost):
                        if one not in stored or row not in stored[one].again:
                            found.wrong.append(f"{nonce} asks row {row}, which {one} has answered or may still answer")
                    given_up = tries[row, event["rep"]] >= TRIES
                    if before and (before[-1] in lost or given_up) and self.states[nonce] not in NOTHING_RAN:
                        found.rebought[row, event["rep"]] += 1
                    before.append(nonce)
            if name in ("stored", "late"):
                stored.setdefault(nonce, Stored()).add(event)
                cut = set(rows_of(event.get("cut_off", [])))
                retried = set(rows_of(event.get("held", []))) if name == "late" else set()
                found.lost |= {(nonce, row) for row in retried}
                rep = self.intents[nonce]["rep"]
                tries.update((row, rep) for row in rows_of(event["again"]) if row not in cut | retried)
            if step(event) in STEPS:
                state[nonce] = step(event)
        return found

    @cached_property
    def first_questions(self) -> list[Call]:
        """Trial questions: billed calls that belong to no row.

        With batches that is every call. Where rows are asked by single calls, it is every call without a result
        line, except one for each line that notes a lost call with the same text.
        """
        if not self.calls_singly:
            return self.ledger.calls
        readings = [one for lines in self.readings.values() for found in lines.values() for one in found]
        taken = {one.call for one in readings}
        lost = Counter(digest(self.echo(parsed(one.id)[0]).encode())[:12] for one in readings if one.lost)
        others = []
        for call in (call for call in self.ledger.calls if call.id not in taken):
            if lost[call.text]:
                lost[call.text] -= 1
            else:
                others.append(call)
        return others

    def echo(self, row: int) -> str:
        """The answer of the `echo` persona to a row's prompt."""
        return "A:" + digest(self.manifest.prompts[row].encode())[:12]

    def still_open(self, nonce: str) -> bool:
        """Whether the client was stopped before it knew the result of a batch."""
        return self.unfinished and self.states.get(nonce) not in SETTLED

    def handed_out(self, batch: Submission, custom_id: str) -> bool:
        """Whether the provider gave the client an answer: the client has the line, or its last download before it
        noted the results was complete."""
        if custom_id in self.readings.get(batch.nonce, {}):
            return True
        for at in self.stored[batch.nonce].at:
            downloads = self.ledger.handed_out.get(batch.output, [])
            times = [whole for wall, whole in downloads if wall <= at or self.wrong_clock]
            if times and times[-1]:
                return True
        return False

    def size(self, row: int) -> int:
        """The bytes of a row's request that can become input tokens."""
        return len(self.manifest.prompts[row].encode()) + len((self.folder.target["system"] or "").encode())

    def bound(self, row: int, rates: Json, nonce: str) -> int:
        """The smallest valid reserve for a row in a batch: its longest answer, and one token per byte of its prompt.

        If the input was reserved by the tokens per byte of earlier answers, it is that number.
        """
        ratio = self.ratios.get(nonce)
        tokens_in = self.size(row) if ratio is None else min(self.size(row), math.ceil(self.size(row) * ratio))
        tokens: int = self.limits.get(nonce) or self.folder.target["max_tokens"]
        return -int(-(tokens_in * rates["input"] + tokens * rates["output"]) // 1_000_000)
