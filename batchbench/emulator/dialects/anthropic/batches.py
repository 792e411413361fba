"""The message batch routes of the Anthropic API."""

import asyncio
import contextlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from batchbench.emulator import HOST
from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.batches import BatchRoutes
from batchbench.emulator.faults.views import MOVED_RESULTS
from batchbench.emulator.jobs import other_batches
from batchbench.emulator.jobs.answers import ErrorInfo, Json
from batchbench.emulator.jobs.files import publish, write_all
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.state import HEX, EmulatedBatch, derive_id, nonce_of
from batchbench.emulator.server.bodies import BodyWriter
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.limits import DAY, EmulatorLimits
from batchbench.emulator.server.paging import Page
from batchbench.emulator.server.responses import ErrorReply, error_reply, json_response

ROOT = "/anthropic/v1/messages/batches"
CUSTOM_ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
CHUNK = 1 << 20


class CreateBody(msgspec.Struct, frozen=True):
    requests: list[msgspec.Raw]


class MessageBatchRoutes(BatchRoutes):
    """The body of a create has all requests. The create checks its structure; the run checks the parameters."""

    dialect = "anthropic"
    cursors = ("after_id", "before_id")
    max_page = 1000

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # Only one body is decoded at a time: two of 256 MB would need too much memory.
        self._decoding = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(ROOT, self.create),
            web.get(ROOT, self.listing),
            web.get(f"{ROOT}/{{id}}", self.poll),
            web.delete(f"{ROOT}/{{id}}", self.delete),
            web.post(f"{ROOT}/{{id}}/cancel", self.cancel),
            web.get(f"{ROOT}/{{id}}/results", self.results),
            web.get(f"{MOVED_RESULTS}/{{id}}", self.results),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        version = version_of(request)
        name = derive_id(os.urandom(16).hex(), 16)
        body, lines = self.context.scratch / f"{name}.body", self.context.scratch / f"{name}.jsonl"
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lines.unlink, missing_ok=True)
            with contextlib.ExitStack() as always:
                always.callback(body.unlink, missing_ok=True)
                await self._save_body(request, body)
                async with self._decoding:
                    ids = await asyncio.to_thread(unpack, body, lines, self.context.settings.limits)
            on_failure.pop_all()
        key = nonce_of(ids[0])

        async def action(n: int) -> web.StreamResponse:
            self._check_queue(len(ids))

            async def record(fault: events.BatchFault | None) -> str:
                return await self._record(lines, ids, version, fault)

            return await self.accept(key, n, record, lambda: self._create_other_batch(len(ids)))

        return await self.injector.handle(request, "create", key, action, lambda: lines.unlink(missing_ok=True))

    async def _save_body(self, request: web.Request, body: Path) -> None:
        """Write the body to disk, up to the limit."""
        limit = self.context.settings.limits.anthropic_bytes
        if (request.content_length or 0) > limit:
            raise error_reply(413, "Request exceeds the maximum size", "request_too_large")
        fd = os.open(body, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            writer = BodyWriter(fd, limit)
            async for chunk in request.content.iter_chunked(CHUNK):
                writer.write(chunk)
        finally:
            os.close(fd)

    def _check_queue(self, n: int) -> None:
        state, limit = self.context.state, self.context.settings.limits.queue_requests
        queued = sum(
            batch.n or 0
            for batch in (state.batches[batch_id] for batch_id in state.open)
            if batch.accepted.dialect == "anthropic"
        )
        if limit is not None and queued + n > limit:
            message = f"{queued} requests are in the processing queue; this batch would exceed the limit of {limit}."
            raise ErrorReply(ErrorInfo(429, message, "rate_limit_error"))

    async def _record(self, lines: Path, ids: list[str], version: str, fault: events.BatchFault | None) -> str:
        context = self.context
        batch = context.new_id("batch", "msgbatch_01", 22)
        copy = context.scratch / batch
        os.link(lines, copy)  # a link, because the fault dup-accept makes two batches from one body
        await asyncio.to_thread(publish, copy, context.input_path(batch))
        t, wall = context.now()
        context.record(
            events.BatchAcceptedInFull(
                t=t,
                wall=wall,
                batch=batch,
                dialect="anthropic",
                file=batch,
                expires=t + self.window(fault),
                nonce=nonce_of(ids[0]),
                n=len(ids),
                version=version,
                fault=fault,
                ids=ids,
            )
        )
        return batch

    def _create_other_batch(self, n: int) -> None:
        """Another user of the workspace submits a batch with as many requests."""
        context = self.context
        batch = context.new_id("batch", "msgbatch_01", 22)
        nonce = derive_id(f"{batch} nonce", 10, HEX)
        other_batches.write_anthropic(context.input_path(batch), nonce, n)
        t, wall = context.now()
        context.record(
            events.BatchAccepted(
                t=t,
                wall=wall,
                batch=batch,
                dialect="anthropic",
                file=batch,
                expires=t + context.settings.limits.window,
                nonce=nonce,
                n=n,
                version=wire.VERSIONS[-1],
                owner="someone else",
            )
        )

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        self.check_headers(request)

        async def action(_n: int) -> web.StreamResponse:
            context = self.context
            batch = self.find(request)
            if self._processing_status(batch) == "ended":
                raise error_reply(400, f"Batch {batch.id} cannot be canceled because it has already ended.")
            if batch.cancelled is None:
                context.record_cancelled(batch.id)
                await context.sync()
            shown = self.batch_json(context.state.batches[batch.id])
            return json_response({**shown, "processing_status": "canceling"})

        return await self.injector.handle(request, "cancel", self.key(request), action)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self.check_headers(request)

        async def action(_n: int) -> web.StreamResponse:
            context = self.context
            batch = self.find(request)
            if self._processing_status(batch) != "ended":
                message = f"Batch {batch.id} cannot be deleted while it is processing; cancel it first."
                raise error_reply(400, message)
            context.record_deleted(batch.id)
            await context.sync()
            context.remove_file(batch.id)
            return json_response({"id": batch.id, "type": "message_batch_deleted"})

        return await self.injector.handle(request, "delete", self.key(request), action)

    async def results(self, request: web.Request) -> web.StreamResponse:
        self.check_headers(request)
        key = self.key(request)

        async def action(n: int) -> web.StreamResponse:
            context = self.context
            batch = self.find(request)
            if self._processing_status(batch) != "ended":
                raise error_reply(404, f"Batch {batch.id} has no results yet: it has not ended.")
            moved = request.path.startswith(MOVED_RESULTS)  # the faults are about the usual path
            fault = None if moved else context.select_fault("view", "anthropic", "results", key, n)
            if fault or self._archived(batch):
                raise error_reply(404, f"The results of batch {batch.id} are no longer available.")
            if batch.ended is None or batch.ended.output is None:
                return web.Response(content_type="application/octet-stream")  # the batch has no result lines
            return await self.injector.send_file(request, "results", key, n, batch.id, context.output_path(batch.id))

        return await self.injector.handle(request, "results", key, action)

    def check_headers(self, request: web.Request) -> None:
        version_of(request)

    def batch_not_found(self, batch_id: str) -> ErrorReply:
        return error_reply(404, f"Batch {batch_id} not found")

    def cursor_not_found(self, cursor: str) -> ErrorReply:
        return error_reply(404, f"{cursor} was not found")

    def page_json(self, page: Page) -> Json:
        first, last = page.ends
        return {"data": page.rows, "has_more": page.has_more, "first_id": first, "last_id": last}

    def _processing_status(self, batch: EmulatedBatch) -> str:
        match self.status(batch):
            case "completed" | "expired" | "cancelled" | "failed":
                return "ended"
            case "cancelling":
                return "canceling"
            case _:
                return "in_progress"

    def _archived(self, batch: EmulatedBatch) -> float | None:
        """When the results were removed, counted from the creation of the batch; None if they still exist."""
        at = batch.accepted.t + self.context.settings.limits.results_days * DAY
        return at if self.context.clock.now() >= at else None

    def batch_json(self, batch: EmulatedBatch) -> Json:
        """The batch object at this time; it shows no progress before the batch ends."""
        accepted, processing_status = batch.accepted, self._processing_status(batch)
        ended = batch.ended if processing_status == "ended" else None
        archived = self._archived(batch)
        counts = ended.counts if ended else events.OutcomeCounts()
        base = f"http://{HOST}:{self.context.port}"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": processing_status,
            "request_counts": {
                "processing": 0 if ended else accepted.n,
                "succeeded": counts.succeeded,
                "errored": counts.errored,
                "canceled": counts.cancelled,
                "expired": counts.expired,
            },
            "ended_at": rfc3339(ended.at if ended else None),
            "created_at": rfc3339(accepted.t),
            "expires_at": rfc3339(accepted.expires),
            "archived_at": rfc3339(archived),
            "cancel_initiated_at": rfc3339(batch.cancelled),
            "results_url": f"{base}{ROOT}/{batch.id}/results" if ended and archived is None else None,
        }


def version_of(request: web.Request) -> str:
    """The API version, which every call must have in its headers."""
    version = request.headers.get("anthropic-version", "")
    if not version:
        raise error_reply(400, "anthropic-version: header is required")
    if version not in wire.VERSIONS:
        raise error_reply(400, f"anthropic-version: {version!r} is not a valid version")
    return version


def unpack(body: Path, lines: Path, limits: EmulatorLimits) -> list[str]:
    """Write the requests of a create to a file, one per line, or refuse the create; returns the custom ids."""
    try:
        requests = msgspec.json.decode(body.read_bytes(), type=CreateBody).requests
    except msgspec.ValidationError as error:
        missing = "missing required field" in str(error)
        raise error_reply(400, "requests: Field required" if missing else f"requests: {error}") from None
    except (ValueError, RecursionError) as error:
        raise error_reply(400, f"The request body is not valid JSON: {error}") from None
    if not requests:
        raise error_reply(400, "requests: List should have at least 1 item after validation, not 0")
    if len(requests) > limits.anthropic_requests:
        message = f"requests: List should have at most {limits.anthropic_requests} items after validation"
        raise error_reply(400, message)
    ids: dict[str, None] = {}
    fd = os.open(lines, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        buffer = bytearray()
        for k, raw in enumerate(requests):
            custom_id = custom_id_of(raw, k)
            if custom_id in ids:
                raise error_reply(400, f"requests.{k}.custom_id: {custom_id!r} is used by more than one request")
            ids[custom_id] = None
            # JSON strings contain no raw newlines, so every newline is white space.
            buffer += bytes(raw).replace(b"\n", b" ")
            buffer += b"\n"
            if len(buffer) >= CHUNK:
                write_all(fd, buffer)
                buffer.clear()
        write_all(fd, buffer)
        os.fsync(fd)
    finally:
        os.close(fd)
    return list(ids)


_unchecked = msgspec.json.Decoder(wire.UncheckedLine)


def custom_id_of(raw: msgspec.Raw, k: int) -> str:
    """The custom id of the k-th request; refuses the whole batch if it is not valid."""
    try:
        custom_id = _unchecked.decode(raw).custom_id
    except msgspec.ValidationError as error:
        if found := re.search(r"missing required field `(\w+)`", str(error)):
            raise error_reply(400, f"requests.{k}.{found.group(1)}: Field required") from None
        raise error_reply(400, f"requests.{k}: {error}") from None
    if not custom_id:
        raise error_reply(400, f"requests.{k}.custom_id: String should have at least 1 character")
    if len(custom_id) > 64:
        raise error_reply(400, f"requests.{k}.custom_id: String should have at most 64 characters")
    if not CUSTOM_ID.match(custom_id):
        raise error_reply(400, f"requests.{k}.custom_id: String should match pattern '{CUSTOM_ID.pattern}'")
    return custom_id


def rfc3339(time: float | None) -> str | None:
    """RFC 3339 with microseconds, as the provider formats times."""
    return None if time is None else datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
