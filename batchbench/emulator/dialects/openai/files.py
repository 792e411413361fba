"""The file routes of the OpenAI API."""

import asyncio
import contextlib
import os
import re
from pathlib import Path

import msgspec
from aiohttp import BodyPartReader, web

from batchbench.emulator.faults.http import close_connection
from batchbench.emulator.jobs.answers import Json
from batchbench.emulator.jobs.files import publish
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.state import StoredFile, derive_id, nonce_of
from batchbench.emulator.server.bodies import BodyWriter, custom_id_of
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.injector import FaultInjector
from batchbench.emulator.server.limits import DAY
from batchbench.emulator.server.paging import Page, cut_page, page_size
from batchbench.emulator.server.responses import ErrorReply, error_reply, json_response

ROOT = "/openai/v1/files"
CHUNK = 1 << 20


class UploadForm(msgspec.Struct, frozen=True):
    """An upload. Its file is already on disk, with a scratch name."""

    fields: dict[str, str]
    name: str
    size: int
    sha256: str
    nonce: str


class FileRoutes:
    """Uploads go to disk. The content of a file is not read until a batch uses it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.injector = FaultInjector(context, "openai")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(ROOT, self.upload),
            web.get(ROOT, self.files),
            web.get(f"{ROOT}/{{id}}", self.file),
            web.delete(f"{ROOT}/{{id}}", self.delete),
            web.get(f"{ROOT}/{{id}}/content", self.content),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        scratch = self.context.scratch / derive_id(os.urandom(16).hex(), 16)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(scratch.unlink, missing_ok=True)
            form = await self._receive(request, scratch)
            on_failure.pop_all()

        async def action(n: int) -> web.StreamResponse:
            return await self._store(request, form, scratch, n)

        return await self.injector.handle(
            request, "upload", form.nonce, action, lambda: scratch.unlink(missing_ok=True)
        )

    async def _receive(self, request: web.Request, scratch: Path) -> UploadForm:
        """Read the form and write the file to disk."""
        if not request.content_type.startswith("multipart/"):
            raise error_reply(400, "Content-Type must be multipart/form-data.")
        fields: dict[str, str] = {}
        name, size, digest, head = "", -1, "", b""
        try:
            reader = await request.multipart()
            while part := await reader.next():
                if not isinstance(part, BodyPartReader):
                    raise error_reply(400, "Nested multipart bodies are not supported.")
                if part.name == "file":
                    name = part.filename or ""
                    size, digest, head = await self._save_file(part, scratch)
                else:
                    fields[part.name or ""] = (await part.read()).decode()
        except ValueError as error:
            raise error_reply(400, f"The form could not be read: {error}") from None
        if size < 0:
            raise error_reply(400, "'file' is a required property", "missing_required_parameter", "file")
        return UploadForm(fields, name, size, digest, nonce_of(name) or nonce_of(custom_id_of(head)))

    async def _save_file(self, part: BodyPartReader, scratch: Path) -> tuple[int, str, bytes]:
        """Write one part of the form to disk; returns its size, its digest and its first line."""
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            writer = BodyWriter(fd, self.context.settings.limits.upload_bytes)
            head = b""
            pending = bytearray()
            while chunk := await part.read_chunk(CHUNK):
                pending += chunk
                if len(pending) >= CHUNK:
                    full, pending = bytes(pending), bytearray()
                    head = head or full.partition(b"\n")[0]
                    await asyncio.to_thread(writer.write, full)
            head = head or bytes(pending).partition(b"\n")[0]
            writer.write(bytes(pending))
            await asyncio.to_thread(os.fsync, fd)
            return writer.bytes, writer.digest(), head
        finally:
            os.close(fd)

    async def _store(self, request: web.Request, form: UploadForm, scratch: Path, n: int) -> web.StreamResponse:
        context = self.context
        purpose = form.fields.get("purpose")
        t, wall = context.now()
        fault = context.select_fault("upload", "openai", "upload", form.nonce, n)
        if fault and fault.name == "upload-cut":
            return await close_connection(request)
        count = sum(file.exists(t) for file in context.state.files.values())
        if (fault and fault.name == "file-quota") or count >= (context.settings.limits.files or count + 1):
            raise error_reply(
                400, "The file storage of this project is full; delete files first.", "file_quota_exceeded"
            )
        if not purpose:
            raise error_reply(400, "'purpose' is a required property", "missing_required_parameter", "purpose")
        if purpose == "batch" and not form.name.endswith(".jsonl"):
            raise error_reply(400, "Invalid file format for Batch API. Must be .jsonl")
        file = context.new_id("file", "file-", 22)
        await asyncio.to_thread(publish, scratch, context.input_path(file))
        context.record(
            events.FileUploaded(
                t=t,
                wall=wall,
                file=file,
                name=form.name,
                purpose=purpose,
                bytes=form.size,
                sha256=form.sha256,
                expires=t + self._file_life(form.fields),
                nonce=form.nonce,
            )
        )
        await context.sync()
        shown = self._json(context.state.files[file])
        if fault and fault.name == "upload-bytes":
            shown["bytes"] = form.size // 2
        return json_response(shown)

    def _file_life(self, fields: dict[str, str]) -> float:
        """Seconds until an uploaded file expires."""
        text = fields.get("expires_after[seconds]")
        if text is None:
            return self.context.settings.limits.file_days * DAY
        if not re.fullmatch(r"\d{1,9}", text) or not 3600 <= int(text) <= 2_592_000:
            raise error_reply(
                400, "'expires_after.seconds' must lie between 3600 and 2592000.", "invalid_value", "expires_after"
            )
        return float(text)

    async def files(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            now = self.context.clock.now()
            query = request.query
            files = [file for file in reversed(self.context.state.files.values()) if file.exists(now)]
            if purpose := query.get("purpose"):
                files = [file for file in files if file.purpose == purpose]
            if query.get("order") == "asc":
                files.reverse()
            size = page_size(request, 10_000, 10_000)
            try:
                page = cut_page([self._json(file) for file in files], size, query.get("after"))
            except LookupError as error:
                raise no_such_object(str(error)) from None
            return json_response(list_json(page))

        return await self.injector.handle(request, "files", "", action)

    async def file(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            return json_response(self._json(self._find_file(request.match_info["id"])))

        return await self.injector.handle(request, "file", self._file_key(request), action)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        async def action(_n: int) -> web.StreamResponse:
            context = self.context
            file = self._find_file(request.match_info["id"])
            context.record_deleted(file.id)
            await context.sync()
            context.remove_file(file.id)
            return json_response({"id": file.id, "object": "file", "deleted": True})

        return await self.injector.handle(request, "delete", self._file_key(request), action)

    async def content(self, request: web.Request) -> web.StreamResponse:
        key = self._file_key(request)

        async def action(n: int) -> web.StreamResponse:
            file = self._find_file(request.match_info["id"])
            if self.context.select_fault("view", "openai", "content", key, n):  # the fault results-expired
                raise self._no_file(file.id)
            return await self.injector.send_file(request, "content", key, n, file.id, self.context.file_path(file))

        return await self.injector.handle(request, "content", key, action)

    def _find_file(self, file_id: str) -> StoredFile:
        file = self.context.state.files.get(file_id)
        if file is None or not file.exists(self.context.clock.now()):
            raise self._no_file(file_id)
        return file

    def _no_file(self, file_id: str) -> ErrorReply:
        return error_reply(404, f"No such File object: {file_id}", None, "id")

    def _file_key(self, request: web.Request) -> str:
        file = self.context.state.files.get(request.match_info["id"])
        return (file.nonce if file else "") or request.match_info["id"]

    def _json(self, file: StoredFile) -> Json:
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


def list_json(page: Page) -> Json:
    """A page in OpenAI's format."""
    first, last = page.ends
    return {"object": "list", "data": page.rows, "first_id": first, "last_id": last, "has_more": page.has_more}


def no_such_object(cursor: str) -> ErrorReply:
    return error_reply(404, f"No such object: '{cursor}'.", None, "after")
