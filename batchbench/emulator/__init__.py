"""A loopback server that speaks the providers' wire formats: personas, faults, virtual time, and a ledger.

`start` runs it as a process of its own, which outlives the caller and is found again through its state folder.
"""

import json
import os
import re
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from batchbench.core import keys
from batchbench.errors import BatchbenchError, LockedError

TOKEN = "BATCHBENCH_EMULATOR_TOKEN"  # noqa: S105 - the name of a variable, not a token
HOST = "127.0.0.1"
IDLE_EXIT = 600.0


class Running(NamedTuple):
    """How to reach an emulator."""

    openai: str
    anthropic: str
    token: str
    ledger: str
    pid: int


def start(
    state: Path,
    *,
    arguments: Sequence[str] = (),
    token: str | None = None,
    idle_exit: float | None = IDLE_EXIT,
    timeout: float = 30.0,
) -> Running:
    """The emulator of a state folder: the one that is running there, or a new one.

    `arguments` are those of `python -m batchbench.emulator` and count only for a new one. It is not a child to look
    after: it survives the caller, and ends by itself after `idle_exit` seconds without a call.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if running := find(state):
            return running
        try:
            return _launch(state, arguments, token, idle_exit, deadline)
        except LockedError:  # somebody else is starting one: wait for it
            time.sleep(0.05)
    raise BatchbenchError(f"{state}: the emulator that runs here does not answer; see emulator.log there")


def find(state: Path) -> Running | None:
    """The emulator that is running in a state folder, or null."""
    try:
        running = Running(**json.loads((state / "endpoint.json").read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    import http.client  # slow to import, and only this needs it

    try:
        # A file says where it is, and files come from anywhere; an emulator is here or nowhere.
        if not all(re.fullmatch(rf"http://{re.escape(HOST)}:\d{{1,5}}/\S*", url) for url in running[:2]):
            return None
        connection = http.client.HTTPConnection(urlsplit(running.openai).netloc, timeout=10)
        connection.request("GET", "/__emu/stats", headers={"authorization": f"Bearer {running.token}"})
        alive = connection.getresponse().status == 200
        connection.close()
    except (OSError, ValueError, TypeError, AttributeError, http.client.HTTPException):
        return None
    return running if alive else None


def _launch(
    state: Path, arguments: Sequence[str], token: str | None, idle_exit: float | None, deadline: float
) -> Running:
    command = [sys.executable, "-m", "batchbench.emulator", "--json", "--state", str(state), *arguments]
    if idle_exit is not None:
        command += ["--idle-exit", str(idle_exit)]
    environment = {**keys.environment(), **({TOKEN: token} if token else {})}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = os.open(state / "emulator.log", flags, 0o600)
    except OSError as error:
        raise BatchbenchError(f"the emulator cannot write to {state}: {error.strerror}") from None
    ready, said = os.pipe()
    try:
        # Not subprocess: its object insists on being waited for, and this process is meant to be left alone.
        pid = os.posix_spawn(
            sys.executable,
            command,
            environment,
            setsid=True,  # a Ctrl-C in the caller's terminal is not meant for it
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, said, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
        )
    finally:
        os.close(said)
        os.close(log)
    try:
        line = _first_line(ready, deadline)
    finally:
        os.close(ready)
    if line:
        return Running(**json.loads(line), pid=pid)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == LockedError.exit_code:
        raise LockedError(f"{state}: another emulator keeps its state here")
    raise BatchbenchError(f"the emulator did not start; see {state / 'emulator.log'}")


def _first_line(fd: int, deadline: float) -> bytes:
    """What a process says first; empty if it ends without a word."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise BatchbenchError("the emulator takes too long to start")
        chunk = os.read(fd, 4096)
        if not chunk:
            return b""
        line += chunk
    return line
