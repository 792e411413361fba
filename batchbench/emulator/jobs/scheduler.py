"""Runs the steps of all batches: waits until a step is due, executes it and records it."""

import asyncio
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from batchbench.emulator.dialects.anthropic.codec import AnthropicCodec
from batchbench.emulator.dialects.codec import BatchCodec
from batchbench.emulator.dialects.openai.codec import OpenAICodec
from batchbench.emulator.dialects.openai.validation import Validation, validate
from batchbench.emulator.jobs.runner import BatchJob, FileSize, RunResult, run
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.lifecycle import Step, next_step
from batchbench.emulator.ledger.state import EmulatedBatch, derive_id
from batchbench.emulator.server.context import Context


class Scheduler:
    """Executes one step at a time in a thread, the step that is due first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stop = threading.Event()
        self.busy = False

    async def run(self) -> None:
        """Execute steps until cancelled."""
        context = self._context
        while True:
            context.changed.clear()
            step = self._next_step()
            wait = None if step is None else step.at - context.clock.now()
            if step is None or (wait is not None and wait > 0):
                try:
                    async with asyncio.timeout(wait):
                        await context.changed.wait()
                except TimeoutError:
                    pass
                continue
            self.busy = True
            try:
                await (self._validate(step) if step.do == "validate" else self._run_batch(step))
            except asyncio.CancelledError:
                self._stop.set()
                raise
            finally:
                self.busy = False

    def stop(self) -> None:
        """Stop the step that is running. The next start of the emulator repeats it."""
        self._stop.set()

    def _next_step(self) -> Step | None:
        state, delays = self._context.state, self._context.settings.delays
        steps = (next_step(state.batches[batch], delays) for batch in state.open)
        return min((step for step in steps if step), key=lambda step: step.at, default=None)

    async def _validate(self, step: Step) -> None:
        context = self._context
        batch = context.state.batches[step.batch]
        began = time.monotonic()
        path, endpoint = context.input_path(batch.accepted.file), batch.accepted.endpoint
        personas = context.personas("openai")
        found = await asyncio.to_thread(validate, path, endpoint, context.settings.limits, personas, self._stop)
        errors = fault_errors(batch) or found.errors or self._token_limit_errors(found)
        t, wall = context.now()
        at = step.at + time.monotonic() - began
        if errors:
            context.record(events.BatchFailed(t=t, wall=wall, at=at, batch=step.batch, errors=errors))
        else:
            context.record(
                events.BatchValidatedInFull(
                    t=t,
                    wall=wall,
                    at=at,
                    batch=step.batch,
                    n=len(found.ids),
                    model=found.model,
                    input_tokens=found.input_tokens,
                    ids=found.ids,
                )
            )
        await context.sync()

    def _token_limit_errors(self, found: Validation) -> list[events.LineError]:
        """The provider checks the token limit of its queue in validation, not in the create call."""
        context = self._context
        limit = context.settings.limits.enqueued_tokens
        if limit is None:
            return []
        queued = sum(
            batch.validated.input_tokens
            for batch in (context.state.batches[key] for key in context.state.open)
            if batch.validated and batch.validated.model == found.model
        )
        return [token_limit_error(found.model, limit)] if queued + found.input_tokens > limit else []

    async def _run_batch(self, step: Step) -> None:
        context = self._context
        batch = context.state.batches[step.batch]
        if batch.started is None:
            t, wall = context.now()
            context.record(
                events.BatchStarted(
                    t=t, wall=wall, at=step.at, batch=batch.id, outcome=step.outcome, answer_count=step.answer_count
                )
            )
            await context.sync()
        began = time.monotonic()
        job = self._job(batch, step)

        def report_progress(done: int) -> None:
            context.progress[batch.id] = done

        report_progress(0)
        result = await asyncio.to_thread(run, job, report_progress, self._stop)
        if batch.accepted.fault and batch.accepted.fault.name == "expire-none" and job.error:
            job.error.unlink(missing_ok=True)
            result = replace(result, output=None, error=None)
        await self._bill(batch, result)
        self._end(context.state.batches[batch.id], step, result, time.monotonic() - began)
        await context.sync()
        context.progress.pop(batch.id, None)
        context.open_bills.pop(batch.id, None)
        file = context.state.files.get(batch.accepted.file)
        if file and file.deleted:
            context.remove_file(file.id)

    def _job(self, batch: EmulatedBatch, step: Step) -> BatchJob:
        context, accepted = self._context, batch.accepted
        seed = context.settings.seed
        codec: BatchCodec
        error: Path | None
        if accepted.dialect == "openai":
            codec = OpenAICodec(batch.id, accepted.t, seed, context.personas("openai"))
            output, error = map(context.output_path, self._result_files(batch.id))
        else:
            codec = AnthropicCodec(batch.id, accepted.version, seed, context.personas("anthropic"))
            output, error = context.output_path(batch.id), None
        return BatchJob(
            codec=codec,
            dialect=accepted.dialect,
            source=context.input_path(accepted.file),
            output=output,
            error=error,
            scratch=context.scratch,
            order=f"{seed} {batch.key}",
            answer_count=step.answer_count,
            outcome=step.outcome,
            price=context.settings.price,
            faults=context.faults,
            number=self._number(batch.id),
            billed=self._billed(batch.id),
        )

    def _number(self, batch: str) -> int:
        """The number of the batch among the client's batches, from 1."""
        own = [key for key, other in self._context.state.batches.items() if other.accepted.owner == "client"]
        return own.index(batch) + 1 if batch in own else 0

    def _billed(self, batch: str) -> frozenset[str]:
        """Ids that the ledger has billed: the emulator can be killed between two `billed` lines of a batch."""
        lines = self._context.open_bills.get(batch, ())
        return frozenset(
            custom_id
            for offset, length in lines
            for custom_id in self._context.ledger.read(offset, length, events.AnswersBilledInFull).ids
        )

    def _result_files(self, batch: str) -> tuple[str, str]:
        """The ids of the output file and the error file."""
        salt = self._context.state.salt
        return "file-" + derive_id(f"{salt} output {batch}", 22), "file-" + derive_id(f"{salt} error {batch}", 22)

    async def _bill(self, batch: EmulatedBatch, result: RunResult) -> None:
        context = self._context
        first = len(context.open_bills.get(batch.id, ()))
        for number, block in enumerate(result.blocks, first):
            t, wall = context.now()
            context.record(
                events.AnswersBilledInFull(
                    t=t,
                    wall=wall,
                    batch=batch.id,
                    block=number,
                    n=len(block.ids),
                    input_tokens=sum(block.inputs),
                    output_tokens=sum(block.outputs),
                    cost=sum(block.costs),
                    owner=batch.accepted.owner,
                    ids=block.ids,
                    inputs=block.inputs,
                    outputs=block.outputs,
                    costs=block.costs,
                    texts=block.texts,
                )
            )
            await asyncio.sleep(0)  # a block takes about a millisecond: let the server answer calls in between

    def _end(self, batch: EmulatedBatch, step: Step, result: RunResult, took: float) -> None:
        context, delays = self._context, self._context.settings.delays
        t, wall = context.now()
        finalizing = step.at + took
        at = finalizing + (delays.finalizing if step.outcome == "completed" else 0.0)
        if batch.cancelled is not None:
            at = max(at, batch.cancelled + delays.cancelling)
        output, error = self._result_files(batch.id)
        if batch.accepted.dialect == "anthropic":
            output = batch.id
        context.record(
            events.BatchEnded(
                t=t,
                wall=wall,
                at=at,
                batch=batch.id,
                outcome=step.outcome,
                counts=result.counts,
                input_tokens=result.input_tokens,
                output_tokens=result.output_tokens,
                thought_tokens=result.thought_tokens,
                cost=result.cost,
                finalizing=finalizing,
                output=_result_file(output, result.output),
                error=_result_file(error, result.error),
                line_faults=result.line_faults,
            )
        )


def fault_errors(batch: EmulatedBatch) -> list[events.LineError]:
    """The validation errors of a fault."""
    match batch.accepted.fault:
        case events.BatchFault("validation-failed"):
            message = "This line is not parseable as valid JSON."
            return [events.LineError("invalid_json_line", message, None, line) for line in (1, 2)]
        case events.BatchFault("token-limit"):
            return [token_limit_error("this model", 2_000_000)]
        case events.BatchFault("token-limit-azure"):
            message = "The enqueued tokens of this deployment exceed the configured limit of 30K. Try again later."
            return [events.LineError("token_limit_exceeded", message)]
        case _:
            return []


def token_limit_error(model: str, limit: int) -> events.LineError:
    message = (
        f"Enqueued token limit reached for {model} in organization org-emulator. Limit: {limit:,} enqueued tokens. "
        "Please try again once some in_progress batches have been completed."
    )
    return events.LineError("token_limit_exceeded", message)


def _result_file(file: str, size: FileSize | None) -> events.ResultFile | None:
    return events.ResultFile(file, size.bytes, size.lines) if size else None
