"""A client that waits for a week, or whose network fails thousands of times, uses no more memory than at first."""

import asyncio
import gc
import os
from pathlib import Path

import pytest

from batchbench.emulator.faults.rules import Rule
from tests.model.conftest import small as small  # a fixture
from tests.model.world import World, limits

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")]
POLLS, WARM = 10_000, 2_000
STUCK = Rule(do="stuck")
BROKEN = [Rule(do=do, on="poll", p=0.15) for do in ("reset-before", "reset-after", "close-after", "500-before")]


def resources(world: World) -> tuple[int, int, int]:
    """Bytes of memory, open files, and tasks."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks(world.loop))


@pytest.mark.parametrize(("rules", "errors"), [([STUCK], 0), ([STUCK, *BROKEN], 5_000)], ids=["waiting", "failing"])
def test_ten_thousand_polls_leak_nothing(tmp_path: Path, small: Path, rules: list[Rule], errors: int) -> None:
    world = World(tmp_path, small, "openai", limits(3, 2, poll=(60, 60)))
    world.faults(rules)
    world.start(1)

    def poll(times: int) -> None:
        until = sum(world.context.call_counts.values()) + times
        while sum(world.context.call_counts.values()) < until:
            world.wait(6000)
            assert not world.finished()

    poll(WARM)
    memory, files, tasks = resources(world)
    poll(POLLS)
    grown, files_now, tasks_now = resources(world)
    assert grown - memory <= 5 << 20
    assert files_now - files <= 2  # a connection may be open at this moment
    assert tasks_now - tasks <= 2
    assert world.context.state.event_counts["fault"] >= errors
    world.close()
