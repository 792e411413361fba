"""The storm itself, and the verdict on its result."""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from subprocess import Popen

import pytest

from tests.auditor.evidence import rows_of
from tests.dispatch.scene import VARIABLES, Json, Ran, Scene, ended, kill, wait_until
from tests.emulator.driver import Emulator
from tests.faults.client_patches import run_first

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
TROUBLES = ("old-journal", "snapshot", "other-key", "wrong-clock")  # that come with some of the kills
# The client's wall clock is wrong by the number of seconds in an environment variable.
WRONG_CLOCK = """
import os, time
real, wrong = time.time, float(os.environ.get("STORM_CLOCK", "0"))
time.time = lambda: real() + wrong
"""
MAX_ITEMS = 10_000  # more requests become repetitions
STEPS = 6  # journal events of a batch without faults
SETTLE: tuple[str, int] = ("--settle", 2)  # seconds; more than twice the longest delay of a fault


class Storm:
    """A scene whose client and emulator are killed `kills` times before the run is finished."""

    def __init__(
        self,
        scene: Scene,
        requests: int,
        kills: int,
        seed: int,
        say: Callable[[str], None],
        troubles: Sequence[str] = (),
    ) -> None:
        self.scene = scene
        self.troubles = list(troubles)
        self.troubled: Counter[str] = Counter()
        run_first(scene, WRONG_CLOCK)
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
                self._trouble()
                client = self._start()
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

    def _start(self) -> "Popen[str]":
        words: list[str | int] = [
            "--yes",
            *SETTLE,
            "--repetitions",
            self.repetitions,
            "--adopt",
            *self.scene.decisions(),
        ]
        return self.scene.start(*words, k=self.items, size=self.size)

    # -- troubles ------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        """Sometimes something else goes wrong while no client runs."""
        self.scene.environment.pop("STORM_CLOCK", None)
        if not self.troubles or not self._lines() or self.chance.random() > 0.3:
            return
        trouble = self.chance.choice(self.troubles)
        self.troubled[trouble] += 1
        match trouble:
            case "wrong-clock":
                self.scene.environment["STORM_CLOCK"] = str(self.chance.choice([-90_000, -4000, 4000, 90_000, 400_000]))
            case "other-key":
                self._other_key()
            case "old-journal":
                self._old_journal()
            case "snapshot":
                self._snapshot()

    def _other_key(self) -> None:
        """For one start the key is that of another project, which has no batches."""
        emulator, variable = self.scene.emulator, VARIABLES[self.scene.dialect]
        before = self._journal()
        emulator.stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.emulator.driver.TOKEN", "another-key")
            folder = self.scene.folder / f"project{self.troubled.total()}"
            other = Emulator(folder, "--port", str(emulator.port))
        self.scene.environment[variable] = "another-key"
        if self._waits_for_batches():
            done = ended(self._start(), 120)
            assert done.code == 77, done
            assert self._events(self._journal()) <= self._events(before) | {b"foreign", b"asked", b"rejected"}
        del self.scene.environment[variable]
        other.stop()
        emulator.start()

    def _old_journal(self) -> None:
        """An older copy of the journal is put back: it is refused, unless nothing was bought since."""
        path = next(self.scene.home.glob("cache/*/*/journal"))
        newest = path.read_bytes()
        lines = newest.splitlines(keepends=True)
        old = b"".join(lines[: self.chance.randint(1, len(lines))])
        path.write_bytes(old)
        if b'"event":"creating"' in newest[len(old) :]:
            time.sleep(1)  # until a create has acted that was delayed
            billed = len(self.scene.accepted())
            done = ended(self._start(), 120)
            assert done.code == 65, done
            assert len(self.scene.accepted()) == billed
        path.write_bytes(newest)

    def _snapshot(self) -> None:
        """The whole home is put back to what it was, after some more batches were bought."""
        copy = self.scene.folder / "snapshot"
        shutil.copytree(self.scene.home, copy)
        client = self._start()
        self._wait(client)
        if client.poll() is None:
            kill(client)
        else:
            ended(client)
        # Only results show which batches are ours at Anthropic, so let them end.
        wait_until(lambda: not self._running(), 60)
        shutil.rmtree(self.scene.home)
        shutil.copytree(copy, self.scene.home)
        shutil.rmtree(copy)
        time.sleep(SETTLE[1])  # nobody puts a copy back before the provider lists what was bought after it
        self.kept = b""

    def _running(self) -> bool:
        done = {event["batch"] for event in self.scene.emulator.events() if event["event"] in ("ended", "failed")}
        return any(event["batch"] not in done for event in self.scene.accepted())

    def _waits_for_batches(self) -> bool:
        last = {event["nonce"]: event["event"] for event in self.scene.journal("creating", "created", "stored", "void")}
        return "created" in last.values()

    def _events(self, journal: bytes) -> set[bytes]:
        return {line.split(b'"event":"')[1].split(b'"')[0] for line in journal.split(b"\n")[:-1]}

    # -- the client ----------------------------------------------------------------------------------------

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
        assert done.code in (0, 1, 4, 6), done
        return done.code in (0, 6)

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
        scene.environment.pop("STORM_CLOCK", None)
        done = ended(self._start(), 900)
        if done.code == 4:
            done = ended(self._start(), 900)
        assert self._finished(done), done
        self._check_journal()
        invariants = scene.audit(status=True, wrong_clock=bool(self.troubled["wrong-clock"]))["invariants"]
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
            "troubles": dict(self.troubled),
            "events": dict(counts),
            "faults": dict(struck),
            "auditor": {name: one["looked_at"] for name, one in invariants.items()},
        }
