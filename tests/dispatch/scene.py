"""One emulated provider and one home: start the real client, kill it, and audit the run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchbench.app.status import run_status
from batchbench.core.store import Store
from tests.auditor.evidence import rows_of
from tests.auditor.invariants import audit, load
from tests.emulator.driver import TOKEN, Emulator

Json = dict[str, Any]
DIALECTS = ("openai", "anthropic")
MODEL = "echo"  # answers with the digest of the prompt
PRICE = "0.075,0.30"
PROBE = ("hiring_an", "--set", "data=sample")
BOTH = ("openai", pytest.param("anthropic", marks=pytest.mark.full))  # the dialects hardly differ in this
VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "chat": "CHAT_API_KEY"}


class Ran:
    """How a client ended."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stderr = stderr
        self.stdout = stdout

    @property
    def report(self) -> Json:
        found: list[Json] = json.loads(self.stdout)
        return found[0]

    def __repr__(self) -> str:
        return f"<exit {self.code}\n{self.stdout}\n{self.stderr[-3000:]}>"


class Scene:
    """An emulator with a home beside it."""

    def __init__(
        self, folder: Path, manifests: Path, dialect: str, *words: str, rules: list[Json] | None = None
    ) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        shutil.copytree(manifests, self.home / "manifests")
        self.dialect = dialect
        self.price = PRICE
        self.model = MODEL
        self.emulator = Emulator(folder / "state", *words, rules=rules)
        self.running: list[subprocess.Popen[str]] = []
        self.environment: dict[str, str] = {}
        self.rebuys = 0  # how often the user has asked for missing answers again
        self.around: list[str] = []  # a command that starts the client, such as strace

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        if self.emulator.process.poll() is None:
            self.emulator.stop()

    def end_faults(self) -> None:
        """Restart the provider with the same ledger and without faults."""
        self.emulator.stop()
        self.emulator.words = ["--port", str(self.emulator.port)]
        self.emulator.start()

    # -- the client ----------------------------------------------------------------------------------------

    def start(self, *words: str | int, k: int = 60, size: int = 20, crash: str = "", command: str = "run") -> "subprocess.Popen[str]":  # fmt: skip  # noqa: E501
        """Start the program."""
        environment = {**os.environ, VARIABLES[self.dialect]: TOKEN, **self.environment}
        environment.pop("BATCHBENCH_CRASH", None)
        if crash:
            environment["BATCHBENCH_CRASH"] = crash.replace("torn-", "after-")
        line = self.line(*words, k=k, size=size, command=command)
        self.rebuys += "--rebuy-missing" in words
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.running.append(process)
        return process

    def line(self, *words: str | int, k: int = 60, size: int = 20, command: str = "run") -> list[str]:
        """The command line."""
        given = [*PROBE, *self._model(), "--price", self.price, "--sample-k", str(k), "--batch-size", str(size)]
        given += ["--settle", "1", *(["--json"] if "--quiet" not in words else [])]
        if command == "run":  # an echo is not a decision, so no answer can be read
            given += ["--pilot", "none", "--anyway"]
        start = [*self.around, sys.executable, "-m", "batchbench", command]
        return [*start, *given, "--home", str(self.home), *map(str, words)]

    def _model(self) -> list[str]:
        if self.dialect == "chat":
            return ["--model", f"chat:{self.model}@{self.emulator.openai_url}"]
        url = self.emulator.openai_url if self.dialect == "openai" else self.emulator.anthropic_url
        return ["--model", f"{self.dialect}:{self.model}", "--base-url", url]

    def run(self, *words: str | int, timeout: float = 60, **options: Any) -> Ran:
        """Start the program and wait for it; `crash="torn-EVENT:n"` leaves half of that event's line in the journal."""
        ran = ended(self.start(*words, **options), timeout)
        if options.get("crash", "").startswith("torn-") and ran.code == -signal.SIGKILL:
            tear_last_line(self.home)
        return ran

    def program(self, *words: str, timeout: float = 60, **environment: str) -> Ran:
        """Run another command on the same home."""
        line = [*self.around, sys.executable, "-m", "batchbench", *words, "--home", str(self.home)]
        environment = {**os.environ, VARIABLES[self.dialect]: TOKEN, **environment}
        found = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, timeout=timeout)
        return Ran(found.returncode, found.stdout, found.stderr)

    def status(self) -> Json:
        """The run in `batchbench status --json`, without starting a process."""
        entry: Json = msgspec.to_builtins(run_status(Store(self.home), self.run_folder))
        return entry

    # -- files --------------------------------------------------------------------------------------------

    @property
    def run_folder(self) -> Path:
        return next(path.parent for path in self.home.glob("cache/*/*/run.json"))

    def journal(self, *kinds: str) -> list[Json]:
        lines = (self.run_folder / "journal").read_bytes().split(b"\n")[:-1]
        events = [json.loads(line.split(b" ", 2)[2]) for line in lines]
        return [event for event in events if not kinds or event["event"] in kinds]

    def accepted(self) -> list[Json]:
        return [event for event in self.emulator.events("accepted") if event.get("owner", "client") == "client"]

    def billed(self) -> int:
        """How many answers the provider has charged this client for."""
        return sum(event["n"] for event in self.emulator.events("billed") if event.get("owner", "client") == "client")

    def cost(self) -> int:
        """Micro-dollars that the provider has charged this client."""
        mine = [event for event in self.emulator.events("billed") if event.get("owner", "client") == "client"]
        return sum(event["cost"] for event in mine)

    def audit(self, *, status: bool = False, **options: Any) -> Json:
        """Check the run with the auditor."""
        if status:
            options["status"] = self.status()
        folder = self.run_folder
        manifest = self.home / "manifests" / folder.parent.name
        found = audit(load(self.emulator.ledger, folder, manifest, key=TOKEN, rebuys=self.rebuys, **options))
        problems = {name: one["problems"][:5] for name, one in found["invariants"].items() if one["problems"]}
        assert not problems, problems
        return found

    def decisions(self) -> list[str]:
        """What the user says of batches that are unresolved and unknown to the provider, as options of `run`."""
        begun = list(self.home.glob("cache/*/*/run.json"))
        lost = {event["nonce"] for event in self.journal("unresolved")} if begun else set()
        lost -= {event["nonce"] for event in self.accepted()}
        return [word for nonce in sorted(lost) for word in ("--resolve", f"{nonce}=void")]

    def asked_for(self) -> int:
        return sum(len(rows_of(event["ranges"])) for event in self.journal("intent"))


def ended(process: "subprocess.Popen[str]", timeout: float = 60) -> Ran:
    """Wait until a client ends; it is killed after the timeout."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s: {out}\n{err[-3000:]}") from None
    return Ran(process.returncode, out, err)


def tear_last_line(home: Path) -> None:
    """Cut off half of the last line of the journal that was written last, as a kill inside write() would."""
    journal = max(home.glob("cache/*/*/journal"), key=lambda path: path.stat().st_mtime_ns)
    content = journal.read_bytes()
    start = content.rfind(b"\n", 0, -1) + 1
    os.truncate(journal, start + (len(content) - start) // 2)


def wait_until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Wait for the first true value of `condition`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"did not happen within {seconds} s")


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
