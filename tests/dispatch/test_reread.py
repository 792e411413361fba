"""Lines that an older version could not read are recovered from the stored bytes, without a call and without money."""

import contextlib
import io
from collections import Counter

import msgspec
import pytest

from batchbench.cli import main
from batchbench.core.store import Store
from batchbench.providers import openai
from batchbench.providers.interface import Line
from batchbench.report.gather import read
from batchbench.runs.folder import read_state
from batchbench.runs.results import read_answers
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import PROBE, Scene
from tests.emulator.driver import TOKEN

ROWS = 12


def older(lines: bytes) -> list[Line]:
    """The decoder of an older version: it cannot read every third row."""
    found = openai.decode(lines)
    if any(int(line.id.split("-")[1]) % 3 == 0 for line in found):
        raise msgspec.ValidationError("Expected `int`, got `null`")
    return found


def run(scene: Scene, *words: str) -> tuple[int, str]:
    """Run the program in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([*words, "--home", str(scene.home)])
    return code, out.getvalue()


@pytest.fixture
def stored(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A run that an older version has stored."""
    scene = stage("openai")
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    with monkeypatch.context() as version:
        version.setattr(openai, "PROVIDER", msgspec.structs.replace(openai.PROVIDER, decode=older))
        code, said = run(scene, *scene.line(k=ROWS, size=ROWS)[3:-2])
    assert code == 0, said
    return scene


def outcomes(scene: Scene) -> Counter[str]:
    return Counter(read_answers(scene.run_folder, read_state(scene.run_folder)).collect()["outcome"])


def test_answers_that_could_not_be_read_are_recovered(stored: Scene) -> None:
    assert outcomes(stored) == {"answered": 8, "failed": 4}
    assert stored.status()["failed"] == 4
    before, billed, spent = stored.journal(), stored.billed(), stored.status()["spent_usd"]
    (stored.run_folder / "metrics.json").write_text("{}")  # an analysis of the answers as they were

    code, said = run(stored, "audit")
    assert (code, "4 lines can be read by now: run `batchbench audit --reread`" in said) == (65, True), said
    assert stored.journal() == before

    (stored.run_folder / "metrics.json").write_text("{}")
    code, said = run(stored, "audit", "--reread")
    assert (code, "4 rows recovered" in said) == (0, True), said
    assert [event["event"] for event in stored.journal()][len(before) :] == ["late"]
    assert outcomes(stored) == {"answered": ROWS}
    assert not (stored.run_folder / "metrics.json").exists()
    assert (stored.status()["answered"], stored.status()["failed"]) == (ROWS, 0)
    assert stored.billed() == billed
    assert round(stored.status()["spent_usd"] * 1_000_000) == stored.cost() < spent * 1_000_000
    stored.audit(status=True)


def test_a_second_reading_changes_nothing(stored: Scene) -> None:
    assert run(stored, "audit", "--reread")[0] == 0
    before = stored.journal()
    code, said = run(stored, "audit", "--reread")
    assert (code, "recovered" in said, stored.journal()) == (0, False, before), said
    done = stored.run(k=ROWS, size=ROWS)
    assert (done.code, done.report["answered"], stored.billed()) == (0, ROWS, ROWS), done


def test_a_reading_that_was_killed_is_done_again(stored: Scene) -> None:
    assert stored.program("audit", "--reread", BATCHBENCH_CRASH="before-late").code == -9
    assert stored.program("audit", "--reread").code == 0
    assert outcomes(stored) == {"answered": ROWS}
    stored.audit(status=True)


def renamed(lines: bytes) -> list[Line]:
    """The outcomes of an older version: a reply without text was a failure."""
    failed = {"outcome": "failed", "error": "no text in the answer"}
    found = openai.decode(lines)
    return [msgspec.structs.replace(line, **failed) if line.outcome == "empty" else line for line in found]


def test_outcomes_with_older_names_are_no_damage_and_are_stored_anew(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stage("openai", rules=[{"do": "line-text-null", "nth": [3, 5]}])
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    with monkeypatch.context() as version:
        version.setattr(openai, "PROVIDER", msgspec.structs.replace(openai.PROVIDER, decode=renamed))
        code, said = run(scene, *scene.line(k=ROWS, size=ROWS)[3:-2])
    assert (code, outcomes(scene)) == (0, {"answered": 10, "failed": 2}), said
    spent = scene.status()["spent_usd"]
    code, said = run(scene, "audit")
    assert (code, "note: " in said, "2 rows are read differently by this version" in said) == (0, True, True), said
    code, said = run(scene, "audit", "--reread")
    assert (code, "2 rows recovered or read anew" in said, "note: " in said) == (0, True, False), said
    assert (outcomes(scene), scene.status()["failed"]) == ({"answered": 10, "empty": 2}, 0)
    assert scene.status()["spent_usd"] == spent
    assert run(scene, "audit") == (0, said.replace("  2 rows recovered or read anew: analyze the run again\n", ""))
    scene.audit(status=True)


def test_an_analysis_from_before_the_reading_is_outdated(stored: Scene) -> None:
    folder = stored.run_folder
    assert run(stored, "analyze", *PROBE, "--model", "openai:echo", "--replicates", "10")[0] == 0
    names = ("metrics.json", "metrics.parquet", "cells.parquet")
    kept = {name: (folder / name).read_bytes() for name in names}
    answered = read_state(folder).answered()
    assert run(stored, "audit", "--reread")[0] == 0
    assert (read_state(folder).answered(), read_state(folder).rereads()) == (answered, 1)
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    [old] = read(Store(stored.home), [folder])
    assert old.provenance.outdated
    assert run(stored, "analyze", *PROBE, "--model", "openai:echo", "--replicates", "10")[0] == 0
    [new] = read(Store(stored.home), [folder])
    assert not new.provenance.outdated
