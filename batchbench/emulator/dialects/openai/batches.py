"""Routes of the OpenAI dialect: batches."""

import asyncio
import re
from typing import Any

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.jobs import other_batches as foreign
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.ledger import views
from batchbench.emulator.ledger.lifecycle import answered_by, status
from batchbench.emulator.ledger.state import Batch, File, spell
from batchbench.emulator.server.context import Desk
from batchbench.emulator.server.gate import Gate, read_body
from batchbench.emulator.server.limits import DAY
from batchbench.emulator.server.paging import page, size_of
from batchbench.emulator.server.replies import Fail, fail, reply

ROOT = "/openai/v1/batches"
HEX = "0123456789abcdef"
MOST_BODY = 1 << 20
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

Json = dict[str, Any]


class Expiry(msgspec.Struct, frozen=True):
    anchor: str
    seconds: int


class Create(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None


class Batches:
    """A batch is accepted with 200 whatever its file says; what is wrong shows when it is polled."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.gate = Gate(desk, "openai")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(ROOT, self.create),
            web.get(ROOT, self.listing),
            web.get(f"{ROOT}/{{id}}", self.poll),
            web.post(f"{ROOT}/{{id}}/cancel", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        wanted = read_create(await read_body(request, MOST_BODY))
        file = self.desk.state.files.get(wanted.input_file_id)
        key = (file.nonce if file else "") or wanted.input_file_id

        async def act(n: int) -> web.StreamResponse:
            return await self._accept(wanted, key, n)

        return await self.gate.through(request, "create", key, act)

    async def _accept(self, wanted: Create, key: str, n: int) -> web.StreamResponse:
        desk = self.desk
        t, _ = desk.now()
        file = desk.state.files.get(wanted.input_file_id)
        if file is None or not file.there(t) or file.owner != "client":
            message = f"Cannot find file {wanted.input_file_id}, or project proj_emulator does not have access to it."
            raise fail(400, message)
        if file.purpose != "batch":
            raise fail(
                400, f"Invalid purpose {file.purpose!r} for a batch input file.", "invalid_value", "input_file_id"
            )
        self._hold_rate(t)
        fired = desk.strike("fate", "openai", "create", key, n)
        name = fired.fault.name if fired else ""
        fate = ev.Fate(name, fired.seconds) if fired else None
        if name == "foreign":
            self._foreign(file)
        batch = self._record(wanted, file.id, file.nonce, fate, "client")
        if name == "dup-accept":
            self._record(wanted, file.id, file.nonce, None, "client")
        if name == "deleted-elsewhere":
            t, wall = desk.now()
            desk.record(ev.Deleted(t=t, wall=wall, id=batch, by="someone else"))
        await desk.durable()
        return reply(self._batch(desk.state.batches[batch]))

    def _record(self, wanted: Create, file: str, nonce: str, fate: ev.Fate | None, owner: ev.Owner) -> str:
        desk = self.desk
        t, wall = desk.now()
        batch = desk.new_id("batch", "batch_", 32, HEX)
        expiry = wanted.output_expires_after
        window = fate.seconds if fate and fate.name.startswith("expire-") else desk.settings.limits.window
        desk.record(
            ev.Accepted(
                t=t,
                wall=wall,
                batch=batch,
                dialect="openai",
                file=file,
                expires=t + window,
                nonce=nonce,
                endpoint=wanted.endpoint,
                metadata=wanted.metadata,
                output_seconds=expiry.seconds if expiry else None,
                fate=fate,
                owner=owner,
            )
        )
        return batch

    def _foreign(self, file: File) -> None:
        """Somebody else in the same project submits as many requests at the same moment."""
        desk = self.desk
        n = foreign.lines(desk.input_path(file.id))
        theirs = desk.new_id("file", "file-", 22)
        nonce = spell(f"{theirs} nonce", 10, HEX)
        size, digest = foreign.write_openai(desk.input_path(theirs), nonce, n)
        t, wall = desk.now()
        desk.record(
            ev.Uploaded(
                t=t,
                wall=wall,
                file=theirs,
                name=f"{nonce}-input.jsonl",
                purpose="batch",
                bytes=size,
                sha256=digest,
                expires=t + desk.settings.limits.file_days * DAY,
                nonce=nonce,
                owner="someone else",
            )
        )
        wanted = Create(
            input_file_id=theirs,
            endpoint=wire.ENDPOINT,
            completion_window="24h",
            metadata={"project": "somebody else's"},
        )
        self._record(wanted, theirs, nonce, None, "someone else")

    def _hold_rate(self, now: float) -> None:
        most = self.desk.settings.limits.creates_per_hour
        if most is None:
            return
        recent = 0
        for batch in reversed(self.desk.state.batches.values()):
            if batch.accepted.t < now - 3600:
                break
            recent += batch.accepted.dialect == "openai"
        if recent >= most:
            message = f"Rate limit reached: {most} batches per hour."
            raise Fail(Problem(429, message, "requests", "rate_limit_exceeded"), {"retry-after": "60"})

    async def listing(self, request: web.Request) -> web.StreamResponse:
        async def act(n: int) -> web.StreamResponse:
            desk = self.desk
            now = desk.clock.now()
            fired = desk.strike("list", "openai", "list", "", n)
            name = fired.fault.name if fired else ""
            after = request.query.get("after")
            if name == "list-repeat":
                after = None
            if name == "list-cursor-gone" and after:
                raise fail(404, f"No batch found with id '{after}'.")
            rows = desk.batches("openai")
            if fired and name == "list-lag":
                rows = [batch for batch in rows if batch.accepted.t <= now - fired.seconds]
            shown = [self._seen(batch, "list", n) for batch in rows]
            found = page(shown, after, min(size_of(request, 20, 100), self.desk.settings.limits.page))
            if fired and name == "list-stale":
                await asyncio.sleep(fired.seconds)
            before = [row["id"] for row in shown].index(found["first_id"]) if found["data"] else 0
            return reply(views.listed(found, shown[:before], fired))

        return await self.gate.through(request, "list", "", act)

    async def poll(self, request: web.Request) -> web.StreamResponse:
        async def act(n: int) -> web.StreamResponse:
            return reply(self._seen(self._find(request), "poll", n))

        return await self.gate.through(request, "poll", self._key(request), act)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        async def act(_n: int) -> web.StreamResponse:
            desk = self.desk
            batch = self._find(request)
            word = status(batch, desk.clock.now(), desk.settings.delays)
            if word in ("completed", "failed", "expired"):
                raise fail(409, f"Cannot cancel a batch with status '{word}'.")
            if word not in ("cancelling", "cancelled"):
                t, wall = desk.now()
                desk.record(ev.Cancelled(t=t, wall=wall, batch=batch.id))
                await desk.durable()
                return reply({**self._batch(desk.state.batches[batch.id]), "status": "cancelling"})
            return reply(self._batch(batch))

        return await self.gate.through(request, "cancel", self._key(request), act)

    def _find(self, request: web.Request) -> Batch:
        batch = self.desk.batch(request.match_info["id"], "openai")
        if batch is None:
            raise fail(404, f"No batch found with id '{request.match_info['id']}'.")
        return batch

    def _key(self, request: web.Request) -> str:
        batch = self.desk.batch(request.match_info["id"], "openai")
        return batch.key if batch else request.match_info["id"]

    def _seen(self, batch: Batch, call: str, n: int) -> Json:
        """A batch as this call shows it."""
        fired = self.desk.strike("view", "openai", call, batch.key, n)
        if fired and fired.fault.name == "poll-404":
            raise fail(404, f"No batch found with id '{batch.id}'.")
        ended_for = self.desk.clock.now() - batch.ended.at if batch.ended else -1.0
        return views.seen(self._batch(batch), fired, "openai", ended_for)

    def _batch(self, batch: Batch) -> Json:
        """The batch object at this moment."""
        desk, accepted = self.desk, batch.accepted
        now = desk.clock.now()
        word = status(batch, now, desk.settings.delays)
        ended = batch.ended if batch.ended and now >= batch.ended.at else None
        begun = batch.validated.at if batch.validated else None
        finalizing = batch.ended.finalizing if batch.ended and batch.ended.outcome == "completed" else None
        cancelling = batch.cancelled if batch.cancelled is not None else ended and word == "cancelled" and ended.at
        errors = batch.failed.errors if batch.failed and word == "failed" else None
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": accepted.endpoint,
            "model": batch.validated.model if batch.validated else None,
            "errors": {"object": "list", "data": msgspec.to_builtins(errors)} if errors else None,
            "input_file_id": accepted.file,
            "completion_window": "24h",
            "status": word,
            "output_file_id": ended.output.file if ended and ended.output else None,
            "error_file_id": ended.error.file if ended and ended.error else None,
            "created_at": int(accepted.t),
            "in_progress_at": _second(begun),
            "expires_at": int(accepted.expires),
            "finalizing_at": _second(finalizing),
            "completed_at": _second(ended.at if ended and word == "completed" else None),
            "failed_at": _second(batch.failed.at if batch.failed and errors else None),
            "expired_at": _second(ended.at if ended and word == "expired" else None),
            "cancelling_at": _second(cancelling or None),
            "cancelled_at": _second(ended.at if ended and word == "cancelled" else None),
            "request_counts": self._counts(batch, now),
            "usage": usage(ended),
            "metadata": accepted.metadata,
        }

    def _counts(self, batch: Batch, now: float) -> Json:
        if batch.validated is None:
            return {"total": 0, "completed": 0, "failed": 0}
        n, processing = batch.validated.n, self.desk.settings.delays.processing
        if batch.ended:
            counts = batch.ended.counts
            return {"total": n, "completed": counts.succeeded, "failed": counts.errored}
        if processing and batch.cancelled is None:
            done = answered_by(now, batch.validated.at, n, processing)
        else:
            done = self.desk.progress.get(batch.id, 0)
        return {"total": n, "completed": done, "failed": 0}


def read_create(raw: bytes) -> Create:
    """The body of a create, or the provider's refusal."""
    try:
        wanted = msgspec.json.decode(raw, type=Create)
    except msgspec.ValidationError as error:
        if found := re.search(r"missing required field `(\w+)`", str(error)):
            name = found.group(1)
            raise fail(400, f"Missing required parameter: '{name}'.", "missing_required_parameter", name) from None
        raise fail(400, f"Invalid type: {error}.", "invalid_type") from None
    except (ValueError, RecursionError):
        raise fail(400, "We could not parse the JSON body of your request.") from None
    if wanted.endpoint not in ENDPOINTS:
        raise fail(400, f"Invalid value: '{wanted.endpoint}'.", "invalid_value", "endpoint")
    if wanted.endpoint != wire.ENDPOINT:
        raise fail(400, f"The emulator runs {wire.ENDPOINT} only.", "unsupported_value", "endpoint")
    if wanted.completion_window != "24h":
        raise fail(400, f"Invalid value: '{wanted.completion_window}'.", "invalid_value", "completion_window")
    expiry = wanted.output_expires_after
    if expiry and (expiry.anchor != "created_at" or not 3600 <= expiry.seconds <= 2_592_000):
        message = "Invalid 'output_expires_after': seconds from 3600 to 2592000 after 'created_at'."
        raise fail(400, message, "invalid_value", "output_expires_after")
    pairs = wanted.metadata or {}
    if len(pairs) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in pairs.items()):
        message = "At most 16 metadata pairs, keys of 64 and values of 512 characters."
        raise fail(400, f"Invalid 'metadata': {message}", "invalid_value", "metadata")
    return wanted


def usage(ended: ev.Ended | None) -> Json | None:
    if ended is None:
        return None
    return {
        "input_tokens": ended.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": ended.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": ended.input_tokens + ended.output_tokens,
    }


def _second(time: float | None) -> int | None:
    return None if time is None else int(time)
