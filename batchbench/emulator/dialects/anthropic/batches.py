"""Routes of the Anthropic dialect: message batches."""

import asyncio
import contextlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.jobs import other_batches as foreign
from batchbench.emulator.jobs import runner as work
from batchbench.emulator.jobs.answers import Problem
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.ledger import views
from batchbench.emulator.ledger.lifecycle import status
from batchbench.emulator.ledger.state import Batch, nonce_of, spell
from batchbench.emulator.server.context import Desk
from batchbench.emulator.server.gate import Gate, Spool
from batchbench.emulator.server.limits import DAY, Limits
from batchbench.emulator.server.paging import size_of
from batchbench.emulator.server.replies import Fail, fail, reply

ROOT = "/anthropic/v1/messages/batches"
HEX = "0123456789abcdef"
ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
CHUNK = 1 << 20

Json = dict[str, Any]


class Create(msgspec.Struct, frozen=True):
    requests: list[msgspec.Raw]


class Batches:
    """A batch arrives whole in the body of its create; its structure is checked there, its parameters later."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.gate = Gate(desk, "anthropic")
        # One body is decoded at a time: two of 256 MB at once would break the memory bound.
        self._decoding = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(ROOT, self.create),
            web.get(ROOT, self.listing),
            web.get(f"{ROOT}/{{id}}", self.poll),
            web.delete(f"{ROOT}/{{id}}", self.delete),
            web.post(f"{ROOT}/{{id}}/cancel", self.cancel),
            web.get(f"{ROOT}/{{id}}/results", self.results),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        version = version_of(request)
        name = spell(os.urandom(16).hex(), 16)
        body, lines = self.desk.scratch / f"{name}.body", self.desk.scratch / f"{name}.jsonl"
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lines.unlink, missing_ok=True)
            with contextlib.ExitStack() as always:
                always.callback(body.unlink, missing_ok=True)
                await self._spool(request, body)
                async with self._decoding:
                    ids = await asyncio.to_thread(unpack, body, lines, self.desk.settings.limits)
            on_failure.pop_all()

        async def act(n: int) -> web.StreamResponse:
            return await self._accept(lines, ids, version, n)

        key = nonce_of(ids[0])
        return await self.gate.through(request, "create", key, act, lambda: lines.unlink(missing_ok=True))

    async def _spool(self, request: web.Request, body: Path) -> None:
        """The body goes to disk before anybody looks at it, and no further than the limit."""
        most = self.desk.settings.limits.anthropic_bytes
        if (request.content_length or 0) > most:
            raise fail(413, "Request exceeds the maximum size", "request_too_large")
        fd = os.open(body, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            spool = Spool(fd, most)
            async for chunk in request.content.iter_chunked(CHUNK):
                spool.put(chunk)
        finally:
            os.close(fd)

    async def _accept(self, lines: Path, ids: list[str], version: str, n: int) -> web.StreamResponse:
        desk = self.desk
        key = nonce_of(ids[0])
        queued = sum(
            batch.n or 0
            for batch in (desk.state.batches[one] for one in desk.state.open)
            if batch.accepted.dialect == "anthropic"
        )
        most = desk.settings.limits.queue_requests
        if most is not None and queued + len(ids) > most:
            message = f"{queued} requests are in the processing queue; this batch would exceed the limit of {most}."
            raise Fail(Problem(429, message, "rate_limit_error"))
        fired = desk.strike("fate", "anthropic", "create", key, n)
        name = fired.fault.name if fired else ""
        fate = ev.Fate(name, fired.seconds) if fired else None
        if name == "foreign":
            self._foreign(len(ids))
        accepted = [await self._record(lines, ids, key, version, fate)]
        if name == "dup-accept":
            accepted.append(await self._record(lines, ids, key, version, None))
        if name == "deleted-elsewhere":
            t, wall = desk.now()
            desk.record(ev.Deleted(t=t, wall=wall, id=accepted[0], by="someone else"))
        await desk.durable()
        return reply(self._batch(desk.state.batches[accepted[0]]))

    async def _record(self, lines: Path, ids: list[str], nonce: str, version: str, fate: ev.Fate | None) -> str:
        desk = self.desk
        batch = desk.new_id("batch", "msgbatch_01", 22)
        copy = desk.scratch / batch
        os.link(lines, copy)  # a proxy that repeats the request makes two batches of one body
        await asyncio.to_thread(work.settle, copy, desk.input_path(batch))
        t, wall = desk.now()
        window = fate.seconds if fate and fate.name.startswith("expire-") else desk.settings.limits.window
        desk.record(
            ev.AcceptedInFull(
                t=t,
                wall=wall,
                batch=batch,
                dialect="anthropic",
                file=batch,
                expires=t + window,
                nonce=nonce,
                n=len(ids),
                version=version,
                fate=fate,
                ids=ids,
            )
        )
        return batch

    def _foreign(self, n: int) -> None:
        """Somebody else in the same workspace submits as many requests at the same moment."""
        desk = self.desk
        batch = desk.new_id("batch", "msgbatch_01", 22)
        nonce = spell(f"{batch} nonce", 10, HEX)
        foreign.write_anthropic(desk.input_path(batch), nonce, n)
        t, wall = desk.now()
        desk.record(
            ev.Accepted(
                t=t,
                wall=wall,
                batch=batch,
                dialect="anthropic",
                file=batch,
                expires=t + desk.settings.limits.window,
                nonce=nonce,
                n=n,
                version=wire.VERSIONS[-1],
                owner="someone else",
            )
        )

    async def listing(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def act(n: int) -> web.StreamResponse:
            desk = self.desk
            now = desk.clock.now()
            fired = desk.strike("list", "anthropic", "list", "", n)
            name = fired.fault.name if fired else ""
            after, before = request.query.get("after_id"), request.query.get("before_id")
            if name == "list-repeat":
                after = before = None
            if name == "list-cursor-gone" and (after or before):
                raise fail(404, f"{after or before} was not found")
            rows = desk.batches("anthropic")
            if fired and name == "list-lag":
                rows = [batch for batch in rows if batch.accepted.t <= now - fired.seconds]
            shown = [self._seen(batch, "list", n) for batch in rows]
            size = min(size_of(request, 20, 1000), self.desk.settings.limits.page)
            found, start = window(shown, after, before, size)
            if fired and name == "list-stale":
                await asyncio.sleep(fired.seconds)
            return reply(views.listed(found, shown[:start], fired))

        return await self.gate.through(request, "list", "", act)

    async def poll(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def act(n: int) -> web.StreamResponse:
            return reply(self._seen(self._find(request), "poll", n))

        return await self.gate.through(request, "poll", self._key(request), act)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def act(_n: int) -> web.StreamResponse:
            desk = self.desk
            batch = self._find(request)
            if self._word(batch) == "ended":
                raise fail(400, f"Batch {batch.id} cannot be canceled because it has already ended.")
            if batch.cancelled is None:
                t, wall = desk.now()
                desk.record(ev.Cancelled(t=t, wall=wall, batch=batch.id))
                await desk.durable()
            shown = self._batch(desk.state.batches[batch.id])
            return reply({**shown, "processing_status": "canceling"})

        return await self.gate.through(request, "cancel", self._key(request), act)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        version_of(request)

        async def act(_n: int) -> web.StreamResponse:
            desk = self.desk
            batch = self._find(request)
            if self._word(batch) != "ended":
                raise fail(400, f"Batch {batch.id} cannot be deleted while it is processing; cancel it first.")
            t, wall = desk.now()
            desk.record(ev.Deleted(t=t, wall=wall, id=batch.id))
            await desk.durable()
            desk.forget_file(batch.id)
            return reply({"id": batch.id, "type": "message_batch_deleted"})

        return await self.gate.through(request, "delete", self._key(request), act)

    async def results(self, request: web.Request) -> web.StreamResponse:
        version_of(request)
        key = self._key(request)

        async def act(n: int) -> web.StreamResponse:
            desk = self.desk
            batch = self._find(request)
            if self._word(batch) != "ended":
                raise fail(404, f"Batch {batch.id} has no results yet: it has not ended.")
            if self._archived(batch) or desk.strike("view", "anthropic", "results", key, n):
                raise fail(404, f"The results of batch {batch.id} are no longer available.")
            if batch.ended is None or batch.ended.output is None:
                return web.Response(content_type="application/octet-stream")  # not a line was written, so no file
            return await self.gate.send(request, "results", key, n, batch.id, desk.output_path(batch.id))

        return await self.gate.through(request, "results", key, act)

    def _find(self, request: web.Request) -> Batch:
        batch = self.desk.batch(request.match_info["id"], "anthropic")
        if batch is None:
            raise fail(404, f"Batch {request.match_info['id']} not found")
        return batch

    def _key(self, request: web.Request) -> str:
        batch = self.desk.batch(request.match_info["id"], "anthropic")
        return batch.key if batch else request.match_info["id"]

    def _seen(self, batch: Batch, call: str, n: int) -> Json:
        """A batch as this call shows it."""
        fired = self.desk.strike("view", "anthropic", call, batch.key, n)
        if fired and fired.fault.name == "poll-404":
            raise fail(404, f"Batch {batch.id} not found")
        ended_for = self.desk.clock.now() - batch.ended.at if batch.ended else -1.0
        return views.seen(self._batch(batch), fired, "anthropic", ended_for)

    def _word(self, batch: Batch) -> str:
        match status(batch, self.desk.clock.now(), self.desk.settings.delays):
            case "completed" | "expired" | "cancelled" | "failed":
                return "ended"
            case "cancelling":
                return "canceling"
            case _:
                return "in_progress"

    def _archived(self, batch: Batch) -> float | None:
        """When the results went, if they did: counted from creation, not from the end."""
        gone = batch.accepted.t + self.desk.settings.limits.results_days * DAY
        return gone if self.desk.clock.now() >= gone else None

    def _batch(self, batch: Batch) -> Json:
        """The batch object at this moment; there is no progress to see before the end."""
        accepted, word = batch.accepted, self._word(batch)
        ended = batch.ended if word == "ended" else None
        archived = self._archived(batch)
        counts = ended.counts if ended else ev.Counts()
        base = f"http://127.0.0.1:{self.desk.port}"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": word,
            "request_counts": {
                "processing": 0 if ended else accepted.n,
                "succeeded": counts.succeeded,
                "errored": counts.errored,
                "canceled": counts.cancelled,
                "expired": counts.expired,
            },
            "ended_at": moment(ended.at if ended else None),
            "created_at": moment(accepted.t),
            "expires_at": moment(accepted.expires),
            "archived_at": moment(archived),
            "cancel_initiated_at": moment(batch.cancelled),
            "results_url": f"{base}{ROOT}/{batch.id}/results" if ended and archived is None else None,
        }


def version_of(request: web.Request) -> str:
    """The API version that every call has to name."""
    version = request.headers.get("anthropic-version", "")
    if not version:
        raise fail(400, "anthropic-version: header is required")
    if version not in wire.VERSIONS:
        raise fail(400, f"anthropic-version: {version!r} is not a valid version")
    return version


def unpack(body: Path, lines: Path, limits: Limits) -> list[str]:
    """Turn the body of a create into one request per line, or refuse it; returns the ids."""
    try:
        requests = msgspec.json.decode(body.read_bytes(), type=Create).requests
    except msgspec.ValidationError as error:
        missing = "missing required field" in str(error)
        raise fail(400, "requests: Field required" if missing else f"requests: {error}") from None
    except (ValueError, RecursionError) as error:
        raise fail(400, f"The request body is not valid JSON: {error}") from None
    if not requests:
        raise fail(400, "requests: List should have at least 1 item after validation, not 0")
    if len(requests) > limits.anthropic_requests:
        raise fail(400, f"requests: List should have at most {limits.anthropic_requests} items after validation")
    ids: dict[str, None] = {}
    fd = os.open(lines, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        buffer = bytearray()
        for k, raw in enumerate(requests):
            custom_id = request_id(raw, k)
            if custom_id in ids:
                raise fail(400, f"requests.{k}.custom_id: {custom_id!r} is used by more than one request")
            ids[custom_id] = None
            # Outside of strings, where JSON allows none, a newline is only white space.
            buffer += bytes(raw).replace(b"\n", b" ")
            buffer += b"\n"
            if len(buffer) >= CHUNK:
                work.write_all(fd, buffer)
                buffer.clear()
        work.write_all(fd, buffer)
        os.fsync(fd)
    finally:
        os.close(fd)
    return list(ids)


_loose = msgspec.json.Decoder(wire.LooseLine)


def request_id(raw: msgspec.Raw, k: int) -> str:
    """The id of the k-th request, or the provider's refusal of the whole batch."""
    try:
        custom_id = _loose.decode(raw).custom_id
    except msgspec.ValidationError as error:
        if found := re.search(r"missing required field `(\w+)`", str(error)):
            raise fail(400, f"requests.{k}.{found.group(1)}: Field required") from None
        raise fail(400, f"requests.{k}: {error}") from None
    if not custom_id:
        raise fail(400, f"requests.{k}.custom_id: String should have at least 1 character")
    if len(custom_id) > 64:
        raise fail(400, f"requests.{k}.custom_id: String should have at most 64 characters")
    if not ID.match(custom_id):
        raise fail(400, f"requests.{k}.custom_id: String should match pattern '{ID.pattern}'")
    return custom_id


def window(rows: list[Json], after: str | None, before: str | None, size: int) -> tuple[Json, int]:
    """One page after a cursor, or the page that ends before one; and where it starts."""
    ids = [row["id"] for row in rows]
    for cursor in (after, before):
        if cursor and cursor not in ids:
            raise fail(404, f"{cursor} was not found")
    if before:
        end = ids.index(before)
        start = max(0, end - size)
        more = start > 0
    else:
        start = ids.index(after) + 1 if after else 0
        end = start + size
        more = end < len(rows)
    data = rows[start:end]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": more, "first_id": first, "last_id": last}, start


def moment(time: float | None) -> str | None:
    """RFC 3339 with microseconds, as the provider writes it."""
    return None if time is None else datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
