"""Which rows the next batch has: every row once, within every limit, and of a size that no open batch has."""

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from batchbench.dispatch import Account
from batchbench.dispatch.state import Dispatch
from batchbench.dispatch.submit import Chunk, next_batch
from batchbench.providers.interface import Calls
from batchbench.runs.ingest import as_ranges
from batchbench.runs.row_states import ANSWERED, TODO, todo
from tests.model.world import PRICE, World, limits

ITEMS = 8  # of three prompts each

marks = st.binary(max_size=60).map(lambda raw: bytearray(byte % 5 for byte in raw))


@given(marks, st.integers(0, 70))
def test_the_next_rows_are_the_first_that_are_not_asked_yet(rows: bytearray, limit: int) -> None:
    chosen = [row for start, stop in todo(rows, limit) for row in range(start, stop)]
    assert chosen == [row for row, mark in enumerate(rows) if mark == TODO][:limit]


@given(st.sets(st.integers(0, 50)))
def test_ranges_have_exactly_their_rows_and_never_touch(rows: set[int]) -> None:
    ranges = as_ranges(sorted(rows))
    assert [row for start, stop in ranges for row in range(start, stop)] == sorted(rows)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))


@settings(max_examples=60)
@given(
    dialect=st.sampled_from(["openai", "anthropic"]),
    size=st.integers(1, 30),
    max_bytes=st.integers(100, 6000),
    budget=st.none() | st.integers(0, 1200),
    answered=st.sets(st.integers(0, 3 * ITEMS - 1)),
)
def test_batches_have_every_row_once_and_keep_to_every_limit(
    small: Path, dialect: str, size: int, max_bytes: int, budget: int | None, answered: set[int]
) -> None:
    chunks: list[Chunk] = []

    stopped = False

    async def act(account: Account, calls: Calls) -> None:
        nonlocal stopped
        for row in answered:
            account.rows[0][row] = ANSWERED
        dispatch = Dispatch(account, world.provider, calls)
        while isinstance(reserved := await next_batch(dispatch), tuple):
            chunks.append(reserved[1])
        stopped = reserved is not None

    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), small, dialect, limits(size, 50, bytes=max_bytes))
        client = world.start(ITEMS, budget=budget, act=act)
        world.wait(1)
        assert world.finished()
        assert client.account is not None
        assert client.run is not None
        left = client.account.todo()
        prompts = client.run.prompts(0, 3 * ITEMS)
        world.close()
    asked = [row for chunk in chunks for start, stop in chunk.ranges for row in range(start, stop)]
    assert len(asked) == len(set(asked))
    assert not answered & set(asked)
    assert len(asked) + len(answered) + left == 3 * ITEMS
    for chunk in chunks:
        rows = [row for start, stop in chunk.ranges for row in range(start, stop)]
        assert 0 < len(rows) == chunk.rows == len(chunk.requests) <= size
        assert sum(map(len, chunk.requests)) <= max_bytes
        assert chunk.reserve == sum(PRICE.bound(len(prompts[row].encode()), 20) for row in rows)
        assert type(chunk.reserve) is int
    if budget is not None:
        assert sum(chunk.reserve for chunk in chunks) <= budget
    if dialect == "anthropic":
        sizes = [chunk.rows for chunk in chunks]
        assert len(sizes) == len(set(sizes))
    elif budget is None and not stopped:
        assert left == 0
