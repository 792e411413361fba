"""IO: the files of a batch that is played: which calls were made, and what came of them."""

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
from batchbench.providers.chat import LOST

INTERRUPTED = "the process ended while it was being made"
SYNC = 0.5  # seconds between syncs of a result file; the kernel keeps what is written even if we are killed


class CallLog:
    """The files of a batch that is carried out: every call is noted before it is made, and its result afterwards."""

    def __init__(self, results: Path, calls: Path) -> None:
        self._results, self._calls = results, calls
        self.interrupted = unanswered(calls)  # before this process
        self._lines = appending(results)
        self._notes = appending(calls)
        append(self._notes, b"\n", calls)  # the last note may be torn, and then is nobody's
        self._synced = time.monotonic()

    async def begin(self, names: Sequence[str]) -> None:
        """Note calls that are about to be made; when this returns, that is on disk."""
        append(self._notes, "".join(f"+{name}\n" for name in names).encode(), self._calls)
        await to_thread.run_sync(self._sync)

    def refused(self, name: str) -> None:
        """A call was answered with a no, or never left, and has cost nothing."""
        append(self._notes, f"-{name}\n".encode(), self._calls)

    def write(self, line: bytes) -> None:
        """Put a result on record."""
        append(self._lines, line, self._results)
        crash_points.point("spool-line")

    def close(self) -> None:
        """No more calls."""
        os.fdatasync(self._lines)
        os.close(self._lines)
        os.close(self._notes)

    def _sync(self) -> None:
        os.fdatasync(self._notes)
        if time.monotonic() - self._synced > SYNC:
            os.fdatasync(self._lines)
            self._synced = time.monotonic()


def unanswered(calls: Path) -> set[str]:
    """Requests with a call of which the notes do not tell that it was refused."""
    begun: set[str] = set()
    for word in calls.read_text().split() if calls.exists() else []:
        (begun.add if word[0] == "+" else begun.discard)(word[1:])
    return begun


def appending(path: Path) -> int:
    """A file to which lines are added."""
    with explained(path):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def append(handle: int, content: bytes, path: Path) -> None:
    """Add lines in one write: killed here, they are there or they are not."""
    with explained(path):
        if os.write(handle, content) != len(content):  # the half that was written is cut off at the next start
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def not_made_line(custom_id: str) -> bytes:
    """A line about a request that was not made."""
    return _error_line(custom_id, "batch_cancelled", "the batch was cancelled before this request was made")


def lost_line(custom_id: str, why: str) -> bytes:
    """A line about a request whose call may have been answered and charged."""
    return _error_line(custom_id, LOST, why)


def _error_line(custom_id: str, code: str, message: str) -> bytes:
    """A line about a request without an answer, as OpenAI's error files have it."""
    error = {"code": code, "message": message}
    return msgspec.json.encode({"custom_id": custom_id, "response": None, "error": error}) + b"\n"


def result_line(custom_id: str, status: int, body: bytes) -> bytes:
    """A line as OpenAI's result files have it, with the server's answer as it came; ValueError if that is no JSON."""
    try:
        inside = msgspec.json.format(body, indent=-1)
    except msgspec.DecodeError:
        inside = repair_json(body)
    whole = {"custom_id": custom_id, "response": {"status_code": status, "body": msgspec.Raw(inside)}, "error": None}
    return msgspec.json.encode(whole) + b"\n"
