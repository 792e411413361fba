"""IO: execute batches with a masked model on this machine.

Sentences of similar length are computed together in one pass of the model. The answers of a pass are on disk before the
next pass begins, so a kill loses only the pass that was being computed. The passes depend on the whole batch, not on
what is left of it, so an interrupted run computes the same numbers as an uninterrupted one.
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
from batchbench.transport.mlm.filling import EncodedPrompt, Pair
from batchbench.transport.mlm.runtimes import Runtime
from batchbench.transport.spool import BatchSpool, Request

Pass = list[tuple[Request, EncodedPrompt]]  # computed together
FINGERPRINT = "model.sha256"  # the file with the fingerprint of the model that answers in this spool


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message]


class ModelSpool(BatchSpool):
    """Executes batches with a model in this process; `candidates` are the two words of each row, if it has any."""

    def __init__(self, folder: Path, store: Store, model: str, candidates: Sequence[Pair] | None) -> None:
        super().__init__(folder, store)
        self._model = model
        self._candidates = candidates
        self._runtime: Runtime | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Execute batches inside this context."""
        await to_thread.run_sync(self._check_model)
        async with super().running():
            yield self

    async def _execute(self, name: str) -> None:
        path = self._results(name)
        unfinished = {request.custom_id for request in self._unfinished(name)}
        handle = open_append(path)
        try:
            for pairs in await to_thread.run_sync(self._passes, name):
                missing = [(request, prompt) for request, prompt in pairs if request.custom_id in unfinished]
                if self._cancelled(name):
                    break
                if missing:
                    lines = await to_thread.run_sync(self._result_lines, missing)
                    append(handle, b"".join(lines), path)
                    await to_thread.run_sync(os.fdatasync, handle)
                    crash_points.point("spool-line")
        except BatchbenchError as error:
            self.failure = error
        finally:
            os.close(handle)
            self._executing.discard(name)

    def _passes(self, name: str) -> list[Pass]:
        """All sentences of a batch, grouped by the pass in which they are computed."""
        if self._runtime is None:
            self._runtime = runtimes.load(self._model)
            current = self._check_model()  # once more: loading a model by its name may have downloaded another version
            self._store.write(self.folder / FINGERPRINT, current.encode())
        requests = self._requests(name)
        texts = [_prompt(request) for request in requests]
        prompts = filling.encode_prompts(self._runtime, texts, [*map(self._pair, requests)])
        return [[(requests[number], prompts[number]) for number in numbers] for numbers in filling.passes(prompts)]

    def _pair(self, request: Request) -> Pair | None:
        return self._candidates[int(request.custom_id.split("-")[1])] if self._candidates else None

    def _check_model(self) -> str:
        """The model's fingerprint; raises DataError if another model began the run, so that answers do not mix."""
        path, current = self.folder / FINGERPRINT, fingerprint(self._model)
        if current and path.exists() and path.read_text() not in ("", current):
            raise DataError(
                f"mlm:{self._model} is not the model that it was when {self.folder.parent} was begun: "
                "put the new model into another folder, or move the run away"
            )
        return current

    def _result_lines(self, pairs: Pass) -> list[bytes]:
        """The result lines of sentences; one that is too long for the model gets the error line of a server."""
        assert self._runtime is not None  # noqa: S101 - `_passes` has loaded it
        limit = self._runtime.vocabulary.max_tokens
        lines = []
        for request, prompt in pairs:
            if prompt.longest > limit:
                why = f"the sentence has {prompt.longest} tokens, and the model takes {limit}"
                refused = {"error": {"message": why, "type": "invalid_request_error"}}
                lines.append(result_line(request.custom_id, 400, msgspec.json.encode(refused)))
        accepted = [(request, prompt) for request, prompt in pairs if prompt.longest <= limit]
        answers = filling.answers(self._runtime, [prompt for _, prompt in accepted])
        for (request, prompt), answer in zip(accepted, answers, strict=True):
            text = msgspec.json.encode(answer).decode()
            body: dict[str, object] = {
                "model": self._model,
                "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": len(prompt.ids), "completion_tokens": 0},
            }
            lines.append(result_line(request.custom_id, 200, msgspec.json.encode(body)))
        return lines


def _prompt(request: Request) -> str:
    return msgspec.json.decode(request.body, type=_Body).messages[-1].content
