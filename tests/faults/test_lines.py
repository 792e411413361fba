"""Every result line becomes the answer to its request, or is quarantined and reported."""

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, PROBE, Json
from tests.faults.rows import row
from tests.faults.stories import ROWS, SIZE, Play, Story, cases, judge, play

__all__ = ["play"]


def lines(*names: str) -> list[Json]:
    """Fault rules: in every batch, the first fault changes line 1, the second line 2, and so on."""
    return [{"do": name, "nth": [place]} for place, name in enumerate(names, 1)]


MISSING = (6, ROWS, "answers are missing")
STORIES = {
    "usage that is absent or negative": Story(row(94), lines("line-usage-absent", "line-usage-negative"), full=True),
    "an absurd usage": Story(row(94), [{"do": "line-usage-huge", "nth": [3]}], 3, ROWS, "check the price"),
    "lines with extra bytes around them": Story(row(95), lines("line-bom", "line-blank", "line-crlf", "line-nan")),
    "lines that are cut or have trailing text": Story(
        row(95), lines("line-malformed", "line-trailing"), damaged=2, full=True
    ),
    "invalid characters": Story(row(96), lines("line-invalid-utf8", "line-surrogate")),
    "answers with line separators": Story(row(97), [{"do": "line-u2028", "p": 0.5}], full=True),
    "answers with control characters": Story(row(97), lines("line-u2028", "line-nul", "line-ansi")),
    "lines that come twice": Story(row(98), [{"do": "line-duplicate", "p": 0.3}], full=True),
    "answers that contradict each other": Story(row(98), [{"do": "line-conflict", "nth": [3]}], damaged=1),
    "lines that name two ids": Story(row(99), [{"do": "line-duplicate-key", "nth": [3]}], *MISSING, damaged=1),
    "lines that are missing": Story(row(100), [{"do": "line-missing", "nth": [2, 5]}], *MISSING, damaged=2),
    "lines with unknown ids": Story(
        row(101),
        lines("line-unknown-id", "line-foreign-id", "line-out-of-range", "line-null-id"),
        *MISSING,
        damaged=4,
    ),
    "a first line with an unknown id after a lost reply": Story(
        row(101),
        [{"do": "reset-after", "on": "create"}, {"do": "line-unknown-id", "nth": [1]}],
        *MISSING,
        damaged=1,
        dialects=("anthropic",),
        full=True,
    ),
    "a first line that is cut after a lost reply": Story(
        row(101), [{"do": "reset-after", "on": "create"}, {"do": "line-malformed", "nth": [1]}], damaged=1, full=True
    ),
    "lines that are both an answer and an error": Story(
        row(102), [{"do": "line-both", "nth": [1, 5, 12]}], dialects=("openai",)
    ),
    "requests that the model refuses or filters": Story(
        row(103), lines("line-refusal", "line-content-filter", "line-empty", "line-tool-call", "line-policy"), damaged=5
    ),
    "a provider that refuses every request": Story(row(103), [{"do": "line-policy"}], 0, 0, full=True),
    "answers that are cut by the token limit": Story(row(104), [{"do": "line-max-tokens", "nth": [2]}], damaged=1),
    "huge lines": Story(row(106), lines("line-huge", "line-nested", "line-huge-integer"), size=ROWS, damaged=2),
    "answers in another form": Story(
        row(107), lines("line-choices-many", "line-content-list", "line-thinking", "line-choices-none"), damaged=1
    ),
    "no credit for any line": Story(
        row(108), [{"do": "line-credit"}], 1, 0, "because of the server or the settings", size=ROWS
    ),
    "lines that fail again and again": Story(
        row(108),
        lines("line-500", "line-429", "line-timeout"),
        6,
        None,
        "--rebuy-missing asks for them again",
        full=True,
    ),
    "lines with a status of 0": Story(row(109), [{"do": "line-status-0", "nth": [3]}], dialects=("openai",), full=True),
    "lines of another format": Story(row(109), lines("line-renamed", "line-wrapped", "line-number-text"), damaged=2),
    "answers that are swapped": Story(row(110), [{"do": "line-swapped", "nth": [2, 3]}]),
}


@pytest.mark.parametrize(("name", "dialect"), cases(STORIES))
def test_a_run_survives(play: Play, name: str, dialect: str) -> None:
    judge(STORIES[name], *play(name, dialect))


@row(105)
def test_an_analysis_reports_answers_of_another_model(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-other-model", "nth": [2]}])
    assert scene.run(k=ROWS, size=SIZE).code == 0
    told = scene.program("analyze", *PROBE, "--model", "openai:echo")
    assert told.code == 0, told
    assert "answers of several models are counted together here: echo 44, some-other-model 4" in told.stdout
    scene.audit(status=True)


@row(101)
@pytest.mark.full
def test_lines_without_a_known_id_are_quarantined(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-unknown-id", "nth": [3]}])
    assert scene.run(k=ROWS, size=SIZE).code == 6
    kept = [line for file in scene.run_folder.glob("quarantine/*") for line in file.read_bytes().splitlines()]
    assert len(kept) == sum(event["quarantined"] for event in scene.journal("stored")) == ROWS // SIZE
    assert all(b'"nobody"' in line for line in kept)


@pytest.mark.full
@row(100)
def test_missing_rows_are_bought_again_only_with_rebuy_missing(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-missing", "nth": [12]}])
    assert scene.run(k=ROWS, size=SIZE).code == 6
    assert scene.run(k=ROWS, size=SIZE).code == 6
    assert len(scene.accepted()) == ROWS // SIZE
    done = scene.run("--rebuy-missing", k=ROWS, size=SIZE)
    assert (done.code, done.report["answered"]) == (0, ROWS), done
    assert scene.billed() == ROWS + ROWS // SIZE
    scene.audit(status=True)


CUT: Json = {"do": "cut-line", "first": 5}  # the number of downloads of a result file


@pytest.mark.full
@row(100)
@pytest.mark.parametrize("dialect", BOTH)
def test_late_answers_are_kept_and_their_rows_are_not_asked_again(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[CUT])
    first = scene.run(k=ROWS, size=SIZE)
    assert (first.code, first.report["answered"] + first.report["missing"]) == (6, ROWS), first
    assert 0 < first.report["answered"] < ROWS
    bought = len(scene.accepted())
    done = scene.run("--rebuy-missing", k=ROWS, size=SIZE)
    assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), done
    assert len(scene.accepted()) == bought == len(scene.journal("late"))
    assert round(done.report["spent_usd"] * 1_000_000) == scene.cost() < round(first.report["spent_usd"] * 1_000_000)
    before = scene.audit(status=True)["snapshot"]
    assert scene.program("audit").code == 0
    assert scene.run(k=ROWS, size=SIZE).code == 0
    scene.audit(status=True, before=before)


@row(100)
@pytest.mark.full
def test_a_recheck_that_finds_nothing_is_not_repeated_the_same_day(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-missing", "nth": [5]}])
    assert scene.run(k=ROWS, size=SIZE).code == 6
    stored = scene.journal("stored", "late")
    for place in ("before-looked", "torn-looked", "after-looked"):
        assert scene.run(k=ROWS, size=SIZE, crash=f"{place}:1").code == -9
    assert scene.run(k=ROWS, size=SIZE).code == 6
    lacking = {event["nonce"] for event in stored if event["missing"]}
    assert (scene.journal("stored", "late"), len(scene.journal("looked"))) == (stored, len(lacking))
    before = scene.audit(status=True)["snapshot"]
    downloads = len(scene.emulator.events("downloaded"))
    assert scene.run(k=ROWS, size=SIZE).code == 6
    scene.audit(status=True, before=before)
    assert len(scene.emulator.events("downloaded")) == downloads
