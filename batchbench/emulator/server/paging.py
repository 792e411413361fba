"""Pages of a listing."""

import re
from typing import NamedTuple

from aiohttp import web

from batchbench.emulator.jobs.answers import Json
from batchbench.emulator.server.responses import error_reply


class Page(NamedTuple):
    rows: list[Json]
    start: int  # position of the first row in the whole listing
    has_more: bool

    @property
    def ends(self) -> tuple[object, object]:
        """The ids of the first and the last row."""
        return (self.rows[0]["id"], self.rows[-1]["id"]) if self.rows else (None, None)


def cut_page(rows: list[Json], size: int, after: str | None, before: str | None = None) -> Page:
    """The page after one cursor, or the page that ends before another; LookupError if a cursor is not in the rows."""
    ids = [row["id"] for row in rows]
    for cursor in (after, before):
        if cursor and cursor not in ids:
            raise LookupError(cursor)
    if before:
        end = ids.index(before)
        start = max(0, end - size)
        return Page(rows[start:end], start, start > 0)
    start = ids.index(after) + 1 if after else 0
    return Page(rows[start : start + size], start, start + size < len(rows))


def page_size(request: web.Request, default: int, maximum: int) -> int:
    """The `limit` of a listing."""
    text = request.query.get("limit", str(default))
    if not re.fullmatch(r"\d{1,6}", text) or not 1 <= int(text) <= maximum:
        raise error_reply(400, f"Invalid 'limit': expected 1 to {maximum}.", "invalid_value", "limit")
    return int(text)
