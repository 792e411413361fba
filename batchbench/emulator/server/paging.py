"""Pages of a listing, cut as the dialects cut them."""

import re
from typing import Any

from aiohttp import web

from batchbench.emulator.server.replies import fail

Json = dict[str, Any]


def page(rows: list[Json], after: str | None, size: int) -> Json:
    """One page of rows after a cursor."""
    start = 0
    if after:
        ids = [row["id"] for row in rows]
        if after not in ids:
            raise fail(404, f"No such object: '{after}'.", None, "after")
        start = ids.index(after) + 1
    data = rows[start : start + size]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + size < len(rows),
    }


def size_of(request: web.Request, default: int, most: int) -> int:
    """The `limit` of a listing."""
    text = request.query.get("limit", str(default))
    if not re.fullmatch(r"\d{1,6}", text) or not 1 <= int(text) <= most:
        raise fail(400, f"Invalid 'limit': expected 1 to {most}.", "invalid_value", "limit")
    return int(text)
