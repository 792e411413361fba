"""Drives batches through their life: waits until a step is due, does it, records it."""

import asyncio
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from batchbench.emulator.dialects.anthropic import wire as anthropic_wire
from batchbench.emulator.dialects.openai import codec as openai_codec
from batchbench.emulator.dialects.openai import validation
from batchbench.emulator.jobs import runner as work
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.ledger.lifecycle import Step, next_step
from batchbench.emulator.ledger.state import Batch, spell
from batchbench.emulator.server.context import Desk


class Foreman:
    """One batch is worked on at a time, in a thread, oldest due step first."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._stop = threading.Event()
        self.busy = False

    async def drive(self) -> None:
        desk = self._desk
        while True:
            desk.bell.clear()
            step = self._soonest()
            wait = None if step is None else step.at - desk.clock.now()
            if step is None or (wait is not None and wait > 0):
                try:
                    async with asyncio.timeout(wait):
                        await desk.bell.wait()
                except TimeoutError:
                    pass
                continue
            self.busy = True
            try:
                await (self._validate(step) if step.do == "validate" else self._run(step))
            except asyncio.CancelledError:
                self._stop.set()
                raise
            finally:
                self.busy = False

    def stop(self) -> None:
        """Let the pass that is running give up; it starts again at the next start of the emulator."""
        self._stop.set()

    def _soonest(self) -> Step | None:
        desk = self._desk
        steps = (next_step(desk.state.batches[batch], desk.settings.delays) for batch in desk.state.open)
        return min((step for step in steps if step), key=lambda step: step.at, default=None)

    async def _validate(self, step: Step) -> None:
        desk = self._desk
        batch = desk.state.batches[step.batch]
        begun = time.monotonic()
        path = desk.input_path(batch.accepted.file)
        checked = await asyncio.to_thread(
            validation.validate, path, batch.accepted.endpoint, desk.settings.limits, desk.persona, self._stop
        )
        errors = fated_errors(batch) or checked.errors or self._too_many_tokens(checked)
        t, wall = desk.now()
        at = step.at + time.monotonic() - begun
        if errors:
            desk.record(ev.Failed(t=t, wall=wall, at=at, batch=step.batch, errors=errors))
        else:
            desk.record(
                ev.ValidatedInFull(
                    t=t,
                    wall=wall,
                    at=at,
                    batch=step.batch,
                    n=len(checked.ids),
                    model=checked.model,
                    input_tokens=checked.input_tokens,
                    ids=checked.ids,
                )
            )
        await desk.durable()

    def _too_many_tokens(self, checked: validation.Checked) -> list[ev.LineError]:
        """The queue limit shows only here: the create was answered with 200 long ago."""
        desk = self._desk
        most = desk.settings.limits.enqueued_tokens
        if most is None:
            return []
        queued = sum(
            batch.validated.input_tokens
            for batch in (desk.state.batches[key] for key in desk.state.open)
            if batch.validated and batch.validated.model == checked.model
        )
        return [token_limit(checked.model, most)] if queued + checked.input_tokens > most else []

    async def _run(self, step: Step) -> None:
        desk = self._desk
        batch = desk.state.batches[step.batch]
        if batch.started is None:
            t, wall = desk.now()
            started = ev.Started(t=t, wall=wall, at=step.at, batch=step.batch, outcome=step.outcome, answer=step.answer)
            desk.record(started)
            await desk.durable()
        begun = time.monotonic()
        job = self._job(batch, step)
        desk.progress[batch.id] = 0
        ran = await asyncio.to_thread(work.run, job, lambda done: _note(desk, batch.id, done), self._stop)
        if batch.accepted.fate and batch.accepted.fate.name == "expire-none" and job.error:
            job.error.unlink(missing_ok=True)
            ran = replace(ran, output=None, error=None)
        await self._bill(batch, ran)
        self._end(desk.state.batches[step.batch], step, ran, time.monotonic() - begun)
        await desk.durable()
        desk.progress.pop(batch.id, None)
        desk.open_bills.pop(batch.id, None)
        file = desk.state.files.get(batch.accepted.file)
        if file and file.deleted:
            desk.forget_file(file.id)

    def _job(self, batch: Batch, step: Step) -> work.Job:
        desk, accepted = self._desk, batch.accepted
        seed = desk.settings.seed
        codec: work.Codec
        error: Path | None
        if accepted.dialect == "openai":
            codec = openai_codec.Codec(batch.id, accepted.t, seed, desk.persona)
            output, error = map(desk.output_path, self._result_names(batch.id))
        else:
            codec = anthropic_wire.Codec(batch.id, accepted.version, seed, desk.persona)
            output, error = desk.output_path(batch.id), None
        return work.Job(
            codec=codec,
            dialect=accepted.dialect,
            source=desk.input_path(accepted.file),
            output=output,
            error=error,
            scratch=desk.scratch,
            order=f"{seed} {batch.key}",
            answer=step.answer,
            outcome=step.outcome,
            price=desk.settings.price,
            faults=desk.faults,
            billed=self._billed(batch.id),
        )

    def _billed(self, batch: str) -> frozenset[str]:
        """Ids that the ledger has billed for a batch already: a kill can fall between its `billed` lines."""
        lines = self._desk.open_bills.get(batch, ())
        return frozenset(
            custom_id
            for offset, length in lines
            for custom_id in self._desk.ledger.read(offset, length, ev.BilledInFull).ids
        )

    def _result_names(self, batch: str) -> tuple[str, str]:
        salt = self._desk.state.salt
        return "file-" + spell(f"{salt} output {batch}", 22), "file-" + spell(f"{salt} error {batch}", 22)

    async def _bill(self, batch: Batch, ran: work.Ran) -> None:
        desk = self._desk
        first = len(desk.open_bills.get(batch.id, ()))
        for number, block in enumerate(ran.blocks, first):
            t, wall = desk.now()
            desk.record(
                ev.BilledInFull(
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
            await asyncio.sleep(0)  # a block takes about a millisecond; others may want to be served

    def _end(self, batch: Batch, step: Step, ran: work.Ran, took: float) -> None:
        desk, delays = self._desk, self._desk.settings.delays
        t, wall = desk.now()
        finalizing = step.at + took
        at = finalizing + (delays.finalizing if step.outcome == "completed" else 0.0)
        if batch.cancelled is not None:
            at = max(at, batch.cancelled + delays.cancelling)
        output, error = self._result_names(batch.id)
        if batch.accepted.dialect == "anthropic":
            output = batch.id
        desk.record(
            ev.Ended(
                t=t,
                wall=wall,
                at=at,
                batch=batch.id,
                outcome=step.outcome,
                counts=ran.counts,
                input_tokens=ran.input_tokens,
                output_tokens=ran.output_tokens,
                cost=ran.cost,
                finalizing=finalizing,
                output=_made(output, ran.output),
                error=_made(error, ran.error),
                struck=ran.struck,
            )
        )


def fated_errors(batch: Batch) -> list[ev.LineError]:
    match batch.accepted.fate:
        case ev.Fate("validation-failed"):
            message = "This line is not parseable as valid JSON."
            return [ev.LineError("invalid_json_line", message, None, line) for line in (1, 2)]
        case ev.Fate("token-limit"):
            return [token_limit("this model", 2_000_000)]
        case _:
            return []


def token_limit(model: str, most: int) -> ev.LineError:
    message = (
        f"Enqueued token limit reached for {model} in organization org-emulator. Limit: {most:,} enqueued tokens. "
        "Please try again once some in_progress batches have been completed."
    )
    return ev.LineError("token_limit_exceeded", message)


def _note(desk: Desk, batch: str, done: int) -> None:
    desk.progress[batch] = done


def _made(file: str, written: work.Written | None) -> ev.Made | None:
    return ev.Made(file, written.bytes, written.lines) if written else None
