"""Files of results that a person imports."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Ran, Scene
from tests.faults.rows import row

Json = dict[str, Any]
K = 12


def exported(scene: Scene) -> list[Json]:
    """Export a batch, and answer it as a server would."""
    assert scene.run("-o", str(scene.folder / "out"), k=K, size=K, command="export").code == 0
    (file,) = (scene.folder / "out").iterdir()
    return [answer(json.loads(line)["custom_id"]) for line in file.read_text().splitlines()]


def answer(custom_id: str, text: str = "yes") -> Json:
    usage = {"prompt_tokens": 10, "completion_tokens": 1}
    body = {"model": "echo", "choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


def imported(scene: Scene, lines: list[Json], *words: str) -> Ran:
    path = scene.folder / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return scene.program("import", str(path), *words)


def files(scene: Scene) -> set[Path]:
    return {path for path in scene.run_folder.rglob("*") if path.is_file()}


@pytest.mark.full
@row(124)
@pytest.mark.parametrize("words", [(), ("--partial",)])
@pytest.mark.parametrize("field", ["text", "response"])
def test_a_file_of_another_shape_is_refused_and_the_right_one_accepted(
    stage: Stage, field: str, words: tuple[str, ...]
) -> None:
    scene = stage("openai")
    lines = exported(scene)
    before = files(scene), scene.journal()
    wrong = imported(scene, [{"custom_id": line["custom_id"], field: "yes"} for line in lines], *words)
    assert (wrong.code, wrong.stdout, len(wrong.stderr.splitlines())) == (65, "", 1), wrong
    assert 'Expected: {"custom_id": "ID", "response": {"status_code": 200, "body": {"choices"' in wrong.stderr
    assert (files(scene), scene.journal()) == before
    done = imported(scene, lines)
    assert (done.code, scene.status()["answered"]) == (0, K), done
    assert scene.program("audit").code == 0


@pytest.mark.full
@row(124)
def test_a_later_import_adds_the_missing_rows_once(stage: Stage) -> None:
    scene = stage("openai")
    lines = exported(scene)
    assert imported(scene, lines[:5], "--partial").code == 6
    before = scene.status()["spent_usd"]
    again = imported(scene, lines[:5], "--partial")
    assert (again.code, "imported before" in again.stderr) == (65, True), again
    short = imported(scene, lines[4:8])
    assert (short.code, "4 of 12 answers are not in them" in short.stderr) == (65, True), short
    other = [answer(lines[4]["custom_id"], "no"), *lines[5:8]]  # the first answer to a row stays
    assert imported(scene, other, "--partial").code == 6
    assert scene.program("audit").code == 0
    done = imported(scene, lines)
    assert (done.code, done.stdout.count("12 answers, 0 missing")) == (0, 1), done
    assert [len(event["parts"]) for event in scene.journal("late")] == [2, 2]
    status = scene.status()
    assert (status["answered"], status["missing"], status["reserved_usd"]) == (K, 0, 0)
    assert 0 < status["spent_usd"] < before  # missing rows were booked at their maximum
    assert (imported(scene, lines).code, scene.status()["answered"]) == (2, K)
    audited = scene.program("audit", "--json")
    assert (audited.code, json.loads(audited.stdout)[0]["rows"]) == (0, K), audited


@pytest.mark.full
@row(124)
def test_rows_that_were_asked_again_are_not_imported_as_well(stage: Stage) -> None:
    scene = stage("openai")
    lines = exported(scene)
    assert imported(scene, lines[:8], "--partial").code == 6
    assert scene.run("--rebuy-missing", "-o", str(scene.folder / "more"), k=K, size=2, command="export").code == 0
    names = list((scene.folder / "more").iterdir())
    assert len(names) == 2
    late = imported(scene, lines)
    assert (late.code, "imported before" in late.stderr) == (65, True), late
    ids = [json.loads(line)["custom_id"] for path in names for line in path.read_text().splitlines()]
    assert imported(scene, [answer(one) for one in ids]).code == 0
    assert (scene.status()["answered"], scene.program("audit").code) == (K, 0)
