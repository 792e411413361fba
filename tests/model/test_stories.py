"""What the state machine has found, told one by one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchbench.emulator.faults.rules import Rule
from batchbench.errors import UnresolvedError
from batchbench.runs.events import Duplicate
from batchbench.runs.folder import open_run
from tests.model.world import World, limits

pytestmark = pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")  # the emulator's, here in our process
DAY = 86_400.0
CUT = Rule(do="cut-line")
Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path, small: Path) -> Iterator[Make]:
    """A world with a provider of some dialect, and small batches."""
    worlds: list[World] = []

    def one(dialect: str, size: int = 3, open_batches: int = 1) -> World:
        worlds.append(World(tmp_path, small, dialect, limits(size, open_batches)))
        return worlds[-1]

    yield one
    for world in worlds:
        world.close()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_what_is_lost_again_is_not_bought_again_by_the_same_command(make: Make, dialect: str) -> None:
    """It was, without end, for as long as downloads were cut and there was money left."""
    world = make(dialect)
    world.faults([CUT])
    for bought in (1, 2, 3):
        world.start(1, rebuy_missing=True)
        world.wait(3 * DAY)
        assert world.finished()
        assert len(world.mine()) == bought
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_an_answer_that_came_late_is_not_fetched_once_more_for_a_later_batch(make: Make, dialect: str) -> None:
    """A row that two batches had lost was answered by the first of them, then forgotten for the second one's sake."""
    world = make(dialect)
    world.faults([CUT])
    for _ in range(2):
        world.start(1, rebuy_missing=True)
        world.wait(3 * DAY)
        assert world.finished()
    world.faults([])
    for _ in range(2):
        client = world.start(1)
        world.wait(DAY)
        assert world.finished()
        told = client.status()
        assert (told["answered"], told["missing"], len(world.mine())) == (3, 0, 2)
        world.audit(status=told)


def test_a_batch_that_a_person_has_to_decide_about_holds_up_no_other(make: Make) -> None:
    """Where sizes tell batches apart, what was left waited for its end if it had the same size: for ever."""
    world = make("anthropic", size=1)
    world.faults([Rule(do="reset-after", on="create"), Rule(do="500-before", on="results")])
    for answered in (0, 2):
        client = world.start(1)
        world.wait(3 * DAY)
        assert world.finished()
        assert isinstance(client.error, UnresolvedError)
        assert client.status()["answered"] == answered
        world.faults([])
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_create_is_found_after_a_standstill_of_which_no_clock_of_ours_knows(make: Make, dialect: str) -> None:
    """It was looked for in the time after it, and bought again."""
    world = make(dialect)
    world.faults([Rule(do="reset-after", on="create", first=1), Rule(do="html-after", on="list", p=0.999)])
    world.start(1)
    world.wait(1)
    assert len(world.mine()) == 1
    world.stand_still(6 * 3600.0)
    world.wait(60)  # in which the provider has told what time it is
    world.faults([])
    world.wait(DAY)
    assert world.finished()
    assert len(world.mine()) == 1
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_buying_goes_on_after_a_listing_shows_batches_that_were_not_found_before(make: Make, dialect: str) -> None:
    """The 404 replies were never forgotten, and the run waited for ever."""
    world = make(dialect, size=3, open_batches=3)
    world.faults([Rule(do="list-lag", seconds=100), Rule(do="poll-404", first=2)])
    client = world.start(4)
    world.wait(3 * DAY)
    assert world.finished()
    assert client.error is None
    assert client.status()["answered"] == 12
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_copy_that_a_killed_process_had_noted_is_stopped(make: Make, dialect: str) -> None:
    """Nobody looked at it again, and it ran to its end."""
    world = make(dialect)
    world.faults([Rule(do="dup-accept")])
    world.start(1)
    world.wait(1)
    world.kill()
    _, copy = world.mine()
    world.dead = False
    with open_run(world.store, world.manifest_folder, world.manifest, world.target, world.loop.wall()) as run:
        [batch] = run.state.batches.values()
        run.append(Duplicate(at=world.loop.wall(), nonce=batch.nonce, remote=copy.id, reserve=batch.reserve))
    world.start(1)
    world.wait(5)
    assert [batch.cancelled is not None for batch in world.mine()] == [False, True]
