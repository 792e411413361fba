"""IO: OpenAI's Batch API, answered from files in a folder, for models that have no batch API.

A batch exists once its input file has its final name. A request is done once its line is in the batch's result file.
"""

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

import anyio
import msgspec
from anyio.abc import TaskGroup

from batchbench.core import crash_points
from batchbench.core.store import Store, sync
from batchbench.errors import BatchbenchError
from batchbench.providers.chat import INTERRUPTED, LOST
from batchbench.providers.interface import Problem
from batchbench.transport.call_log import error_line, unanswered
from batchbench.transport.client import START_BYTES
from batchbench.transport.replies import Refused, Unsent, failure

ID = re.compile(rb'^\{"custom_id":"([^"]+)"', re.MULTILINE)  # of a result line
CANCELLED = "the batch was cancelled before this request was made"
NOT_MADE = ".undone"  # ends the id of the file that lists the requests without a result in a cancelled batch


class Body(msgspec.Struct):
    """The fields of a request that limit the length of its answer."""

    max_tokens: int = 0
    max_completion_tokens: int = 0


class Request(msgspec.Struct):
    """A line of an input file."""

    custom_id: str
    body: msgspec.Raw

    @property
    def tokens(self) -> int:
        """About how many tokens a server counts against its rate limit: the prompt and the longest possible answer."""
        body = msgspec.json.decode(self.body, type=Body)
        return len(bytes(self.body)) // 4 + max(body.max_tokens, body.max_completion_tokens)


class BatchSpool(ABC):
    """OpenAI's Batch API on files; a subclass executes the batches."""

    base_url = ""  # paths are names of files

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store
        self._executing: set[str] = set()
        self._group: TaskGroup | None = None
        self.failure: BatchbenchError | None = None  # after which no call is made
        self.may_execute = True  # False: only results that exist are handed out

    @abstractmethod
    async def _execute(self, name: str) -> None:
        """Write a result line for every request of a batch that has none, then discard `name` from `_executing`."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Execute batches inside this context."""
        async with anyio.create_task_group() as group:
            self._group = group
            yield self
            group.cancel_scope.cancel()

    async def upload(self, path: str, fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> bytes:
        """Keep the input file; its name becomes the batch's id."""
        del path, fields
        content = b"".join(body)
        name = filename.removesuffix(".jsonl")
        self._store.write(self._path(name, ".uploaded.jsonl"), content)
        return msgspec.json.encode({"id": name, "bytes": len(content)})

    async def once(self, path: str, body: bytes | Sequence[bytes]) -> bytes:
        """Create a batch by giving its input file its final name."""
        if path != "/batches":
            raise Unsent(f"{path} cannot be called")
        order = msgspec.json.decode(body if isinstance(body, bytes) else b"".join(body), type=dict[str, object])
        name = str(order["input_file_id"])
        crash_points.point("once-before-send")
        self._path(name, ".uploaded.jsonl").rename(self._input(name))
        sync(self.folder)
        crash_points.point("once-after-reply")
        return self._batch(name)

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> bytes:
        """A batch, or all of them; reading an unfinished batch by its id starts its execution."""
        del query
        if self.failure is not None:
            raise self.failure
        name = path.removeprefix("/batches").strip("/")
        if name:
            if not self._input(name).exists():
                raise failure(Refused(Problem(status=404, message=f"{self._input(name)} is gone"), "refused"))
            self._start(name)
            return self._batch(name)
        names = sorted(
            file.name.removesuffix(".jsonl") for file in self.folder.glob("*.jsonl") if file.name.count(".") == 1
        )
        data = [msgspec.json.decode(self._batch(name), type=dict[str, object]) for name in names]
        return msgspec.json.encode({"data": data, "has_more": False})

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """Cancel a batch: none of its calls begins after this."""
        del body
        name = path.removeprefix("/batches/").removesuffix("/cancel")
        self._store.write(self._path(name, ".cancelled"), b"")
        return self._batch(name)

    async def download(self, path: str, write: Callable[[bytes], None], max_bytes: int) -> int:
        """Read a batch's result file."""
        del max_bytes
        content = self._file(path.split("/")[2])
        write(content)
        return len(content)

    async def read_start(self, path: str) -> bytes:
        """The beginning of a result file."""
        return self._file(path.split("/")[2])[:START_BYTES]

    def signature(self, salt: str) -> str:  # noqa: ARG002 - the protocol has it
        """Empty: the batches are in this folder and do not depend on the key."""
        return ""

    def provider_time(self) -> float:
        """The time by the clock that dates the files."""
        return time.time()

    def _file(self, file: str) -> bytes:
        """The result lines of a batch, or the error lines for the requests without a result."""
        if not file.endswith(NOT_MADE):
            return self._results(file).read_bytes()
        name = file.removesuffix(NOT_MADE)
        begun = unanswered(self._calls(name))
        lost, not_made = (LOST, INTERRUPTED), ("batch_cancelled", CANCELLED)
        ids = [request.custom_id for request in self._unfinished(name)]
        return b"".join(error_line(id_, *(lost if id_ in begun else not_made)) for id_ in ids)

    def _path(self, name: str, ending: str) -> Path:
        """A file of a batch. `name` may come from another person's journal, so it is quoted to stay in the folder."""
        return self.folder / f"{quote(name, safe='', errors='replace')[:200]}{ending}"

    def _input(self, name: str) -> Path:
        return self._path(name, ".jsonl")

    def _results(self, name: str) -> Path:
        return self._path(name, ".results.jsonl")

    def _calls(self, name: str) -> Path:
        return self._path(name, ".calls")

    def _batch(self, name: str) -> bytes:
        """A batch object as OpenAI's API returns it."""
        total, done = self._counts(name)
        executing = name in self._executing
        status = "in_progress" if executing or done < total else "completed"
        if self._cancelled(name) and not executing and done < total:
            status = "cancelled"
        batch = {
            "id": name,
            "status": status,
            "created_at": self._input(name).stat().st_mtime,
            "input_file_id": name,
            "output_file_id": name if done else None,
            "error_file_id": f"{name}{NOT_MADE}" if status == "cancelled" else None,
            "request_counts": {"total": total, "completed": done, "failed": 0},
            "metadata": {"batchbench": name},
        }
        return msgspec.json.encode(batch)

    def _counts(self, name: str) -> tuple[int, int]:
        """How many requests a batch has, and how many of them are done."""
        results = self._results(name)
        done = results.read_bytes().count(b"\n") if results.exists() else 0
        return self._input(name).read_bytes().count(b"\n"), done

    def _cancelled(self, name: str) -> bool:
        return self._path(name, ".cancelled").exists()

    def _start(self, name: str) -> None:
        if name in self._executing or self._group is None or self._cancelled(name) or not self.may_execute:
            return
        total, done = self._counts(name)
        if done < total:
            self._executing.add(name)
            self._group.start_soon(self._execute, name)

    def _unfinished(self, name: str) -> list[Request]:
        """The requests without a result; first cuts off half a line at the end of the result file."""
        done: set[str] = set()
        path = self._results(name)
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
            # A power cut may have damaged a line's id. Such a line matches no request; its reader reports it.
            done = {found.decode(errors="replace") for found in ID.findall(content[:whole])}
        return [request for request in self._requests(name) if request.custom_id not in done]

    def _requests(self, name: str) -> list[Request]:
        lines = self._input(name).read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=Request) for line in lines]
