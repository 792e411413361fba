"""Stories: fault rules for the provider, and the expected end of a run. The real program plays each one."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.dispatch.scene import DIALECTS, Json, Ran, Scene
from tests.faults.client_patches import DRAW, hurry, run_first

ROWS, SIZE = 48, 12
AHEAD = 3  # stories played at the same time; most of their time is waiting


class Story(NamedTuple):
    """Fault rules for the provider, and the expected end of the run."""

    row: pytest.MarkDecorator
    rules: list[Json]
    code: int | None = 0  # None: 6 if rows are missing, which depends on the nonces, else 0
    answered: int | None = ROWS  # None: not checked here; the auditor compares with the ledger
    says: str = ""
    damaged: int = 0  # rows in each batch without a readable answer
    dialects: tuple[str, ...] = DIALECTS
    emulator: tuple[str, ...] = ()  # options of the emulator
    speed: float = 1.0  # factor for the client's time
    size: int = SIZE  # rows in a batch
    voids: int | None = None  # batches that the client searched for and did not find; None: any number
    full: bool = False  # runs with -m full only
    open_batches: bool = False  # the run ends with batches whose state is unknown


Play = Callable[[str, str], tuple[Scene, Ran]]


def cases(stories: Mapping[str, Story]) -> list[Any]:
    """Every story in one dialect, alternately; with -m full, those of the default suite in the other dialect, too."""
    found = []
    for turn, (name, story) in enumerate(stories.items()):
        first = story.dialects[turn % len(story.dialects)]
        found.append(pytest.param(name, first, marks=[story.row, pytest.mark.full] if story.full else story.row))
        others = [dialect for dialect in story.dialects if dialect != first and not story.full]
        found += [pytest.param(name, dialect, marks=[story.row, pytest.mark.full]) for dialect in others]
    return found


@pytest.fixture(scope="module")
def play(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Iterator[Play]:
    """Play a story and return its result; the next stories start at the same time."""
    stories: Mapping[str, Story] = request.module.STORIES
    here = [
        item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module
    ]
    chosen = [item.callspec.params for item in here if hasattr(item, "callspec")]
    queue: list[Any] = [(one["name"], one["dialect"]) for one in chosen if one.get("name") in stories]

    def start(name: str, dialect: str) -> tuple[Scene, Ran]:
        story = stories[name]
        folder = tmp_path_factory.mktemp("story") / "scene"
        scene = Scene(folder, manifests, dialect, *story.emulator, rules=story.rules)
        scenes.append(scene)
        run_first(scene, DRAW)
        if story.speed != 1:
            hurry(scene, story.speed)
        return scene, scene.run(k=ROWS, size=story.size, timeout=200)

    def result(name: str, dialect: str) -> tuple[Scene, Ran]:
        first = queue.index((name, dialect))
        for case in queue[first : first + AHEAD]:
            if case not in played:
                played[case] = pool.submit(start, *case)
        return played[name, dialect].result()

    scenes: list[Scene] = []
    played: dict[tuple[str, str], Future[tuple[Scene, Ran]]] = {}
    with ThreadPoolExecutor(AHEAD) as pool:
        yield result
        pool.shutdown(cancel_futures=True)
    for scene in scenes:
        scene.close()


def judge(story: Story, scene: Scene, done: Ran) -> None:
    assert done.code == (story.code if story.code is not None else 6 if done.report["missing"] else 0), done
    assert story.says in done.stderr, done
    assert "Traceback" not in done.stderr
    outcomes = [done.report[name] for name in ("answered", "refused", "failed", "empty", "missing")]
    assert done.report["asked"] == ROWS == sum(outcomes)
    if story.answered is not None:
        assert done.report["answered"] == story.answered - story.damaged * len(scene.accepted()), done
    assert story.voids in (None, len(scene.journal("void")))
    assert {rule["do"] for rule in story.rules if "p" not in rule} <= struck(scene), struck(scene)
    scene.audit(status=True, unfinished=story.open_batches)
    scene.close()


def struck(scene: Scene) -> set[str]:
    """The faults that the emulator has played."""
    lines = [name for event in scene.emulator.events("ended") for name in event.get("struck", {})]
    return {event["do"] for event in scene.emulator.events("fault")} | set(lines)


def in_turn(call: str | list[str], *names: str) -> list[Json]:
    """One fault after the other, one call each."""
    return [{"do": name, "on": call, "nth": [turn]} for turn, name in enumerate(names, 1)]


def by_draw(call: str, *names: str) -> list[Json]:
    """Faults chosen by the first letter of the nonce; half of the nonces get none."""
    letters = "01234567"
    parts = [letters[turn :: len(names)] for turn in range(len(names))]
    return [{"do": name, "on": call, "key": f"^[{part}]"} for name, part in zip(names, parts, strict=True)]
