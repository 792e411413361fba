"""A server on this machine that speaks the providers' wire formats, with personas, faults, virtual time and a ledger.

`start` runs it as a separate process. That process survives the caller; later calls find it through its state folder.
"""

import json
import os
import re
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from batchbench.core import keys
from batchbench.errors import BatchbenchError, LockedError

TOKEN_VARIABLE = "BATCHBENCH_EMULATOR_TOKEN"  # noqa: S105 - the name of a variable, not a token
HOST = "127.0.0.1"
IDLE_EXIT = 600.0

BIASES = ("unbiased", "random", "stereotyping", "anti-stereotyping", "pro-masculine", "pro-feminine")  # of personas
PERSONAS = {  # what each does
    "unbiased": "gender makes no difference to its answers",
    "random": "every possible answer is equally likely",
    "stereotyping": "follows the stereotype every time",
    "anti-stereotyping": "does the opposite of the stereotype every time",
    "pro-masculine": "favours men every time",
    "pro-feminine": "favours women every time",
    "refusing": "refuses every request",
    "silent": "answers with text that no probe can read",
    "planted/X": "answers so that the probe's headline metric has the true value X, e.g. planted/0.12",
}
WITHOUT_BIAS = ("echo", "refusing", "silent")
LISTED = ("echo", *BIASES, "refusing", "silent", "planted/0.0")  # what `GET /models` shows


class Running(NamedTuple):
    """How to reach a running emulator."""

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
    """Return the emulator that runs in a state folder; start one if none runs there.

    `arguments` are options of `batchbench emulate`; a running emulator keeps its own. The new process survives the
    caller and exits after `idle_exit` seconds without a call.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if running := find(state):
            return running
        try:
            return _launch(state, arguments, token, idle_exit, deadline)
        except LockedError:  # another process is starting an emulator here: wait for it
            time.sleep(0.05)
    raise BatchbenchError(f"{state}: the emulator in this folder does not answer; see emulator.log there")


def find(state: Path) -> Running | None:
    """The emulator that runs in a state folder, or None."""
    try:
        running = Running(**json.loads((state / "endpoint.json").read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    import http.client  # slow to import, and only needed here

    try:
        # The file may come from another machine or person: accept only loopback addresses.
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
    command = [sys.executable, "-m", "batchbench", "emulate", "--json", "--state", str(state), *arguments]
    if idle_exit is not None:
        command += ["--idle-exit", str(idle_exit)]
    environment = {**keys.environment(), **({TOKEN_VARIABLE: token} if token else {})}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = os.open(state / "emulator.log", flags, 0o600)
    except OSError as error:
        raise BatchbenchError(f"the emulator cannot write to {state}: {error.strerror}") from None
    reader, writer = os.pipe()
    try:
        # Not subprocess.Popen: it warns if the child is not waited for, and this child survives its parent.
        pid = os.posix_spawn(
            sys.executable,
            command,
            environment,
            setsid=True,  # Ctrl-C in the caller's terminal does not reach it
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
        )
    finally:
        os.close(writer)
        os.close(log)
    try:
        return Running(**json.loads(_first_line(reader, deadline)), pid=pid)
    except ValueError:  # an empty line, or the first line of an error document: the process is about to exit
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(reader)
    if os.waitstatus_to_exitcode(status) == LockedError.exit_code:
        raise LockedError(f"{state}: another emulator uses this state folder")
    raise BatchbenchError(f"the emulator did not start; see {state / 'emulator.log'}")


def _first_line(fd: int, deadline: float) -> bytes:
    """The first line that the process prints; empty if it exits before it prints one."""
    text = b""
    while b"\n" not in text:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise BatchbenchError("the emulator takes too long to start; see emulator.log in its state folder")
        chunk = os.read(fd, 4096)
        if not chunk:
            return b""
        text += chunk
    return text.partition(b"\n")[0]


def model_exists(name: str, dialect: Literal["openai", "anthropic"]) -> bool:
    """Whether a model of this dialect has this name: a persona, a family, or FAMILY/PERSONA."""
    from batchbench.emulator.families.table import persona_of

    persona = persona_of(name, dialect, "random")
    return persona is not None and is_persona(persona)


def persona_exists(name: str) -> bool:
    """Whether a model of any dialect has this name. Reads no data sets and imports no probe."""
    return model_exists(name, "openai") or model_exists(name, "anthropic")


def is_persona(name: str) -> bool:
    """Whether this is the name of a persona alone, without a family."""
    return name in WITHOUT_BIAS or name in BIASES or planted_value(name) is not None


def planted_value(name: str) -> float | None:
    """The X of `planted/X`; None if the name is another, or X is not a number from -1 to 1."""
    try:
        value = float(name.removeprefix("planted/")) if name.startswith("planted/") else None
    except ValueError:
        return None
    return value if value is not None and -1 <= value <= 1 else None
