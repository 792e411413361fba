"""IO: play the batch for a server that has none: one call per request, at the pace the server bears.

A `Spool` answers the calls of OpenAI's Batch API from files in a folder. A batch exists once its input file does; a
request is done once its line is in the batch's result file. A killed process loses the calls that were in flight and
nothing else: they are made again, because no server of this kind can be asked what became of them. Every call is noted
before it is made, so that those of which nobody knows the outcome are at least counted, and paid for in our books.
"""

import errno
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from batchbench import crash
from batchbench.api import FAILURES, GLANCE, Api, Refused, Reply, failure
from batchbench.clock import clock_face
from batchbench.errors import BatchbenchError
from batchbench.pace import Pace
from batchbench.plain import mended
from batchbench.providers.seam import Problem
from batchbench.store import Store, explained, sync

SYNC = 0.5  # seconds between syncs of a result file; the kernel keeps what is written even if we are killed
UNDONE = ".undone"  # ends the name of the file that tells what a cancelled batch did not get to
TRIES = 5  # of one request, before its failure is its answer


class Body(msgspec.Struct):
    """What matters of a request for its size."""

    max_tokens: int = 0
    max_completion_tokens: int = 0


class Request(msgspec.Struct):
    """A line of an input file."""

    custom_id: str
    body: msgspec.Raw

    @property
    def tokens(self) -> int:
        """About how many tokens a server counts for it against a limit: its text, and the longest answer."""
        body = msgspec.json.decode(self.body, type=Body)
        return len(bytes(self.body)) // 4 + max(body.max_tokens, body.max_completion_tokens)


class Done(msgspec.Struct):
    """What matters of a line of a result file when work is taken up again."""

    custom_id: str


class Spool:
    """OpenAI's Batch API, played on files."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        api: Api,
        note: Callable[[str], None] = lambda _: None,
        pace: Pace | None = None,
    ) -> None:
        self.folder = folder
        self._store = store
        self._api = api
        self._note = note
        self._noted = float("-inf")
        self._pace = pace or Pace()  # of the server, which several runs may call
        self._working: set[str] = set()
        self._group: TaskGroup | None = None
        self._trouble: BatchbenchError | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Spool"]:
        """Carry out batches as long as this lasts."""
        async with self._api.running(), anyio.create_task_group() as group:
            self._group = group
            yield self
            group.cancel_scope.cancel()

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Keep the input file; its name is the batch's."""
        del path, fields
        content = b"".join(body)
        name = filename.removesuffix(".jsonl")
        self._store.write(self._at(name, ".uploaded.jsonl"), content)
        return msgspec.json.encode({"id": name, "bytes": len(content)})

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Create a batch: the moment its input has its final name, it exists."""
        del path
        order = msgspec.json.decode(body if isinstance(body, bytes) else b"".join(body), type=dict[str, object])
        name = str(order["input_file_id"])
        crash.point("once-before-send")
        self._at(name, ".uploaded.jsonl").rename(self._input(name))
        sync(self.folder)
        crash.point("once-after-reply")
        return self._told(name)

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """A batch, or all of them; looking at an unfinished one by its name sets it to work."""
        del query
        if self._trouble is not None:
            raise self._trouble
        name = path.removeprefix("/batches").strip("/")
        if name:
            if not self._input(name).exists():
                raise failure(Refused(Problem(status=404, message=f"{self._input(name)} is gone"), "refused"))
            self._set_to_work(name)
            return self._told(name)
        names = sorted(
            file.name.removesuffix(".jsonl") for file in self.folder.glob("*.jsonl") if file.name.count(".") == 1
        )
        data = [msgspec.json.decode(self._told(name), type=dict[str, object]) for name in names]
        return msgspec.json.encode({"data": data, "has_more": False})

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """Cancel a batch: what is not done is never done."""
        del body
        name = path.removeprefix("/batches/").removesuffix("/cancel")
        self._store.write(self._at(name, ".cancelled"), b"")
        return self._told(name)

    async def download(self, path: str, take: Callable[[bytes], None], most: int) -> int:
        """The results of a batch."""
        del most
        content = self._file(path.split("/")[2])
        take(content)
        return len(content)

    async def peek(self, path: str) -> bytes:
        """The beginning of a result file."""
        return self._file(path.split("/")[2])[:GLANCE]

    def signature(self, salt: str) -> str:  # noqa: ARG002 - of the same form as everybody's
        """None: what this very process carries out is in its files, whatever the key."""
        return ""

    def now_there(self) -> float:
        """The time by the clock that dates the files."""
        return time.time()

    def _file(self, file: str) -> bytes:
        """The results of a batch, or what it did not get to."""
        if not file.endswith(UNDONE):
            return self._results(file).read_bytes()
        name = file.removesuffix(UNDONE)
        calls = Calls(self._at(name, ".calls"))
        lines = [_undone(request.custom_id, calls.lost(request.custom_id)) for request in self._left(name)]
        calls.close()
        return b"".join(lines)

    def _at(self, name: str, ending: str) -> Path:
        """A file of a batch. Its name is what a journal says, and journals are handed around: it leads nowhere else."""
        return self.folder / f"{quote(name, safe='', errors='replace')[:200]}{ending}"

    def _input(self, name: str) -> Path:
        return self._at(name, ".jsonl")

    def _results(self, name: str) -> Path:
        return self._at(name, ".results.jsonl")

    def _told(self, name: str) -> bytes:
        """A batch as OpenAI would tell of it."""
        total, done = self._counts(name)
        working = name in self._working
        status = "in_progress" if working or done < total else "completed"
        if self._cancelled(name) and not working and done < total:
            status = "cancelled"
        told = {
            "id": name,
            "status": status,
            "created_at": self._input(name).stat().st_mtime,
            "input_file_id": name,
            "output_file_id": name if done else None,
            "error_file_id": f"{name}{UNDONE}" if status == "cancelled" else None,
            "request_counts": {"total": total, "completed": done, "failed": 0},
            "metadata": {"batchbench": name},
        }
        return msgspec.json.encode(told)

    def _counts(self, name: str) -> tuple[int, int]:
        """How many requests a batch has, and how many of them are done."""
        results = self._results(name)
        done = results.read_bytes().count(b"\n") if results.exists() else 0
        return self._input(name).read_bytes().count(b"\n"), done

    def _cancelled(self, name: str) -> bool:
        return self._at(name, ".cancelled").exists()

    def _set_to_work(self, name: str) -> None:
        total, done = self._counts(name)
        if done < total and not self._cancelled(name) and name not in self._working and self._group is not None:
            self._working.add(name)
            self._group.start_soon(self._work, name)

    async def _work(self, name: str) -> None:
        """Make every call of a batch that has no result yet."""
        path = self._results(name)
        calls = Calls(self._at(name, ".calls"))
        left = self._left(name)
        handle = appending(path)
        flying = 0
        landed = anyio.Event()

        async def fly(request: Request) -> None:
            nonlocal flying, landed
            try:
                line = await self._call(request, calls)
                if line is not None:
                    append(handle, line, path)
                    crash.point("spool-line")
            finally:
                flying -= 1
                landed.set()
                landed = anyio.Event()

        try:
            async with anyio.create_task_group() as group:
                synced = time.monotonic()
                for request in left:
                    while flying >= int(self._pace.width):
                        with anyio.move_on_after(1.0):
                            await landed.wait()
                    if self._trouble is not None or self._cancelled(name):
                        break
                    flying += 1
                    group.start_soon(fly, request)
                    if time.monotonic() - synced > SYNC:
                        await to_thread.run_sync(os.fdatasync, handle)
                        synced = time.monotonic()
            await to_thread.run_sync(os.fdatasync, handle)
        finally:
            os.close(handle)
            calls.close()
            self._working.discard(name)

    def _left(self, name: str) -> list[Request]:
        """The requests without a result; half a line at the end of the results is cut off first."""
        done: set[str] = set()
        path = self._results(name)
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
            done = {msgspec.json.decode(line, type=Done).custom_id for line in content[:whole].split(b"\n")[:-1]}
        return [request for request in self._requests(name) if request.custom_id not in done]

    def _requests(self, name: str) -> list[Request]:
        lines = self._input(name).read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=Request) for line in lines]

    async def _call(self, request: Request, calls: "Calls") -> bytes | None:
        """The result line of one request; null if the server takes no calls from us at all."""

        async def attempt() -> Reply:
            await self._turn(request.tokens)
            calls.begin(request.custom_id)
            crash.point("spool-call")
            try:
                reply = await self._api.reply("/chat/completions", bytes(request.body))
            except Refused as refused:
                calls.refused(request.custom_id)
                self._pace.heed(refused.headers)
                if refused.verdict in ("retry", "slot"):
                    self._pace.bad(refused.retry_after)
                raise
            except FAILURES:
                self._pace.bad(None)
                raise
            self._pace.good()
            self._pace.heed(reply.headers)
            return reply

        try:
            reply = await self._api.several(attempt, TRIES)
        except Refused as refused:
            if refused.verdict == "fatal":
                self._trouble = failure(refused)
                return None
            told = refused.problem
            error = {"error": {"message": told.message, "type": told.type, "code": told.code}}
            return result_line(
                request.custom_id, told.status, msgspec.json.encode(error), calls.lost(request.custom_id)
            )
        except FAILURES as error:
            self._trouble = BatchbenchError(
                f"the server does not answer ({type(error).__name__}): start it and run the same command"
            )
            return None
        return result_line(request.custom_id, 200, reply.content, calls.lost(request.custom_id) - 1)

    async def _turn(self, tokens: int) -> None:
        """Wait until the server's limits allow a call of this size."""
        while (pause := self._pace.wait(tokens)) > 0:
            if pause > 2 and time.monotonic() - self._noted > 30:
                self._noted = time.monotonic()
                self._note(f"the server's rate limit allows the next call at {clock_face(time.time() + pause)}")
            await anyio.sleep(pause)
        self._pace.take(tokens)


class Calls:
    """Every call of a batch, noted before it is made: what was neither answered nor refused may have been charged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost: Counter[str] = Counter()
        for word in path.read_text().split() if path.exists() else []:  # the last may be torn, and then is nobody's
            self._lost[word[1:]] += 1 if word[0] == "+" else -1
        self._handle = appending(path)
        append(self._handle, b"\n", path)

    def begin(self, custom_id: str) -> None:
        """A call is about to be made."""
        self._lost[custom_id] += 1
        append(self._handle, f"+{custom_id}\n".encode(), self._path)

    def refused(self, custom_id: str) -> None:
        """It was answered with a no, which costs nothing."""
        self._lost[custom_id] -= 1
        append(self._handle, f"-{custom_id}\n".encode(), self._path)

    def lost(self, custom_id: str) -> int:
        """Calls for a request of which nobody has noted the outcome."""
        return max(0, self._lost[custom_id])

    def close(self) -> None:
        """No more calls."""
        os.close(self._handle)


def appending(path: Path) -> int:
    """A file to which lines are added."""
    with explained(path):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def append(handle: int, content: bytes, path: Path) -> None:
    """Add lines in one write: killed here, they are there or they are not."""
    with explained(path):
        if os.write(handle, content) != len(content):  # the half that was written is cut off at the next start
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _undone(custom_id: str, lost: int) -> bytes:
    """A line about a request that was not made, as OpenAI's error files have it."""
    error = {"code": "batch_cancelled", "message": "the batch was cancelled before this request was made"}
    return msgspec.json.encode({"custom_id": custom_id, "response": None, "error": error, "lost": lost}) + b"\n"


def result_line(custom_id: str, status: int, body: bytes, lost: int) -> bytes:
    """A line as OpenAI's result files have it, but for `lost`; the server's answer stands in it as it came."""
    try:
        inside = msgspec.Raw(_on_one_line(body))
    except (ValueError, RecursionError):
        inside = msgspec.Raw(msgspec.json.encode({"error": {"message": body[:500].decode("utf-8", "replace")}}))
        status = 0
    whole = {"custom_id": custom_id, "response": {"status_code": status, "body": inside}, "error": None}
    return msgspec.json.encode(whole | {"lost": lost} if lost else whole) + b"\n"


def _on_one_line(document: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(document))
    except (ValueError, OverflowError):  # msgspec's errors are ValueErrors; some numbers can be read and not written
        return mended(document)
