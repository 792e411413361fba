"""IO: play the batch for a masked model on this machine: sentences by length, a pass at a time, each answered once.

Everything said of a spool holds: a sentence is done once its line is in the batch's result file. The answers of a pass
are on disk before the next begins, so a killed process loses the pass that was being computed and nothing else. Which
sentences share a pass is decided by the batch, not by what is left of it, so that a run that was killed computes what
one that was not would have.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec
from anyio import to_thread

from batchbench.core import crash_points
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, DataError
from batchbench.transport.call_log import append, open_append, result_line
from batchbench.transport.mlm import filling, fingerprint, runtimes
from batchbench.transport.mlm.filling import Pair, Question
from batchbench.transport.mlm.runtimes import Runtime
from batchbench.transport.spool import BatchSpool, Request

Share = list[tuple[Request, Question]]  # what is computed in one pass
FINGERPRINT = "model.sha256"  # the file that says which model answers in this spool


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message]


class ModelSpool(BatchSpool):
    """A spool that answers by itself; `candidates` are the two words of each row, where the probe has any."""

    def __init__(self, folder: Path, store: Store, model: str, candidates: Sequence[Pair] | None) -> None:
        super().__init__(folder, store)
        self._model = model
        self._candidates = candidates
        self._runtime: Runtime | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Carry out batches as long as this lasts."""
        await to_thread.run_sync(self._check_model)
        async with super().running():
            yield self

    async def _execute(self, name: str) -> None:
        """Answer every sentence of a batch that has no answer yet."""
        path = self._results(name)
        left = {request.custom_id for request in self._unfinished(name)}
        handle = open_append(path)
        try:
            for share in await to_thread.run_sync(self._shares, name):
                missing = [(request, question) for request, question in share if request.custom_id in left]
                if self._cancelled(name):
                    break
                if missing:
                    lines = await to_thread.run_sync(self._answered, missing)
                    append(handle, b"".join(lines), path)
                    await to_thread.run_sync(os.fdatasync, handle)
                    crash_points.point("spool-line")
        except BatchbenchError as error:
            self._failure = error
        finally:
            os.close(handle)
            self._executing.discard(name)

    def _shares(self, name: str) -> list[Share]:
        """All sentences of a batch, by the passes in which they are computed."""
        if self._runtime is None:
            self._runtime = runtimes.load(self._model)
            now = self._check_model()  # once more: loading a model by its name may have fetched another version
            self._store.write(self.folder / FINGERPRINT, now.encode())
        requests = self._requests(name)
        asked = filling.questions(self._runtime, [_prompt(each) for each in requests], [*map(self._pair, requests)])
        return [[(requests[number], asked[number]) for number in numbers] for numbers in filling.passes(asked)]

    def _pair(self, request: Request) -> Pair | None:
        return self._candidates[int(request.custom_id.split("-")[1])] if self._candidates else None

    def _check_model(self) -> str:
        """The model's fingerprint; refuses another model than began the run, whose answers would be taken for its."""
        path, now = self.folder / FINGERPRINT, fingerprint(self._model)
        if now and path.exists() and path.read_text() not in ("", now):
            raise DataError(
                f"mlm:{self._model} is not the model that it was when {self.folder.parent} was begun: "
                "give the new one a folder of its own, or move the run away"
            )
        return now

    def _answered(self, share: Share) -> list[bytes]:
        """The result lines of sentences; one that the model cannot take is refused, as a server would."""
        assert self._runtime is not None  # noqa: S101 - there would be no shares
        most = self._runtime.spelling.longest
        lines = []
        for request, question in share:
            if question.longest > most:
                why = f"the sentence has {question.longest} tokens, and the model takes {most}"
                refused = {"error": {"message": why, "type": "invalid_request_error"}}
                lines.append(result_line(request.custom_id, 400, msgspec.json.encode(refused)))
        asked = [(request, question) for request, question in share if question.longest <= most]
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
