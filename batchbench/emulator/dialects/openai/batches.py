"""The batch routes of the OpenAI API."""

import re

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.batches import BatchRoutes
from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.dialects.openai.files import list_json, no_such_object
from batchbench.emulator.jobs import other_batches
from batchbench.emulator.jobs.answers import ErrorInfo, Json
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.lifecycle import answered_by
from batchbench.emulator.ledger.state import HEX, EmulatedBatch, StoredFile, derive_id
from batchbench.emulator.server.bodies import read_body
from batchbench.emulator.server.limits import DAY
from batchbench.emulator.server.paging import Page
from batchbench.emulator.server.responses import ErrorReply, error_reply, json_response

ROOT = "/openai/v1/batches"
MAX_BODY = 1 << 20
ENDPOINTS = (
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/completions",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/videos",
)


class Expiry(msgspec.Struct, frozen=True):
    anchor: str
    seconds: int


class CreateBody(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None


class OpenAIBatchRoutes(BatchRoutes):
    """A create always gets status 200, even if the input file is invalid; polling the batch shows the errors."""

    dialect = "openai"
    cursors = ("after",)
    max_page = 100

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(ROOT, self.create),
            web.get(ROOT, self.listing),
            web.get(f"{ROOT}/{{id}}", self.poll),
            web.post(f"{ROOT}/{{id}}/cancel", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = read_create(await read_body(request, MAX_BODY))
        file = self.context.state.files.get(body.input_file_id)
        key = (file.nonce if file else "") or body.input_file_id

        async def action(n: int) -> web.StreamResponse:
            file = self._input_file(body.input_file_id)
            self._check_create_rate()

            async def record(fault: events.BatchFault | None) -> str:
                return self._record(body, file.nonce, fault, "client")

            return await self.accept(key, n, record, lambda: self._create_other_batch(file))

        return await self.injector.handle(request, "create", key, action)

    def _input_file(self, file_id: str) -> StoredFile:
        file = self.context.state.files.get(file_id)
        if file is None or not file.exists(self.context.clock.now()) or file.owner != "client":
            message = f"Cannot find file {file_id}, or project proj_emulator does not have access to it."
            raise error_reply(400, message)
        if file.purpose != "batch":
            message = f"Invalid purpose {file.purpose!r} for a batch input file."
            raise error_reply(400, message, "invalid_value", "input_file_id")
        return file

    def _check_create_rate(self) -> None:
        limit = self.context.settings.limits.creates_per_hour
        if limit is None:
            return
        hour_ago = self.context.clock.now() - 3600
        recent = 0
        for batch in reversed(self.context.state.batches.values()):
            if batch.accepted.t < hour_ago:
                break
            recent += batch.accepted.dialect == "openai"
        if recent >= limit:
            message = f"Rate limit reached: {limit} batches per hour."
            raise ErrorReply(ErrorInfo(429, message, "requests", "rate_limit_exceeded"), {"retry-after": "60"})

    def _record(self, body: CreateBody, nonce: str, fault: events.BatchFault | None, owner: events.Owner) -> str:
        context = self.context
        t, wall = context.now()
        batch = context.new_id("batch", "batch_", 32, HEX)
        expiry = body.output_expires_after
        context.record(
            events.BatchAccepted(
                t=t,
                wall=wall,
                batch=batch,
                dialect="openai",
                file=body.input_file_id,
                expires=t + self.window(fault),
                nonce=nonce,
                endpoint=body.endpoint,
                metadata=body.metadata,
                output_seconds=expiry.seconds if expiry else None,
                fault=fault,
                owner=owner,
            )
        )
        return batch

    def _create_other_batch(self, file: StoredFile) -> None:
        """Another user of the project submits a batch with as many requests."""
        context = self.context
        n = other_batches.count_lines(context.input_path(file.id))
        other_file = context.new_id("file", "file-", 22)
        nonce = derive_id(f"{other_file} nonce", 10, HEX)
        size, digest = other_batches.write_openai(context.input_path(other_file), nonce, n)
        t, wall = context.now()
        context.record(
            events.FileUploaded(
                t=t,
                wall=wall,
                file=other_file,
                name=f"{nonce}-input.jsonl",
                purpose="batch",
                bytes=size,
                sha256=digest,
                expires=t + context.settings.limits.file_days * DAY,
                nonce=nonce,
                owner="someone else",
            )
        )
        body = CreateBody(
            input_file_id=other_file,
            endpoint=wire.ENDPOINT,
            completion_window="24h",
            metadata={"project": "somebody else's"},
        )
        self._record(body, nonce, None, "someone else")

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            context = self.context
            batch = self.find(request)
            status = self.status(batch)
            if status in ("completed", "failed", "expired"):
                raise error_reply(409, f"Cannot cancel a batch with status '{status}'.")
            if status not in ("cancelling", "cancelled"):
                context.record_cancelled(batch.id)
                await context.sync()
                return json_response({**self.batch_json(context.state.batches[batch.id]), "status": "cancelling"})
            return json_response(self.batch_json(batch))

        return await self.injector.handle(request, "cancel", self.key(request), action)

    def check_headers(self, request: web.Request) -> None:
        pass

    def batch_not_found(self, batch_id: str) -> ErrorReply:
        return error_reply(404, f"No batch found with id '{batch_id}'.")

    def cursor_not_found(self, cursor: str) -> ErrorReply:
        return no_such_object(cursor)

    def page_json(self, page: Page) -> Json:
        return list_json(page)

    def batch_json(self, batch: EmulatedBatch) -> Json:
        """The batch object at this time."""
        accepted, now, status = batch.accepted, self.context.clock.now(), self.status(batch)
        ended = batch.ended if batch.ended and now >= batch.ended.at else None
        finalizing = batch.ended.finalizing if batch.ended and batch.ended.outcome == "completed" else None
        cancelling = batch.cancelled if batch.cancelled is not None else ended and status == "cancelled" and ended.at
        errors = batch.failed.errors if batch.failed and status == "failed" else None

        def ended_as(outcome: str) -> int | None:
            return int(ended.at) if ended and status == outcome else None

        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": accepted.endpoint,
            "model": batch.validated.model if batch.validated else None,
            "errors": {"object": "list", "data": msgspec.to_builtins(errors)} if errors else None,
            "input_file_id": accepted.file,
            "completion_window": "24h",
            "status": status,
            "output_file_id": ended.output.file if ended and ended.output else None,
            "error_file_id": ended.error.file if ended and ended.error else None,
            "created_at": int(accepted.t),
            "in_progress_at": int(batch.validated.at) if batch.validated else None,
            "expires_at": int(accepted.expires),
            "finalizing_at": None if finalizing is None else int(finalizing),
            "completed_at": ended_as("completed"),
            "failed_at": int(batch.failed.at) if batch.failed and errors else None,
            "expired_at": ended_as("expired"),
            "cancelling_at": int(cancelling) if cancelling else None,
            "cancelled_at": ended_as("cancelled"),
            "request_counts": self._counts(batch, now),
            "usage": usage(ended),
            "metadata": accepted.metadata,
        }

    def _counts(self, batch: EmulatedBatch, now: float) -> Json:
        if batch.validated is None:
            return {"total": 0, "completed": 0, "failed": 0}
        n, processing = batch.validated.n, self.context.settings.delays.processing
        if batch.ended:
            counts = batch.ended.counts
            return {"total": n, "completed": counts.succeeded, "failed": counts.errored}
        if processing and batch.cancelled is None:
            done = answered_by(now, batch.validated.at, n, processing)
        else:
            done = self.context.progress.get(batch.id, 0)
        return {"total": n, "completed": done, "failed": 0}


def read_create(raw: bytes) -> CreateBody:
    """The body of a create, or the provider's error."""
    try:
        body = msgspec.json.decode(raw, type=CreateBody)
    except msgspec.ValidationError as error:
        if found := re.search(r"missing required field `(\w+)`", str(error)):
            name = found.group(1)
            message = f"Missing required parameter: '{name}'."
            raise error_reply(400, message, "missing_required_parameter", name) from None
        raise error_reply(400, f"Invalid type: {error}.", "invalid_type") from None
    except (ValueError, RecursionError):
        raise error_reply(400, "We could not parse the JSON body of your request.") from None
    if body.endpoint not in ENDPOINTS:
        raise error_reply(400, f"Invalid value: '{body.endpoint}'.", "invalid_value", "endpoint")
    if body.endpoint != wire.ENDPOINT:
        raise error_reply(400, f"The emulator runs {wire.ENDPOINT} only.", "unsupported_value", "endpoint")
    if body.completion_window != "24h":
        raise error_reply(400, f"Invalid value: '{body.completion_window}'.", "invalid_value", "completion_window")
    expiry = body.output_expires_after
    if expiry and (expiry.anchor != "created_at" or not 3600 <= expiry.seconds <= 2_592_000):
        message = "Invalid 'output_expires_after': seconds from 3600 to 2592000 after 'created_at'."
        raise error_reply(400, message, "invalid_value", "output_expires_after")
    pairs = body.metadata or {}
    if len(pairs) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in pairs.items()):
        message = "At most 16 metadata pairs, keys of 64 and values of 512 characters."
        raise error_reply(400, f"Invalid 'metadata': {message}", "invalid_value", "metadata")
    return body


def usage(ended: events.BatchEnded | None) -> Json | None:
    if ended is None:
        return None
    return {
        "input_tokens": ended.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": ended.output_tokens,
        "output_tokens_details": {"reasoning_tokens": ended.thought_tokens},
        "total_tokens": ended.input_tokens + ended.output_tokens,
    }
