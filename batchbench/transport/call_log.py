"""IO: the files of a batch that is executed as single calls: which calls were begun, and their results."""

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from anyio import to_thread

from batchbench.core import crash_points
from batchbench.core.store import explained
from batchbench.core.text import repair_json
from batchbench.providers.interface import Problem

SYNC_INTERVAL = 0.5  # seconds between syncs of a result file; a kill loses nothing, a power cut at most this much


class CallLog:
    """Notes every call before it is made, and writes its result afterwards."""

    def __init__(self, results: Path, calls: Path) -> None:
        self._results, self._calls = results, calls
        self.interrupted = unanswered(calls)  # calls that an earlier process began
        self._lines = open_append(results)
        self._notes = open_append(calls)
        append(self._notes, b"\n", calls)  # ends a note that a kill may have cut off
        self._synced = time.monotonic()

    def has_answer(self) -> bool:
        """Whether an earlier call succeeded."""
        with self._results.open("rb") as lines:
            return any(b'"status_code":200' in line for line in lines)

    async def begin(self, names: Sequence[str]) -> None:
        """Note calls that are about to be made; the notes are on disk when this returns."""
        append(self._notes, "".join(f"+{name}\n" for name in names).encode(), self._calls)
        await to_thread.run_sync(self._sync)

    def refused(self, name: str) -> None:
        """Note that a call was refused or not sent, and cost nothing."""
        append(self._notes, f"-{name}\n".encode(), self._calls)

    def write(self, line: bytes) -> None:
        """Append a result line."""
        append(self._lines, line, self._results)
        crash_points.point("spool-line")

    def close(self) -> None:
        """Sync the results and close both files."""
        os.fdatasync(self._lines)
        os.close(self._lines)
        os.close(self._notes)

    def _sync(self) -> None:
        os.fdatasync(self._notes)
        if time.monotonic() - self._synced > SYNC_INTERVAL:
            os.fdatasync(self._lines)
            self._synced = time.monotonic()


def unanswered(calls: Path) -> set[str]:
    """The requests with a call that was begun and not refused."""
    begun: set[str] = set()
    for note in calls.read_text().split() if calls.exists() else []:
        (begun.add if note[0] == "+" else begun.discard)(note[1:])
    return begun


def open_append(path: Path) -> int:
    """A file descriptor that appends to `path`, which is created if it does not exist."""
    with explained(path):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def append(handle: int, content: bytes, path: Path) -> None:
    """Append lines in one write, so that a kill leaves all of them or none."""
    with explained(path):
        if os.write(handle, content) != len(content):  # the next start cuts off the half that was written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """A line as in OpenAI's error files."""
    error = {"code": code, "message": message}
    return msgspec.json.encode({"custom_id": custom_id, "response": None, "error": error}) + b"\n"


def refusal_line(custom_id: str, problem: Problem, body: bytes) -> bytes:
    """A line with the server's refusal: the body as it came, and its error in OpenAI's format."""
    try:
        whole = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        whole = {}
    given = whole.get("error")
    error = {"message": problem.message, "type": problem.type, "code": problem.code}
    whole["error"] = {**(given if isinstance(given, dict) else {}), **error}
    return result_line(custom_id, problem.status, msgspec.json.encode(whole))


def result_line(custom_id: str, status: int, body: bytes) -> bytes:
    """A line as in OpenAI's result files, with the server's answer inside; ValueError if that is not JSON."""
    try:
        inside = msgspec.json.format(body, indent=-1)
    except msgspec.DecodeError:
        inside = repair_json(body)
    whole = {"custom_id": custom_id, "response": {"status_code": status, "body": msgspec.Raw(inside)}, "error": None}
    return msgspec.json.encode(whole) + b"\n"
