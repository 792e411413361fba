"""IO: play the batch for a server that has none: one call per request, at the pace the server bears.

A `Spool` answers the calls of OpenAI's Batch API from files in a folder. A batch exists once its input file does; a
request is done once its line is in the batch's result file. A killed process loses the calls that were in flight and
nothing else: they are made again, because no server of this kind can be asked what became of them.
"""

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from batchbench import crash
from batchbench.api import FAILURES, GLANCE, Api, Refused, Reply, failure
from batchbench.errors import BatchbenchError
from batchbench.store import Store, sync

MOST = 64  # calls in flight
SYNC = 0.5  # seconds between syncs of a result file; the kernel keeps what is written even if we are killed
TRIES = 5  # of one request, before its failure is its answer


class Request(msgspec.Struct):
    """A line of an input file."""

    custom_id: str
    body: msgspec.Raw


class Done(msgspec.Struct):
    """What matters of a line of a result file when work is taken up again."""

    custom_id: str


class Pace:
    """How many calls are in flight, and when the next may start: more while all goes well, half when it does not."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.width = 4.0
        self.not_before = 0.0
        self._now = now
        self._halved = 0.0

    def good(self) -> None:
        """A call went well."""
        self.width = min(MOST, self.width + 1 / self.width)

    def bad(self, pause: float | None) -> None:
        """A call was turned away; several at once are one warning."""
        if self._now() - self._halved > 1.0:
            self.width = max(1.0, self.width / 2)
            self._halved = self._now()
        if pause:
            self.not_before = max(self.not_before, self._now() + pause)

    def heed(self, headers: Mapping[str, str]) -> None:
        """Slow down before the server has to say so: wait where nothing is left of a limit."""
        for kind in ("requests", "tokens"):
            left, wait = headers.get(f"x-ratelimit-remaining-{kind}"), headers.get(f"x-ratelimit-reset-{kind}")
            if left is not None and wait is not None and left.isdecimal() and int(left) == 0:
                self.not_before = max(self.not_before, self._now() + min(seconds(wait), 60.0))

    def pause(self) -> float:
        """How long to wait before the next call."""
        return max(0.0, self.not_before - self._now())


def seconds(text: str) -> float:
    """A duration as rate limit headers write it, such as `6m0s` or `20ms`; 0 for what is none."""
    total, number = 0.0, ""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    text = text.replace("ms", "µ")
    for letter in text:
        if letter.isdigit() or letter == ".":
            number += letter
        elif letter in units or letter == "µ":
            with suppress(ValueError):
                total += float(number) * units.get(letter, 0.001)
            number = ""
    return total


class Server(Protocol):
    """What a spool asks of the server behind it."""

    async def reply(self, path: str, body: bytes) -> Reply:
        """Make one call; raises Refused, or one of FAILURES."""


class Spool:
    """OpenAI's Batch API, played on files."""

    def __init__(self, folder: Path, store: Store, api: Api) -> None:
        self.folder = folder
        self._store = store
        self._api = api
        self._pace = Pace()
        self._working: set[str] = set()
        self._group: TaskGroup | None = None
        self._trouble: BatchbenchError | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Spool"]:
        """Carry out batches as long as this lasts."""
        self.folder.mkdir(exist_ok=True)
        async with self._api.running(), anyio.create_task_group() as group:
            self._group = group
            yield self
            group.cancel_scope.cancel()

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Keep the input file; its name is the batch's."""
        del path, fields
        content = b"".join(body)
        name = filename.removesuffix(".jsonl")
        self._store.write(self.folder / f"{name}.uploaded.jsonl", content)
        return msgspec.json.encode({"id": name, "bytes": len(content)})

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Create a batch: the moment its input has its final name, it exists."""
        del path
        order = msgspec.json.decode(body if isinstance(body, bytes) else b"".join(body), type=dict[str, object])
        name = str(order["input_file_id"])
        crash.point("once-before-send")
        (self.folder / f"{name}.uploaded.jsonl").rename(self._input(name))
        sync(self.folder)
        crash.point("once-after-reply")
        return self._told(name)

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """A batch, or all of them; looking at an unfinished one sets it to work."""
        del query
        if self._trouble is not None:
            raise self._trouble
        name = path.removeprefix("/batches").strip("/")
        if name:
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
        self._store.write(self.folder / f"{name}.cancelled", b"")
        return self._told(name)

    async def download(self, path: str, take: Callable[[bytes], None], most: int) -> int:
        """The results of a batch."""
        del most
        content = self._results(path.split("/")[2]).read_bytes()
        take(content)
        return len(content)

    async def peek(self, path: str) -> bytes:
        """The beginning of a result file."""
        return self._results(path.split("/")[2]).read_bytes()[:GLANCE]

    def _input(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _results(self, name: str) -> Path:
        return self.folder / f"{name}.results.jsonl"

    def _told(self, name: str) -> bytes:
        """A batch as OpenAI would tell of it."""
        total = self._input(name).read_bytes().count(b"\n")
        results = self._results(name)
        done = results.read_bytes().count(b"\n") if results.exists() else 0
        cancelled = (self.folder / f"{name}.cancelled").exists()
        if done < total and not cancelled and name not in self._working and self._group is not None:
            self._working.add(name)
            self._group.start_soon(self._work, name)
        status = (
            "completed" if done >= total and name not in self._working else "cancelled" if cancelled else "in_progress"
        )
        told = {
            "id": name,
            "status": status,
            "created_at": self._input(name).stat().st_mtime,
            "input_file_id": name,
            "output_file_id": name if done else None,
            "request_counts": {"total": total, "completed": done, "failed": 0},
            "metadata": {"batchbench": name},
        }
        return msgspec.json.encode(told)

    async def _work(self, name: str) -> None:
        """Make every call of a batch that has no result yet."""
        path = self._results(name)
        left = self._left(name, path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        flying = 0
        landed = anyio.Event()

        async def fly(request: Request) -> None:
            nonlocal flying, landed
            try:
                line = await self._call(request)
                if line is not None:
                    os.write(handle, line)  # one write per line: killed here, the line is there or it is not
                    crash.point("spool-line")
            finally:
                flying -= 1
                landed.set()
                landed = anyio.Event()

        try:
            async with anyio.create_task_group() as group:
                synced = time.monotonic()
                for request in left:
                    while flying >= int(self._pace.width) or self._pace.pause() > 0:
                        with anyio.move_on_after(self._pace.pause() or 1.0):
                            await landed.wait()
                    if self._trouble is not None or (self.folder / f"{name}.cancelled").exists():
                        break
                    flying += 1
                    group.start_soon(fly, request)
                    if time.monotonic() - synced > SYNC:
                        await anyio.to_thread.run_sync(os.fdatasync, handle)
                        synced = time.monotonic()
            await anyio.to_thread.run_sync(os.fdatasync, handle)
        finally:
            os.close(handle)
            self._working.discard(name)

    def _left(self, name: str, path: Path) -> list[Request]:
        """The requests without a result; half a line at the end of the results is cut off first."""
        done: set[str] = set()
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
            done = {msgspec.json.decode(line, type=Done).custom_id for line in content[:whole].splitlines()}
        requests = [msgspec.json.decode(line, type=Request) for line in self._input(name).read_bytes().splitlines()]
        return [request for request in requests if request.custom_id not in done]

    async def _call(self, request: Request) -> bytes | None:
        """The result line of one request; null if the server takes no calls from us at all."""
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                reply = await self._api.reply("/chat/completions", bytes(request.body))
            except Refused as refused:
                if refused.verdict == "fatal":
                    self._trouble = failure(refused)
                    return None
                if refused.verdict in ("retry", "slot") and not last:
                    self._pace.bad(refused.retry_after or min(30.0, 0.5 * 2**attempt))
                    await anyio.sleep(self._pace.pause())
                    continue
                error = {
                    "error": {
                        "message": refused.problem.message,
                        "type": refused.problem.type,
                        "code": refused.problem.code,
                    }
                }
                return _line(request.custom_id, refused.problem.status, msgspec.json.encode(error))
            except FAILURES as error:
                self._pace.bad(min(30.0, 0.5 * 2**attempt))
                if last:
                    self._trouble = BatchbenchError(
                        f"the server does not answer ({type(error).__name__}): start it and run the same command"
                    )
                    return None
                await anyio.sleep(self._pace.pause())
            else:
                self._pace.good()
                self._pace.heed(reply.headers)
                return _line(request.custom_id, 200, reply.content)
        return None


def _line(custom_id: str, status: int, body: bytes) -> bytes:
    """A line as OpenAI's result files have it; the server's answer stands in it as it came."""
    try:
        inside = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(body)))
    except msgspec.DecodeError:
        inside = msgspec.Raw(msgspec.json.encode({"error": {"message": body[:500].decode("utf-8", "replace")}}))
        status = 0
    whole = {"custom_id": custom_id, "response": {"status_code": status, "body": inside}, "error": None}
    return msgspec.json.encode(whole) + b"\n"
