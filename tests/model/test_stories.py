"""Bugs that the state machine has found, one test each."""

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
    """Make worlds with small batches."""
    worlds: list[World] = []

    def one(dialect: str, size: int = 3, open_batches: int = 1) -> World:
        worlds.append(World(tmp_path, small, dialect, limits(size, open_batches)))
        return worlds[-1]

    yield one
    for world in worlds:
        world.close()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_rows_that_get_lost_again_are_not_bought_again_by_the_same_command(make: Make, dialect: str) -> None:
    """They were bought again and again while downloads were cut off and money was left."""
    world = make(dialect)
    world.faults([CUT])
    for bought in (1, 2, 3):
        world.start(1, rebuy_missing=True)
        world.wait(3 * DAY)
        assert world.finished()
        assert len(world.mine()) == bought
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_late_answer_stays_answered_if_a_later_batch_lacks_the_row_too(make: Make, dialect: str) -> None:
    """Two batches lacked a row. The first one delivered it late, but the second one made it missing again."""
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
        status = client.status()
        assert (status["answered"], status["missing"], len(world.mine())) == (3, 0, 2)
        world.audit(status=status)


def test_an_unresolved_batch_is_looked_up_at_the_next_start(make: Make) -> None:
    """It stayed unresolved for ever, although the provider could be read again."""
    world = make("anthropic", size=1)
    world.faults([Rule(do="reset-after", on="create"), Rule(do="500-before", on="results")])
    for error, answered in ((UnresolvedError, 0), (type(None), 3)):
        client = world.start(1)
        world.wait(3 * DAY)
        assert world.finished()
        assert isinstance(client.error, error)
        assert client.status()["answered"] == answered
        world.faults([])
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_create_is_found_after_the_machine_was_frozen(make: Make, dialect: str) -> None:
    """The search began after the create, by the client's clock, and the batch was bought again."""
    world = make(dialect)
    world.faults(
        [Rule(do="reset-after", on="create", first=1), Rule(do="html-after", on="list", nth=list(range(2, 99)))]
    )
    world.start(1)
    world.wait(1)
    assert len(world.mine()) == 1
    world.freeze(6 * 3600.0)
    world.wait(60)  # the client learns the provider's time
    world.faults([])
    world.wait(DAY)
    assert world.finished()
    assert len(world.mine()) == 1
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_buying_goes_on_after_a_listing_shows_batches_that_were_not_found_before(make: Make, dialect: str) -> None:
    """The 404 replies counted for ever, and the run bought nothing more."""
    world = make(dialect, size=3, open_batches=3)
    world.faults([Rule(do="list-lag", seconds=100), Rule(do="poll-404", first=2)])
    client = world.start(4)
    world.wait(3 * DAY)
    assert world.finished()
    assert client.error is None
    assert client.status()["answered"] == 12
    world.audit()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_recorded_copy_is_cancelled_by_the_next_start(make: Make, dialect: str) -> None:
    """The process was killed between recording and cancelling, and the copy ran to its end."""
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
