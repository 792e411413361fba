"""The storm itself, and the verdict on its result."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from subprocess import Popen

from tests.auditor.evidence import rows_of
from tests.dispatch.scene import Json, Ran, Scene, ended, kill, wait_until

FETCHES = ["content", "results"]
RULES: list[Json] = [
    {"do": "429-ms", "on": ["upload", "create", "poll", "list"], "p": 0.03},
    {"do": "500-before", "on": ["upload", "create", "poll", "list", *FETCHES], "p": 0.02},
    {"do": "503-before", "on": ["create", "poll", "list"], "p": 0.02},
    {"do": "500-after", "on": "create", "p": 0.03},
    {"do": "502-after", "on": "create", "p": 0.02},
    {"do": "reset-before", "on": ["create", "list"], "p": 0.02},
    {"do": "reset-after", "on": ["create", "upload"], "p": 0.03},
    {"do": "hang-before", "on": ["create", "poll"], "p": 0.01, "seconds": 0.5},
    {"do": "hang-after", "on": "create", "p": 0.02, "seconds": 0.5},
    {"do": "late-act", "on": "create", "p": 0.01, "seconds": 0.4},
    {"do": "html-before", "on": ["create", "list"], "p": 0.02},
    {"do": "html-after", "on": "create", "p": 0.02},
    {"do": "cut-line", "p": 0.04},
    {"do": "cut-length", "p": 0.03},
    {"do": "cut-mid-line", "p": 0.03},
    {"do": "line-duplicate", "p": 0.01},
    {"do": "line-unknown-id", "p": 0.0003},
    {"do": "list-lag", "p": 0.5, "seconds": 0.7},
    {"do": "foreign", "p": 0.04},
    {"do": "expire-half", "p": 0.03, "seconds": 0.1},
]
MAX_ITEMS = 10_000  # more requests become repetitions
STEPS = 6  # journal events of a batch without faults
SETTLE = ("--settle", 2)  # seconds; more than twice the longest delay of a fault


class Storm:
    """A scene whose client and emulator are killed `kills` times before the run is finished."""

    def __init__(self, scene: Scene, requests: int, kills: int, seed: int, say: Callable[[str], None]) -> None:
        self.scene = scene
        self.repetitions = -(-requests // MAX_ITEMS)
        self.items = requests // self.repetitions
        self.requests = self.items * self.repetitions
        self.size = min(100, max(10, self.requests // 25))
        self.kills = kills
        self.chance = random.Random(seed)
        self.say = say
        self.dead: Counter[str] = Counter()
        self.kept = b""  # complete lines of the journal at the last kill of the client
        scene.emulator.words += ["--port", str(scene.emulator.port)]

    def blow(self) -> None:
        """Kill client and emulator until the number of kills is reached or the run is finished."""
        client = None
        while self.dead.total() < self.kills:
            if client is None:
                client = self.scene.start(*SETTLE, "--repetitions", self.repetitions, k=self.items, size=self.size)
            victim = self.chance.choices(["client", "emulator", "both"], [70, 20, 10])[0]
            self._wait(client)
            if client.poll() is not None:
                done = ended(client)
                client = None
                if self._finished(done):
                    return
                continue
            if victim != "client":
                self.scene.emulator.kill()
                self.scene.emulator.start()
                self.dead["emulator"] += 1
            if victim != "emulator":
                if client.poll() is None:
                    kill(client)
                    self.dead["client"] += 1
                    self._check_journal()
                else:
                    self._finished(ended(client))
                client = None
            if self.dead.total() % 20 < 2:
                self.report()
        if client is not None:
            kill(client)
            self.dead["client"] += 1

    def _wait(self, client: "Popen[str]") -> None:
        """Let the client write a random number of events after its start, for a limited time."""
        wait_until(lambda: client.poll() is not None or self._holds_the_lock(client.pid), 120)
        left = self.requests / self.size * STEPS - self._lines()
        events = self.chance.randint(0, max(0, round(2 * left / (self.kills - self.dead.total()))))
        seconds = self.chance.uniform(0, 3) if self.chance.random() < 0.4 else 20
        start, until = self._lines(), time.monotonic() + seconds
        while client.poll() is None and self._lines() < start + events and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(self.chance.uniform(0, 0.03))

    def _holds_the_lock(self, pid: int) -> bool:
        locks = self.scene.home.glob("cache/*/*/lock")
        return any(lock.read_text().startswith(f"process {pid} ") for lock in locks)

    def _journal(self) -> bytes:
        found = next(self.scene.home.glob("cache/*/*/journal"), None)
        return found.read_bytes() if found else b""

    def _lines(self) -> int:
        return self._journal().count(b"\n")

    def answered(self) -> int:
        lines = [line for line in self._journal().split(b"\n")[:-1] if b'"event":"stored"' in line]
        return sum(json.loads(line.split(b" ", 2)[2])["answered"] for line in lines)

    def _check_journal(self) -> None:
        """Every line that was complete at the last kill is still there, at the same place."""
        journal = self._journal()
        assert journal.startswith(self.kept), f"the journal lost lines after {self.dead} kills"
        self.kept = journal[: journal.rfind(b"\n") + 1]

    def _finished(self, done: Ran) -> bool:
        """Whether a client that ended by itself has finished the run; exit code 1 means that the provider was dead."""
        assert "Traceback" not in done.stderr, done
        assert done.code in (0, 1, 6), done
        return done.code != 1

    def report(self) -> None:
        batches = self._journal().count(b'"event":"intent"')
        killed = f"{self.dead['client']} kills of the client, {self.dead['emulator']} of the emulator"
        self.say(f"{killed}; {batches} batches, {self.answered():,} of {self.requests:,} answered")

    def verdict(self) -> Json:
        """Switch the faults off, finish the run, and account for every request."""
        scene = self.scene
        scene.emulator.stop()
        faults = scene.emulator.words.index("--faults")
        del scene.emulator.words[faults : faults + 2]
        scene.emulator.start()
        done = scene.run(*SETTLE, "--repetitions", self.repetitions, k=self.items, size=self.size, timeout=900)
        assert self._finished(done), done
        self._check_journal()
        invariants = scene.audit(status=True)["invariants"]
        tries = Counter(
            (event["nonce"], row) for event in scene.journal("stored", "late") for row in rows_of(event["again"])
        )
        reps = {event["nonce"]: event["rep"] for event in scene.journal("intent")}
        given_up = [row for row, n in Counter((reps[nonce], row) for nonce, row in tries).items() if n >= 3]
        found = {name: done.report[name] for name in ("asked", "answered", "missing")}
        assert found["asked"] == self.requests == found["answered"] + found["missing"], found
        assert scene.billed() + len(given_up) == self.requests, (scene.billed(), given_up)
        counts = Counter(event["event"] for event in scene.journal())
        struck = Counter(event["do"] for event in scene.emulator.events("fault"))
        return {
            **found,
            "billed": scene.billed(),
            "given up": len(given_up),
            "kills": dict(self.dead),
            "events": dict(counts),
            "faults": dict(struck),
            "auditor": {name: one["looked_at"] for name, one in invariants.items()},
        }
