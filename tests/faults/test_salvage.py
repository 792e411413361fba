"""`batchbench salvage`: whatever happens to the files of a run, no answer that is left is lost, and nothing is bought.

A run is made once for each dialect. Each case copies its home, damages files, rebuilds the run without the provider and
again with it, and finishes the run.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from batchbench.app.audit import audit_runs
from batchbench.app.requests import Options, Silent
from batchbench.app.salvage import SalvagedRun, salvage
from batchbench.core.store import Store
from batchbench.runs.events import Opened
from batchbench.runs.folder import read_journal, read_run, read_state
from batchbench.runs.results import answer_files, read_answers
from batchbench.runs.salvage.files import custom_id, surviving_lines
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, VARIABLES, Scene
from tests.emulator.driver import TOKEN
from tests.faults.rows import row

# Other damages and sizes: SALVAGE_SEED=1000 SALVAGE_ROWS=90 SALVAGE_SIZE=7 python -m pytest -m "full or not full" ...
FIRST = int(os.environ.get("SALVAGE_SEED", "0"))
ROWS, SIZE = int(os.environ.get("SALVAGE_ROWS", "40")), int(os.environ.get("SALVAGE_SIZE", "8"))
RULES: dict[str, list[dict[str, Any]]] = {
    "openai": [{"do": "expire-half", "on": "create", "nth": [2], "seconds": 0.1}, {"do": "line-missing", "nth": [3]}],
    "anthropic": [
        {"do": "expire-half", "on": "create", "nth": [2], "seconds": 0.1},
        {"do": "line-missing", "nth": [3]},
    ],
    "chat": [{"do": "reset-after", "on": "chat", "nth": [5]}],
}
DIALECTS = tuple(RULES)
ALL = (*BOTH, pytest.param("chat", marks=pytest.mark.full))
Row = tuple[int, int]
Damage = Callable[[Path, Random], None]


class Original:
    """A finished run, and what was in its files."""

    def __init__(self, folder: Path, manifests: Path, dialect: str) -> None:
        self.scene = Scene(folder, manifests, dialect, rules=RULES[dialect])
        if dialect == "chat":
            self.scene.price = "0.15,0.60"
        done = self.scene.run("--pilot", "auto" if dialect == "openai" else "none", k=ROWS, size=SIZE)
        assert done.code in (0, 6), done
        self.scene.end_faults()
        done = self.scene.run(k=ROWS, size=SIZE)  # stores answers that came late
        assert done.code in (0, 6), done
        self.home = self.scene.home
        self.run = self.scene.run_folder
        self.answers = answers(self.run)
        self.lines = {line for path in self.run.glob("raw/*") for line in surviving_lines(path)}
        self.target = read_run(self.run / "run.json").target

    def copy(self, to: Path) -> Path:
        """The folder of the run in a copy of its home."""
        shutil.copytree(self.home, to)
        return to / self.run.relative_to(self.home)


def answers(folder: Path) -> dict[Row, str]:
    """The kept answers: what decides whether one was changed or lost."""
    rows = read_answers(folder, read_state(folder)).collect().rows(named=True)
    return {(one["id"], one["rep"]): f"{one['outcome']} {one['text']} {one['output_tokens']}" for one in rows}


def left_over(original: Original, folder: Path) -> dict[Row, str]:
    """The answers whose result line, or whose undamaged answer file, is still on disk."""
    found: set[Row] = set()
    for path in folder.glob("raw/*"):
        for line in surviving_lines(path):
            if line in original.lines and (one := custom_id(line)):
                found.add(one[1:])
    for path in folder.glob("answers/*"):
        twin = original.run / "answers" / path.name
        if twin.exists() and twin.read_bytes() == path.read_bytes():
            found |= {*pl.read_parquet(twin).select("id", "rep").rows()}
    return {one: text for one, text in original.answers.items() if one in found}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, manifests: Path) -> Iterator[Callable[[str], Original]]:
    made: dict[str, Original] = {}
    mask = os.umask(0o077)  # as the program does

    def original(dialect: str) -> Original:
        if dialect not in made:
            made[dialect] = Original(tmp_path_factory.mktemp("salvage") / dialect, manifests, dialect)
        return made[dialect]

    yield original
    os.umask(mask)
    for one in made.values():
        one.scene.close()


def flip(path: Path, random: Random) -> None:
    text = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        if text:
            text[random.randrange(len(text))] ^= random.randint(1, 255)
    path.write_bytes(text)


def cut(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(max(1, path.stat().st_size)))


def delete(path: Path, _: Random) -> None:
    path.unlink()


def remove_bytes(path: Path, random: Random) -> None:
    text = path.read_bytes()
    start = random.randrange(max(1, len(text)))
    path.write_bytes(text[:start] + text[start + random.randint(1, 400) :])


def zero(path: Path, random: Random) -> None:
    text = path.read_bytes()
    start = random.randrange(max(1, len(text)))
    end = min(len(text), start + random.randint(1, 600))
    path.write_bytes(text[:start] + bytes(end - start) + text[end:])


def one_line(place: int) -> Damage:
    def flip_in_line(path: Path, random: Random) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        line = bytearray(lines[place])
        line[random.randrange(len(line) - 1)] ^= random.randint(1, 127)
        lines[place] = bytes(line)
        path.write_bytes(b"".join(lines))

    return flip_in_line


DAMAGES: list[Damage] = [flip, cut, delete, remove_bytes, zero]
PLACES = ("journal", "journal", "raw/*", "raw/*", "answers/*", "run.json")


def damaged(folder: Path, seed: int) -> list[str]:
    """Damage one to three files; what was done."""
    random, done = Random(seed), []
    for _ in range(random.choice([1, 1, 2, 3])):
        paths = sorted(folder.glob(random.choice(PLACES)))
        if not paths:
            continue
        path, damage = random.choice(paths), random.choice(DAMAGES)
        damage(path, random)
        done.append(f"{damage.__name__} {path.relative_to(folder)}")
    return done


def rebuilt(original: Original, folder: Path, monkeypatch: pytest.MonkeyPatch, *, offline: bool) -> SalvagedRun:
    """Salvage a run, check that it is sound, and that nothing that was left is lost."""
    scene = original.scene
    monkeypatch.setenv(VARIABLES[scene.dialect], TOKEN)
    urls = {"anthropic": scene.emulator.anthropic_url, "openai": scene.emulator.openai_url, "chat": None}
    options = Options(base_url=urls[scene.dialect], settle=0, price=scene.price)
    left = left_over(original, folder)
    store = Store(folder.parents[2])
    found = salvage(folder, original.target, options, store, Silent(), offline=offline)
    kept = answers(folder)
    lost = {one: text for one, text in left.items() if kept.get(one) != text}
    assert not lost, (found, lost)
    assert {one: text for one, text in kept.items() if original.answers.get(one) != text} == {}
    (audited,) = audit_runs(store, Silent())
    assert not audited.findings, (audited.findings, audited.notes)
    assert read_run(folder / "run.json").target == original.target
    again = salvage(folder, None, options, store, Silent(), offline=offline)
    assert not again.needed or again.unknown, again
    return found


@row(142)
@pytest.mark.parametrize("newline", ["with its newline", "without its newline"])
def test_a_journal_that_is_cut_after_any_line_loses_no_answer(
    originals: Callable[[str], Original], newline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = originals("anthropic")
    lines = (original.run / "journal").read_bytes().splitlines(keepends=True)
    for count in range(2, len(lines), 6):
        kept = b"".join(lines[:count])
        folder = original.copy(tmp_path / f"{count}")
        (folder / "journal").write_bytes(kept if newline == "with its newline" else kept[:-1])
        rebuilt(original, folder, monkeypatch, offline=True)


def finished(original: Original, folder: Path, tmp_path: Path) -> None:
    """Continue a salvaged run with the real program: it buys nothing that was bought before."""
    scene, home = original.scene, original.scene.home
    before = scene.billed()
    scene.home = folder.parents[2]
    try:
        unresolved = [batch for batch in read_state(folder).batches.values() if batch.state == "unresolved"]
        decisions = [f"--resolve={batch.nonce}={batch.candidates[0]}" for batch in unresolved]
        done = scene.run("--adopt", *decisions, k=ROWS, size=SIZE)
        assert done.code in (0, 6), done
        assert answers(folder) == original.answers, done
        assert scene.billed() == before, "a salvaged run bought again"
        audited = scene.program("audit")
        assert audited.code == 0, audited
        scene.audit(status=True)
    finally:
        scene.home = home


SEEDS = [
    pytest.param(seed, marks=[] if seed < FIRST + 18 and seed % 3 == 0 else pytest.mark.full)
    for seed in range(FIRST, FIRST + 200)
]


@pytest.mark.full
@row(142)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_is_left_is_lost_and_nothing_is_bought(
    originals: Callable[[str], Original], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = originals(DIALECTS[seed // 3 % len(DIALECTS)])
    folder = original.copy(tmp_path / "home")
    done = damaged(folder, seed)
    twin = tmp_path / "twin"
    shutil.copytree(tmp_path / "home", twin)
    events, offers = len(original.scene.emulator.events()), original.scene.accepted()
    try:
        rebuilt(original, folder, monkeypatch, offline=True)
        online = twin / folder.relative_to(tmp_path / "home")
        found = rebuilt(original, online, monkeypatch, offline=False)
    except AssertionError as error:
        raise AssertionError(f"{original.scene.dialect} {done}: {error}") from error
    fresh = [event for event in original.scene.emulator.events()[events:] if event["event"] != "downloaded"]
    assert not fresh, (done, fresh)
    assert original.scene.accepted() == offers
    if seed % 3 == 0 and not found.unknown:
        finished(original, online, tmp_path)


# -- single cases, with the real program -------------------------------------------------------------------


def salvaged(scene: Scene, *words: str) -> Any:
    """What `batchbench salvage FOLDER` prints."""
    url = scene.emulator.openai_url if scene.dialect == "openai" else scene.emulator.anthropic_url
    reached = () if scene.dialect == "chat" else ("--base-url", url)
    ran = scene.program(
        "salvage", str(folder_of(scene)), "--settle", "0", "--price", scene.price, "--json", *reached, *words
    )
    assert ran.code == 0, ran
    (found,) = json.loads(ran.stdout)
    return found


def folder_of(scene: Scene) -> Path:
    return next(path.parent for path in scene.home.glob("cache/*/*/lock"))


def cut_before(folder: Path, kind: str) -> None:
    """Cut the journal off in the middle of the first line of this kind."""
    content = (folder / "journal").read_bytes()
    os.truncate(folder / "journal", content.index(b'{"event":"%s"' % kind.encode()) + 5)


@pytest.mark.full
@row(143)
@pytest.mark.parametrize("place", [2, *(pytest.param(place, marks=pytest.mark.full) for place in (0, 1, -2, -1))])
def test_one_changed_byte_in_any_line_loses_nothing(stage: Stage, place: int) -> None:
    scene = stage("openai")
    assert scene.run(k=ROWS, size=SIZE).code == 0
    folder = scene.run_folder
    whole = (folder / "journal").read_bytes()
    one_line(place)(folder / "journal", Random(place))
    refused = scene.run(k=ROWS, size=SIZE)
    assert refused.code == 65
    assert "rebuild it with `batchbench salvage`" in refused.stderr
    assert "batchbench salvage" in scene.program("status").stdout + scene.program("audit").stdout
    found = salvaged(scene, "--offline")
    assert (found["needed"], found["answered"], found["lost_lines"], found["unknown"]) == (True, ROWS, 0, 0)
    assert (folder / "journal").read_bytes().startswith(whole)  # the same lines, and one more
    assert (folder / "journal.damaged").read_bytes() != whole
    bought = scene.billed()
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.run(k=ROWS + 1, size=SIZE).code == 0  # it is not a copy
    assert scene.billed() == bought + 1
    one_line(place)(folder / "journal", Random(place))
    salvaged(scene, "--offline")
    assert {path.name for path in folder.glob("journal.*")} == {"journal.damaged", "journal.damaged.2"}
    scene.audit(status=True)


@pytest.mark.full
@row(144)
@pytest.mark.parametrize("dialect", BOTH)
def test_requests_that_may_have_been_bought_are_not_bought_silently(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, "--delay", "processing=3")
    assert scene.run("--detach", k=SIZE, size=SIZE).code == 6
    cut_before(scene.run_folder, "intent")
    found = salvaged(scene, "--offline")
    assert found["unknown"] > SIZE
    for _ in range(2):
        ran = scene.run(k=SIZE, size=SIZE)
        assert (ran.code, len(scene.accepted())) == (4, 1), ran
        assert "these requests may have been bought" in ran.stderr
    assert scene.status()["reserved_usd"] > 0
    wait_for(lambda: salvaged(scene)["unknown"] == 0)  # Anthropic's results show whose requests they are
    done = scene.run(k=SIZE, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, SIZE, SIZE), done
    assert scene.program("audit").code == 0
    scene.audit(status=True)


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(30):
        if condition():
            return
        time.sleep(0.5)
    raise AssertionError("it does not happen")


@pytest.mark.full
@row(144)
def test_requests_in_no_batch_of_the_provider_are_bought_after_a_salvage(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=SIZE, size=SIZE).code == 0
    assert scene.run(k=ROWS, size=SIZE, crash="once-before-send:1").code == -signal.SIGKILL
    with (scene.run_folder / "journal").open("ab") as file:
        file.write(b"something else\n")
    assert salvaged(scene)["unknown"] == 0
    done = scene.run(k=ROWS, size=SIZE)
    assert (done.code, scene.billed()) == (0, ROWS), done
    scene.audit(status=True)


@pytest.mark.full
@row(145)
@pytest.mark.parametrize("dialect", ALL)
def test_the_settings_of_a_run_are_in_its_journal_too(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    assert scene.run(k=SIZE, size=SIZE).code == 0
    folder = scene.run_folder
    whole = (folder / "run.json").read_bytes()
    (folder / "run.json").unlink()
    found = salvaged(scene, "--offline")
    assert (found["needed"], found["answered"]) == (True, SIZE)
    assert (folder / "run.json").read_bytes() == whole
    (folder / "journal").unlink()
    assert salvaged(scene)["answered"] == SIZE
    opened = read_journal(folder / "journal").events[0]
    assert isinstance(opened, Opened)
    assert opened.run == json.loads(whole)["run"]
    bought = scene.billed()
    done = scene.run("--adopt", k=SIZE, size=SIZE)
    assert (done.code, scene.billed()) == (0, bought), done


@row(145)
def test_without_run_json_and_journal_the_command_line_says_what_the_run_is(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=SIZE, size=SIZE).code == 0
    folder = scene.run_folder
    whole = read_run(folder / "run.json").target
    for name in ("run.json", "journal"):
        (folder / name).unlink()
    refused = scene.program("salvage", str(folder), "--offline")
    assert refused.code == 65
    assert "name the run as for `batchbench run`" in refused.stderr
    words = [word for word in scene.line(k=SIZE, size=SIZE, command="salvage")[4:] if word != "--json"]
    ran = scene.program("salvage", *words[: words.index("--home")], "--offline")
    assert ran.code == 0, ran
    assert read_run(folder / "run.json").target == whole
    assert len(answers(folder)) == SIZE
    assert scene.program("audit").code == 0


@row(146)
@pytest.mark.parametrize("dialect", ALL)
def test_an_answer_whose_result_line_is_lost_is_kept(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    if dialect == "chat":
        scene.price = "0.15,0.60"
    assert scene.run(k=ROWS, size=SIZE).code == 0
    folder, spent = scene.run_folder, scene.status()["spent_usd"]
    before = answers(folder)
    for path in folder.glob("raw/*"):
        path.unlink()
    if dialect == "chat":
        shutil.rmtree(folder / "spool")
    assert scene.program("audit").code == 65
    found = salvaged(scene, "--offline")
    assert (found["answered"], found["missing"], found["findings"]) == (ROWS, 0, [])
    assert any("have no result line any more" in note for note in found["notes"])
    assert answers(folder) == before
    assert scene.status()["spent_usd"] == spent
    audited = scene.program("audit")
    assert (audited.code, "no result line any more" in audited.stdout) == (0, True), audited
    bought = scene.billed()
    assert scene.run(k=ROWS, size=SIZE).code == 0
    assert scene.billed() == bought
    assert scene.program("audit", "--reread").code == 0
    assert answers(folder) == before


@row(146)
@pytest.mark.parametrize("dialect", ALL)
def test_damaged_results_are_fetched_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    if dialect == "chat":
        scene.price = "0.15,0.60"
    assert scene.run(k=ROWS, size=SIZE).code == 0
    folder = scene.run_folder
    before, lines = answers(folder), {line for path in folder.glob("raw/*") for line in surviving_lines(path)}
    for path in folder.glob("raw/*"):
        path.write_bytes(b"x" * 100)
    for path in folder.glob("answers/*"):
        path.unlink()
    found = salvaged(scene)
    assert (found["answered"], found["missing"], found["notes"]) == (ROWS, 0, [])
    assert answers(folder) == before
    assert {line for path in folder.glob("raw/*") for line in surviving_lines(path)} == lines
    assert len([*folder.glob("quarantine/salvaged-*")]) == len(scene.journal("stored"))
    scene.audit(status=True)


@pytest.mark.full
@row(146)
def test_answers_that_are_lost_everywhere_are_missing_at_the_booked_cost(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=ROWS, size=SIZE).code == 0
    folder, spent, bought = scene.run_folder, scene.status()["spent_usd"], scene.billed()
    state = read_state(folder)
    batch = next(iter(state.batches.values()))
    for path in (*answer_files(folder, batch), *folder.glob(f"raw/{batch.nonce}*")):
        path.write_bytes(b"")
    found = salvaged(scene, "--offline")
    assert (found["answered"], found["missing"], found["findings"]) == (ROWS - SIZE, SIZE, [])
    assert scene.status()["spent_usd"] == spent
    ran = scene.run(k=ROWS, size=SIZE)  # fetches them again, free of charge
    assert (ran.code, ran.report["answered"], scene.billed()) == (0, ROWS, bought), ran
    assert scene.program("audit").code == 0
    scene.audit(status=True)


@row(147)
def test_a_run_without_damage_is_left_alone(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=SIZE, size=SIZE).code == 0
    before = scene.audit()["snapshot"]
    for words in (("--offline",), ()):
        assert not salvaged(scene, *words)["needed"]
    scene.audit(before=before)


@row(147)
def test_result_files_of_no_batch_are_set_aside(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=SIZE, size=SIZE).code == 0
    folder = scene.run_folder
    shutil.copy(next(folder.glob("raw/*")), folder / "raw" / "0123456789-output.jsonl.zst")
    found = salvaged(scene)
    assert found["needed"]
    assert (folder / "quarantine" / "salvaged-0123456789-output.jsonl.zst").exists()
    assert scene.program("audit").code == 0
    assert scene.run(k=SIZE, size=SIZE).code == 0
    scene.audit(status=True)
