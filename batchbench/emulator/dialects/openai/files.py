"""Routes of the OpenAI dialect: files."""

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import BodyPartReader, web

from batchbench.emulator.faults.http import drop
from batchbench.emulator.jobs import runner as work
from batchbench.emulator.ledger import events as ev
from batchbench.emulator.ledger.state import File, nonce_of, spell
from batchbench.emulator.server.context import Desk
from batchbench.emulator.server.gate import Gate, Spool, first_id
from batchbench.emulator.server.limits import DAY
from batchbench.emulator.server.paging import page, size_of
from batchbench.emulator.server.replies import Fail, fail, reply

ROOT = "/openai/v1/files"
CHUNK = 1 << 20

Json = dict[str, Any]


class Form(msgspec.Struct, frozen=True):
    """An upload, its file already on disk under a scratch name."""

    fields: dict[str, str]
    name: str
    size: int
    sha256: str
    first_id: str


class Files:
    """Uploads go straight to disk; what a file says is nobody's business until a batch uses it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.gate = Gate(desk, "openai")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(ROOT, self.upload),
            web.get(ROOT, self.files),
            web.get(f"{ROOT}/{{id}}", self.file),
            web.delete(f"{ROOT}/{{id}}", self.delete),
            web.get(f"{ROOT}/{{id}}/content", self.content),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        scratch = self.desk.scratch / spell(os.urandom(16).hex(), 16)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(scratch.unlink, missing_ok=True)
            form = await self._receive(request, scratch)
            on_failure.pop_all()

        async def act(n: int) -> web.StreamResponse:
            return await self._keep(request, form, scratch, n)

        key = nonce_of(form.name) or nonce_of(form.first_id)
        return await self.gate.through(request, "upload", key, act, lambda: scratch.unlink(missing_ok=True))

    async def _receive(self, request: web.Request, scratch: Path) -> Form:
        """Read the form, the file straight to disk."""
        if not request.content_type.startswith("multipart/"):
            raise fail(400, "Content-Type must be multipart/form-data.")
        fields: dict[str, str] = {}
        name, size, digest, head = "", -1, "", b""
        try:
            reader = await request.multipart()
            while part := await reader.next():
                if not isinstance(part, BodyPartReader):
                    raise fail(400, "Nested multipart bodies are not supported.")
                if part.name == "file":
                    name = part.filename or ""
                    size, digest, head = await self._spool(part, scratch)
                else:
                    fields[part.name or ""] = (await part.read()).decode()
        except ValueError as error:
            raise fail(400, f"The form could not be read: {error}") from None
        if size < 0:
            raise fail(400, "'file' is a required property", "missing_required_parameter", "file")
        return Form(fields, name, size, digest, first_id(head))

    async def _spool(self, part: BodyPartReader, scratch: Path) -> tuple[int, str, bytes]:
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            spool = Spool(fd, self.desk.settings.limits.upload_bytes)
            head = b""
            pending = bytearray()
            while chunk := await part.read_chunk(CHUNK):
                pending += chunk
                if len(pending) >= CHUNK:
                    full, pending = bytes(pending), bytearray()
                    head = head or full.partition(b"\n")[0]
                    await asyncio.to_thread(spool.put, full)
            head = head or bytes(pending).partition(b"\n")[0]
            spool.put(bytes(pending))
            await asyncio.to_thread(os.fsync, fd)
            return spool.bytes, spool.digest(), head
        finally:
            os.close(fd)

    async def _keep(self, request: web.Request, form: Form, scratch: Path, n: int) -> web.StreamResponse:
        desk = self.desk
        purpose = form.fields.get("purpose")
        key = nonce_of(form.name) or nonce_of(form.first_id)
        t, wall = desk.now()
        fired = desk.strike("upload", "openai", "upload", key, n)
        if fired and fired.fault.name == "upload-cut":
            return await drop(request)
        kept = sum(file.there(t) for file in desk.state.files.values())
        if (fired and fired.fault.name == "file-quota") or kept >= (desk.settings.limits.files or kept + 1):
            raise fail(400, "The file storage of this project is full; delete files first.", "file_quota_exceeded")
        if not purpose:
            raise fail(400, "'purpose' is a required property", "missing_required_parameter", "purpose")
        if purpose == "batch" and not form.name.endswith(".jsonl"):
            raise fail(400, "Invalid file format for Batch API. Must be .jsonl")
        file = desk.new_id("file", "file-", 22)
        await asyncio.to_thread(work.settle, scratch, desk.input_path(file))
        desk.record(
            ev.Uploaded(
                t=t,
                wall=wall,
                file=file,
                name=form.name,
                purpose=purpose,
                bytes=form.size,
                sha256=form.sha256,
                expires=t + self._file_life(form.fields),
                nonce=key,
            )
        )
        await desk.durable()
        shown = self._file(desk.state.files[file])
        if fired and fired.fault.name == "upload-bytes":
            shown["bytes"] //= 2
        return reply(shown)

    def _file_life(self, fields: dict[str, str]) -> float:
        """Seconds that an uploaded file is kept."""
        text = fields.get("expires_after[seconds]")
        if text is None:
            return self.desk.settings.limits.file_days * DAY
        if not re.fullmatch(r"\d{1,9}", text) or not 3600 <= int(text) <= 2_592_000:
            raise fail(
                400, "'expires_after.seconds' must lie between 3600 and 2592000.", "invalid_value", "expires_after"
            )
        return float(text)

    async def files(self, request: web.Request) -> web.StreamResponse:
        async def act(_n: int) -> web.StreamResponse:
            now = self.desk.clock.now()
            query = request.query
            rows = [file for file in reversed(self.desk.state.files.values()) if file.there(now)]
            if purpose := query.get("purpose"):
                rows = [file for file in rows if file.purpose == purpose]
            if query.get("order") == "asc":
                rows.reverse()
            return reply(
                page([self._file(file) for file in rows], query.get("after"), size_of(request, 10_000, 10_000))
            )

        return await self.gate.through(request, "files", "", act)

    async def file(self, request: web.Request) -> web.StreamResponse:
        async def act(_n: int) -> web.StreamResponse:
            return reply(self._file(self._find_file(request.match_info["id"])))

        return await self.gate.through(request, "file", self._file_key(request), act)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        async def act(_n: int) -> web.StreamResponse:
            desk = self.desk
            file = self._find_file(request.match_info["id"])
            t, wall = desk.now()
            desk.record(ev.Deleted(t=t, wall=wall, id=file.id))
            await desk.durable()
            desk.forget_file(file.id)
            return reply({"id": file.id, "object": "file", "deleted": True})

        return await self.gate.through(request, "delete", self._file_key(request), act)

    async def content(self, request: web.Request) -> web.StreamResponse:
        key = self._file_key(request)

        async def act(n: int) -> web.StreamResponse:
            file = self._find_file(request.match_info["id"])
            if self.desk.strike("view", "openai", "content", key, n):  # results-expired
                raise self._no_file(file.id)
            return await self.gate.send(request, "content", key, n, file.id, self.desk.file_path(file))

        return await self.gate.through(request, "content", key, act)

    def _find_file(self, file_id: str) -> File:
        file = self.desk.state.files.get(file_id)
        if file is None or not file.there(self.desk.clock.now()):
            raise self._no_file(file_id)
        return file

    def _no_file(self, file_id: str) -> Fail:
        return fail(404, f"No such File object: {file_id}", None, "id")

    def _file_key(self, request: web.Request) -> str:
        file = self.desk.state.files.get(request.match_info["id"])
        return (file.nonce if file else "") or request.match_info["id"]

    def _file(self, file: File) -> Json:
        return {
            "id": file.id,
            "object": "file",
            "bytes": file.bytes,
            "created_at": int(file.created),
            "expires_at": int(file.expires),
            "filename": file.name,
            "purpose": file.purpose,
            "status": "processed",
            "status_details": None,
        }
