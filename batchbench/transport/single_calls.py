"""IO: play the batch for a server that has none: one call per request, at the pace the server bears.

A `Spool` answers the calls of OpenAI's Batch API from files in a folder. A batch exists once its input file does; a
request is done once its line is in the batch's result file. No server of this kind can be asked what became of a call,
so a batch makes no second one for a request whose first may have been charged: its result is that the call was lost.
It is asked again in another batch, for which the money has to be there. Every call is noted on disk before it is made,
so that this holds for those, too, that were in flight when the process was killed.
"""

import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import anyio
import msgspec
from anyio.abc import TaskGroup

from batchbench.core import crash_points as crash
from batchbench.core.clock import time_of_day
from batchbench.core.store import Store, sync
from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Problem
from batchbench.providers.openai import PATH
from batchbench.transport.call_log import Callbook, lost_line, result_line, unanswered, undone_line
from batchbench.transport.client import START_BYTES, Client
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.replies import LostReply, Refused, Unsent, failure

NOTES = 0.005  # seconds between syncs of notes: calls that can begin in the meantime are noted together
ID = re.compile(rb'^\{"custom_id":"([^"]+)"', re.MULTILINE)  # of a line of results
UNDONE = ".undone"  # ends the name of the file that tells what a cancelled batch did not get to
TRIES = 5  # of one request that is turned away, before that is its answer
KILLED = "the process ended while it was being made"


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


class CallSpool:
    """OpenAI's Batch API, played on files."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        api: Client,
        note: Callable[[str], None] = lambda _: None,
        pace: RateLimit | None = None,
    ) -> None:
        self.folder = folder
        self._store = store
        self._api = api
        self._note = note
        self._noted = float("-inf")
        self._pace = pace or RateLimit()  # of the server, which several runs may call
        self._working: set[str] = set()
        self._called_off: set[str] = set()
        self._group: TaskGroup | None = None
        self._trouble: BatchbenchError | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["CallSpool"]:
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
        """Create a batch: the moment its input has its final name, it exists. Anything else is the server's."""
        if path == PATH:
            return await self._api.once(path, body)
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
        self._called_off.add(name)
        return self._told(name)

    async def download(self, path: str, take: Callable[[bytes], None], most: int) -> int:
        """The results of a batch."""
        del most
        content = self._file(path.split("/")[2])
        take(content)
        return len(content)

    async def read_start(self, path: str) -> bytes:
        """The beginning of a result file."""
        return self._file(path.split("/")[2])[:START_BYTES]

    def signature(self, salt: str) -> str:  # noqa: ARG002 - of the same form as everybody's
        """None: what this very process carries out is in its files, whatever the key."""
        return ""

    def provider_time(self) -> float:
        """The time by the clock that dates the files."""
        return time.time()

    def _file(self, file: str) -> bytes:
        """The results of a batch, or what it did not get to."""
        if not file.endswith(UNDONE):
            return self._results(file).read_bytes()
        name = file.removesuffix(UNDONE)
        begun = unanswered(self._calls(name))
        ids = [request.custom_id for request in self._left(name)]
        return b"".join(lost_line(one, KILLED) if one in begun else undone_line(one) for one in ids)

    def _at(self, name: str, ending: str) -> Path:
        """A file of a batch. Its name is what a journal says, and journals are handed around: it leads nowhere else."""
        return self.folder / f"{quote(name, safe='', errors='replace')[:200]}{ending}"

    def _input(self, name: str) -> Path:
        return self._at(name, ".jsonl")

    def _results(self, name: str) -> Path:
        return self._at(name, ".results.jsonl")

    def _calls(self, name: str) -> Path:
        return self._at(name, ".calls")

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
        if name in self._working or self._group is None or self._cancelled(name):
            return
        total, done = self._counts(name)
        if done < total:
            self._working.add(name)
            self._group.start_soon(self._work, name)

    async def _work(self, name: str) -> None:
        """Make every call of a batch that has no result yet."""
        requests = self._left(name)
        book = Callbook(self._results(name), self._calls(name))
        ready: deque[Request] = deque()  # noted, so that they may be called
        idle: list[anyio.Event] = []  # of each worker that has nothing to do
        workers, flying, over = 0, 0, False
        noted, landed = float("-inf"), anyio.Event()

        async def work() -> None:
            # Nothing may tear us away from a call before its outcome is on record: also when we are told to stop.
            with anyio.CancelScope(shield=True):
                while ready or not over:
                    if not ready:
                        idle.append(wake := anyio.Event())
                        await wake.wait()
                        continue
                    request = ready.popleft()
                    try:
                        await self._attempt(request, book)
                    except (Refused, Unsent) as failed:
                        group.start_soon(again, request, failed)
                    else:
                        land()

        async def again(request: Request, failed: Refused | Unsent) -> None:
            try:
                await self._again(request, failed, book)
            finally:
                land()

        def wake_up(count: int) -> None:
            for _ in range(min(count, len(idle))):
                idle.pop().set()

        def land() -> None:
            nonlocal flying
            flying -= 1
            landed.set()

        try:
            for one in requests:
                if one.custom_id in book.begun:
                    book.write(lost_line(one.custom_id, KILLED))
            left = deque(one for one in requests if one.custom_id not in book.begun)
            async with anyio.create_task_group() as group:
                try:
                    while left and self._trouble is None and name not in self._called_off:
                        room = int(self._pace.width) - flying
                        if room <= 0:
                            landed = anyio.Event()
                            await landed.wait()
                        elif (pause := max(self._pause(left[0]), noted + NOTES - time.monotonic())) > 0:
                            await anyio.sleep(pause)
                        else:
                            share = self._share(left, room)
                            with anyio.CancelScope(shield=True):  # what is noted is called
                                await book.begin([request.custom_id for request in share])
                            noted = time.monotonic()
                            flying += len(share)
                            ready.extend(share)
                            wake_up(len(share))
                            while workers < flying:
                                workers += 1
                                group.start_soon(work)
                finally:
                    over = True
                    wake_up(len(idle))
        finally:
            book.close()
            self._working.discard(name)

    def _pause(self, request: Request) -> float:
        """Seconds until the server's limits allow a call of this size."""
        pause = self._pace.wait(request.tokens)
        if pause > 2 and time.monotonic() - self._noted > 30:
            self._noted = time.monotonic()
            self._note(f"the server's rate limit allows the next call at {time_of_day(time.time() + pause)}")
        return pause

    def _share(self, left: deque[Request], most: int) -> list[Request]:
        """The requests whose calls may begin now."""
        share: list[Request] = []
        while left and len(share) < most and self._pace.wait(tokens := left[0].tokens) <= 0:
            self._pace.take(tokens)
            share.append(left.popleft())
        return share

    async def _attempt(self, request: Request, book: Callbook) -> None:
        """Make a call that is noted, and put its outcome on record; raises what has certainly cost nothing."""
        name = request.custom_id
        crash.point("spool-call")
        began = time.monotonic()
        try:
            reply = await self._api.send_once(PATH, [request.body])
            line = result_line(name, 200, reply.content)
        except Refused as refused:
            book.refused(name)
            self._pace.heed(refused.headers)
            if refused.verdict in ("retry", "slot"):
                self._pace.bad(began, refused.retry_after)
            raise
        except Unsent:
            book.refused(name)
            self._pace.bad(began)
            raise
        except (LostReply, ValueError, RecursionError) as lost:  # or it was answered with something unreadable
            self._pace.bad(began, lost.retry_after if isinstance(lost, LostReply) else None)
            book.write(lost_line(name, str(lost)))
            if self._pace.warnings >= TRIES:
                self._trouble = BatchbenchError(
                    f"the server does not answer ({lost}): mend this, then run the same command"
                )
        else:
            self._pace.good()
            self._pace.heed(reply.headers)
            book.write(line)

    async def _again(self, request: Request, failed: Refused | Unsent, book: Callbook) -> None:
        """Repeat a call while it is turned away; what it ends with is its result, or everybody's trouble."""

        async def attempt() -> None:
            while (pause := self._pause(request)) > 0:  # noqa: ASYNC110 - others may take what was waited for
                await anyio.sleep(pause)
            self._pace.take(request.tokens)
            with anyio.CancelScope(shield=True):
                await book.begin([request.custom_id])
                await self._attempt(request, book)

        try:
            await self._api.retry(attempt, TRIES, failed)
        except Unsent as why:
            self._trouble = BatchbenchError(f"the server cannot be reached ({why}): start it and run the same command")
        except Refused as refused:
            if refused.verdict == "fatal":
                self._trouble = failure(refused)
                return
            told = refused.problem
            error = {"error": {"message": told.message, "type": told.type, "code": told.code}}
            book.write(result_line(request.custom_id, told.status, msgspec.json.encode(error)))

    def _left(self, name: str) -> list[Request]:
        """The requests without a result; half a line at the end of the results is cut off first."""
        done: set[str] = set()
        path = self._results(name)
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
            # Every line begins with its id, unless a power cut left a hole there; the rest is its reader's business.
            done = {found.decode(errors="replace") for found in ID.findall(content[:whole])}
        return [request for request in self._requests(name) if request.custom_id not in done]

    def _requests(self, name: str) -> list[Request]:
        lines = self._input(name).read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=Request) for line in lines]
