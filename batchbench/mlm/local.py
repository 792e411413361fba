"""IO: play the batch for a masked model on this machine: sentences by length, some at a time, each answered once.

Everything said of a spool holds: a sentence is done once its line is in the batch's result file, and a killed process
loses the sentences that were being computed and nothing else. Which sentences share a pass is decided by the batch, not
by what is left of it, so that a run that was killed computes what one that was not would have.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from batchbench import crash
from batchbench.api import Api
from batchbench.callbook import append, appending, result_line
from batchbench.errors import BatchbenchError
from batchbench.mlm import filling, runtimes
from batchbench.mlm.filling import Pair, Question
from batchbench.mlm.runtimes import Runtime
from batchbench.spool import Request, Spool
from batchbench.store import Store

AT_ONCE = 64  # sentences that are computed before their answers are written


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message]


class LocalSpool(Spool):
    """A spool that answers by itself; `candidates` are the two words of each row, where the probe has any."""

    def __init__(self, folder: Path, store: Store, api: Api, model: str, candidates: Sequence[Pair] | None) -> None:
        super().__init__(folder, store, api)
        self._model = model
        self._candidates = candidates
        self._runtime: Runtime | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LocalSpool"]:
        """Carry out batches as long as this lasts."""
        async with anyio.create_task_group() as group:
            self._group = group
            yield self
            group.cancel_scope.cancel()

    async def _work(self, name: str) -> None:
        """Answer every sentence of a batch that has no answer yet."""
        path = self._results(name)
        left = {request.custom_id for request in self._left(name)}
        handle = appending(path)
        try:
            for share in await to_thread.run_sync(self._shares, name):
                missing = [request for request in share if request.custom_id in left]
                if self._cancelled(name):
                    break
                if missing:
                    lines = await to_thread.run_sync(self._answered, missing)
                    append(handle, b"".join(lines), path)
                    crash.point("spool-line")
            await to_thread.run_sync(os.fdatasync, handle)
        except BatchbenchError as error:
            self._trouble = error
        finally:
            os.close(handle)
            self._working.discard(name)

    def _shares(self, name: str) -> list[list[Request]]:
        """All sentences of a batch, those of about the same length together."""
        if self._runtime is None:
            self._runtime = runtimes.load(self._model)
        order = sorted(self._requests(name), key=lambda request: (len(_prompt(request)), request.custom_id))
        return [order[first : first + AT_ONCE] for first in range(0, len(order), AT_ONCE)]

    def _answered(self, requests: list[Request]) -> list[bytes]:
        """The result lines of sentences; one that the model cannot take is refused, as a server would."""
        assert self._runtime is not None  # noqa: S101 - there would be no shares
        asked: list[tuple[Request, Question]] = []
        lines = []
        for request in requests:
            row = int(request.custom_id.split("-")[1])
            candidates = self._candidates[row] if self._candidates else None
            try:
                asked.append((request, filling.question(self._runtime, _prompt(request), candidates)))
            except ValueError as error:
                refused = {"error": {"message": str(error), "type": "invalid_request_error"}}
                lines.append(result_line(request.custom_id, 400, msgspec.json.encode(refused)))
        said = filling.answers(self._runtime, [question for _, question in asked])
        for (request, question), answer in zip(asked, said, strict=True):
            text = msgspec.json.encode(answer).decode()
            body: dict[str, object] = {
                "model": self._model,
                "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": len(question.ids), "completion_tokens": 0},
            }
            lines.append(result_line(request.custom_id, 200, msgspec.json.encode(body)))
        return lines


def _prompt(request: Request) -> str:
    return msgspec.json.decode(request.body, type=_Body).messages[-1].content
