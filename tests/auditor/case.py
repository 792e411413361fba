"""All the evidence about a run, and what follows from it directly."""

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
NOTHING_RAN = {"void", "rejected"}
SETTLED = NOTHING_RAN | {"stored"}
STEPS = {  # event -> states that it may follow; "" is the start
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
Problems = Generator[str, None, None]
Check = Generator[str, None, str]  # yields what is wrong, and returns what was examined


@dataclass
class Stored:
    """What the journal says about a batch's results, over all events."""

    at: list[float] = field(default_factory=list)  # when the client read its results
    parts: list[Json] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    answered: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    quarantined: int = 0

    def add(self, event: Json) -> None:
        self.at.append(event["at"])
        self.parts += event["parts"]
        self.again += rows_of(event["again"])
        self.missing = set(rows_of(event["missing"]))
        self.answered += event.get("answered", sum(event["outcomes"].values()))
        self.outcomes.update(event["outcomes"])
        self.quarantined += event["quarantined"]


@dataclass
class Purchases:
    """The rows of every intent, compared with what the journal said about them at that time."""

    wrong: list[str] = field(default_factory=list)
    lost: set[tuple[str, int]] = field(default_factory=set)  # nonce, row: missing when the row was bought again
    rebought: Counter[Row] = field(default_factory=Counter)  # purchases that need --rebuy-missing


@dataclass
class Case:
    ledger: Ledger
    journal: Journal
    manifest: Manifest
    folder: Folder
    budget: int | None = None
    rebuys: int = 0  # how often the user typed --rebuy-missing
    unfinished: bool = False
    status: Json | None = None
    before: Json | None = None
    key: str = ""

    def __post_init__(self) -> None:
        self.provider: str = self.folder.target["provider"]
        self.calls_singly = self.provider == "chat"  # the client itself splits such a batch into calls
        self.ours = [batch for batch in self.ledger.batches.values() if batch.owner == "client"]
        self.intents = {event["nonce"]: event for event in self.journal.kind("intent")}
        self.states: dict[str, str] = {e["nonce"]: e["event"] for e in self.journal.events if e["event"] in STEPS}
        self.created: dict[str, set[str]] = {}  # remote -> nonces; a user may name a batch again
        for event in self.journal.kind("created"):
            self.created.setdefault(event["remote"], set()).add(event["nonce"])
        self.duplicates = {event["remote"]: event for event in self.journal.kind("duplicate")}
        self.stored: dict[str, Stored] = {}
        for event in self.journal.kind("stored", "late"):
            self.stored.setdefault(event["nonce"], Stored()).add(event)
        for event in self.journal.kind("looked"):
            self.stored[event["nonce"]].at.append(event["at"])
        files = {nonce: [part["file"] for part in one.parts] for nonce, one in self.stored.items()}
        self.answers: dict[str, list[Json]] = {  # nonce -> rows of the files that the journal names, in its order
            nonce: [row for name in names if name.startswith("answers/") for row in self.folder.answers(name)]
            for nonce, names in files.items()
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
        return {one for ids in made.values() for one in ids if one in self.duplicates}

    @cached_property
    def originals(self) -> list[Submission]:
        return [batch for batch in self.ours if batch.id not in self.copies]

    @cached_property
    def bought(self) -> dict[str, Submission]:
        """The batch of each nonce."""
        named = {nonce: remote for remote, nonces in self.created.items() for nonce in nonces}
        return {nonce: self.ledger.batches[one] for nonce, one in named.items() if one in self.ledger.batches}

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
                tries.update((row, self.intents[nonce]["rep"]) for row in rows_of(event["again"]))
            if name in STEPS:
                state[nonce] = name
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
            times = [whole for wall, whole in self.ledger.handed_out.get(batch.output, []) if wall <= at]
            if times and times[-1]:
                return True
        return False

    def bound(self, row: int, rates: Json) -> int:
        """The smallest valid reserve for a row: one token per byte of its prompt, and the longest answer."""
        size = len(self.manifest.prompts[row].encode()) + len((self.folder.target["system"] or "").encode())
        tokens: int = self.folder.target["max_tokens"]
        return -int(-(size * rates["input"] + tokens * rates["output"]) // 1_000_000)
