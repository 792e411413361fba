"""What the batch routes of all dialects share: finding, polling, listing, and the faults in accepting a batch."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import ClassVar

from aiohttp import web

from batchbench.emulator.faults.views import batch_with_fault, page_with_fault
from batchbench.emulator.jobs.answers import Json
from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.lifecycle import Status, status
from batchbench.emulator.ledger.state import EmulatedBatch
from batchbench.emulator.server.context import Context
from batchbench.emulator.server.injector import FaultInjector
from batchbench.emulator.server.paging import Page, cut_page, page_size
from batchbench.emulator.server.responses import ErrorReply, json_response


class BatchRoutes(ABC):
    """Each dialect adds its paths, its create call and its JSON."""

    dialect: ClassVar[events.Dialect]
    cursors: ClassVar[tuple[str, ...]]  # query parameters of a listing: the cursor after which it starts, then before
    max_page: ClassVar[int]

    def __init__(self, context: Context) -> None:
        self.context = context
        self.injector = FaultInjector(context, self.dialect)

    @abstractmethod
    def check_headers(self, request: web.Request) -> None:
        """Refuse a call without a required header."""

    @abstractmethod
    def batch_json(self, batch: EmulatedBatch) -> Json:
        """The batch object at this time."""

    @abstractmethod
    def page_json(self, page: Page) -> Json: ...

    @abstractmethod
    def batch_not_found(self, batch_id: str) -> ErrorReply: ...

    @abstractmethod
    def cursor_not_found(self, cursor: str) -> ErrorReply: ...

    async def poll(self, request: web.Request) -> web.StreamResponse:
        self.check_headers(request)

        async def action(n: int) -> web.StreamResponse:
            return json_response(self._with_fault(self.find(request), "poll", n))

        return await self.injector.handle(request, "poll", self.key(request), action)

    async def listing(self, request: web.Request) -> web.StreamResponse:
        self.check_headers(request)

        async def action(n: int) -> web.StreamResponse:
            context = self.context
            fault = context.select_fault("list", self.dialect, "list", "", n)
            name, seconds = (fault.name, fault.seconds) if fault else ("", 0.0)
            now = context.clock.now()
            cursors = [None if name == "list-repeat" else request.query.get(cursor) for cursor in self.cursors]
            if name == "list-cursor-gone" and (given := next(filter(None, cursors), None)):
                raise self.cursor_not_found(given)
            batches = context.batches(self.dialect)
            if name == "list-lag":
                batches = [batch for batch in batches if batch.accepted.t <= now - seconds]
            if name == "list-oldest-first":
                batches.reverse()
            rows = [self._with_fault(batch, "list", n) for batch in batches]
            size = min(page_size(request, 20, self.max_page), context.settings.limits.page)
            try:
                page = cut_page(rows, size, *cursors)
            except LookupError as error:
                raise self.cursor_not_found(str(error)) from None
            if name == "list-stale":
                await asyncio.sleep(seconds)
            return json_response(page_with_fault(self.page_json(page), page.rows, rows[: page.start], fault))

        return await self.injector.handle(request, "list", "", action)

    async def accept(
        self,
        key: str,
        n: int,
        record: Callable[[events.BatchFault | None], Awaitable[str]],
        create_other_batch: Callable[[], None],
    ) -> web.StreamResponse:
        """Record a new batch, with the fault that affects it; `record` returns the batch id."""
        context = self.context
        fault = context.select_fault("batch", self.dialect, "create", key, n)
        name = fault.name if fault else ""
        if name == "foreign":
            create_other_batch()
        batch = await record(events.BatchFault(name, fault.seconds) if fault else None)
        if name == "dup-accept":
            await record(None)
        if name == "deleted-elsewhere":
            context.record_deleted(batch, by="someone else")
        await context.sync()
        return json_response(self.batch_json(context.state.batches[batch]))

    def window(self, fault: events.BatchFault | None) -> float:
        """Seconds until the batch expires."""
        return fault.seconds if fault and fault.name.startswith("expire-") else self.context.settings.limits.window

    def find(self, request: web.Request) -> EmulatedBatch:
        batch = self.context.batch(request.match_info["id"], self.dialect)
        if batch is None:
            raise self.batch_not_found(request.match_info["id"])
        return batch

    def key(self, request: web.Request) -> str:
        """The key for fault rules."""
        batch = self.context.batch(request.match_info["id"], self.dialect)
        return batch.key if batch else request.match_info["id"]

    def status(self, batch: EmulatedBatch) -> Status:
        return status(batch, self.context.clock.now(), self.context.settings.delays)

    def _with_fault(self, batch: EmulatedBatch, call: str, n: int) -> Json:
        fault = self.context.select_fault("view", self.dialect, call, batch.key, n)
        if fault and fault.name == "poll-404":
            raise self.batch_not_found(batch.id)
        ended_for = self.context.clock.now() - batch.ended.at if batch.ended else -1.0
        return batch_with_fault(self.batch_json(batch), fault, self.dialect, ended_for)
