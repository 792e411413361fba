"""The pilot before the first batch, the watch on every batch, and rows that the server or the settings refuse."""

import msgspec
import pytest

from batchbench.analyze import quality
from batchbench.analyze.quality import Quality
from batchbench.dispatch.pilot import pilot_rows
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS, Scene

UNREADABLE = 5
ON_PILOT = ("--pilot", "auto")


def judged(scene: Scene, *words: str) -> list[str]:
    """The command line with the watch switched on, which `Scene` switches off."""
    line = scene.line(*words, k=200, size=100)
    return [word for word in line[3:] if word not in ("--anyway", "--pilot", "none")]


def test_a_pilot_asks_one_prompt_of_each_item_and_every_variant() -> None:
    rows = pilot_rows(6 * 100, variants=6)
    assert len(rows) == 20
    assert [row // 6 for row in rows] == list(range(20))
    assert {row % 6 for row in rows} == set(range(6))
    assert pilot_rows(12, variants=3) == [0, 4]
    assert pilot_rows(1, variants=1) == [0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_readable_answers_let_the_run_go_on(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    scene.model = "random"
    done = scene.program(*judged(scene))
    assert (done.code, done.report["answered"]) == (0, 200), done
    (verdict,) = scene.journal("piloted")
    assert (verdict["problem"], verdict["answers"], len(scene.journal("passed"))) == ("", 20, 20)
    assert all(event["answer"]["text"] for event in scene.journal("passed"))
    again = scene.program(*judged(scene))
    assert (again.code, len(scene.journal("passed"))) == (0, 20)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unreadable_answers_stop_the_run_before_the_first_batch(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    scene.model = "echo"
    done = scene.program(*judged(scene))
    assert (done.code, scene.accepted(), len(scene.journal("tried"))) == (UNREADABLE, [], 20), done
    assert "20 of 20 answers cannot be read (20 unclear)" in done.stderr
    assert done.stderr.count("  row ") == 5
    again = scene.program(*judged(scene))
    assert (again.code, scene.billed()) == (UNREADABLE, 20), again
    anyway = scene.program(*judged(scene), "--anyway")
    assert (anyway.code, anyway.report["answered"], scene.billed()) == (0, 200, 220), anyway
    assert scene.program(*judged(scene)).code == UNREADABLE
    scene.audit()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_pilot_can_be_the_first_batch(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    done = scene.program(*judged(scene), "--pilot", "batch")
    assert (done.code, [event["rows"] for event in scene.journal("intent")]) == (UNREADABLE, [20]), done
    anyway = scene.program(*judged(scene), "--pilot", "batch", "--anyway")
    assert (anyway.code, anyway.report["answered"], scene.billed()) == (0, 200, 200), anyway
    scene.audit()


def test_a_pilot_stays_within_the_budget(stage: Stage) -> None:
    scene = stage("openai")
    none = scene.program(*judged(scene), "--budget", "0.00001", "--anyway")
    assert (none.code, scene.billed()) == (3, 0), none
    few = scene.program(*judged(scene), "--budget", "0.0005", "--anyway")
    assert few.code == 3, few
    assert 1 <= len(scene.journal("passed")) < 20
    assert scene.cost() <= 500
    scene.audit()


def test_a_run_without_readable_answers_never_ends_well(stage: Stage) -> None:
    scene = stage("openai")
    done = scene.program(*judged(scene), "--pilot", "none")
    assert done.code == UNREADABLE, done
    assert len(scene.accepted()) < 3
    assert "--anyway" in done.stderr


def test_a_model_that_stops_answering_is_noticed(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-thoughts-only", "nth": [*range(41, 101)]}])
    scene.model = "random"
    done = scene.program(*judged(scene), "--pilot", "none")
    assert done.code == UNREADABLE, done
    assert (done.report["answered"] % 40, done.report["empty"] % 60) == (0, 0), done
    assert done.report["empty"] > 0


@pytest.mark.parametrize("words", [("--pilot", "batch"), ("--pilot", "auto")])
def test_a_batch_that_failed_as_pilot_stops_every_later_start(stage: Stage, words: tuple[str, str]) -> None:
    scene = stage("openai")
    first = scene.program(*judged(scene), "--pilot", "batch")
    again = scene.program(*judged(scene), *words)
    assert (first.code, again.code, scene.billed()) == (UNREADABLE, UNREADABLE, 20), again
    assert again.stderr.count("  row ") == 5


def test_a_pilot_batch_is_judged_also_after_a_crash(stage: Stage) -> None:
    scene = stage("openai")
    scene.program(*judged(scene), "--pilot", "batch", BATCHBENCH_CRASH="after-stored:1")
    again = scene.program(*judged(scene), "--pilot", "batch")
    assert (again.code, scene.billed()) == (UNREADABLE, 20), again


@pytest.mark.full
def test_a_pilot_batch_without_answers_is_followed_by_another(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "expire-none", "seconds": 0.1}])
    few = ["20" if word == "200" else word for word in judged(scene)]
    done = scene.program(*few, "--pilot", "batch")
    assert (done.code, scene.billed()) == (6, 0), done
    assert {event["rows"] for event in scene.journal("intent")} == {4}


def test_a_restart_does_not_buy_more_unreadable_answers(stage: Stage) -> None:
    scene = stage("openai")
    first = scene.program(*judged(scene), "--pilot", "none")
    billed = scene.billed()
    again = scene.program(*judged(scene), "--pilot", "none")
    assert (first.code, again.code, scene.billed()) == (UNREADABLE, UNREADABLE, billed), again


def test_refused_prompts_count_as_unreadable(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "403-flagged", "on": "chat", "p": 0.5}])
    scene.model = "random"
    done = scene.program(*judged(scene))
    assert (done.code, scene.accepted()) == (UNREADABLE, []), done
    assert "refused)" in done.stderr


def test_a_model_for_batches_only_needs_a_pilot_batch(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "400-batch-only", "on": "chat"}])
    scene.model = "random"
    done = scene.program(*judged(scene))
    assert (done.code, scene.billed(), "pass --pilot batch" in done.stderr) == (1, 0, True), done
    assert scene.program(*judged(scene), "--pilot", "batch").code == 0


def test_a_larger_run_asks_the_rest_of_its_pilot(stage: Stage) -> None:
    scene = stage("openai")
    few = ["20" if word == "200" else word for word in judged(scene)]
    assert scene.program(*few).code == UNREADABLE
    assert len(scene.journal("passed")) == 4
    assert scene.program(*judged(scene)).code == UNREADABLE
    assert (len(scene.journal("passed")), scene.billed()) == (20, 20)


def test_an_answer_that_costs_more_than_it_can_stops_the_pilot(stage: Stage) -> None:
    scene = stage("openai", rules=[{"do": "line-usage-huge", "on": "chat"}])
    scene.model = "random"
    done = scene.program(*judged(scene))
    assert (done.code, len(scene.journal("passed"))) == (UNREADABLE, 1), done
    assert "check --price" in done.stderr
    assert scene.accepted() == []


class TestVerdict:
    GOOD = Quality(answers=20)

    def test_three_quarters_must_be_readable(self) -> None:
        assert quality.problem(Quality(answers=20, unclear=5), Quality(), 300) is None
        assert "6 of 20" in (quality.problem(Quality(answers=20, unclear=6), Quality(), 300) or "")

    @pytest.mark.parametrize(("answers", "unclear"), [(2, 1), (4, 2), (10, 3), (19, 5)])
    def test_few_answers_stop_nothing_that_may_be_an_accident(self, answers: int, unclear: int) -> None:
        assert quality.problem(Quality(answers=answers, unclear=unclear), Quality(), 300) is None
        assert quality.problem(Quality(answers=answers, unclear=answers), Quality(), 300) is not None

    def test_no_answers_are_no_problem(self) -> None:
        assert quality.problem(Quality(), Quality(), 300) is None

    @pytest.mark.parametrize(
        ("cause", "advice"),
        [
            ({"empty": 20}, "raise --max-tokens"),
            ({"cut": 12, "unclear": 8}, "--effort"),
            ({"refused": 20}, "refuses these prompts"),
            ({"unclear": 20}, "--system may help"),
            ({"failed": 20}, "answers with errors"),
            ({"silent": 20}, "--thinking off"),
        ],
    )
    def test_the_advice_fits_the_cause(self, cause: dict[str, int], advice: str) -> None:
        assert advice in (quality.problem(Quality(answers=20, **cause), Quality(), 300) or "")

    def test_the_share_of_thinking_is_named(self) -> None:
        found = Quality(answers=20, empty=20, reasoning_tokens=300)
        assert "the model used 300 to think" in (quality.problem(found, Quality(), 300) or "")

    def test_a_sudden_change_for_the_worse_is_a_problem(self) -> None:
        before = Quality(answers=10_000, unclear=100)
        assert quality.problem(Quality(answers=1000, unclear=120), before, 300) is None
        assert quality.problem(Quality(answers=1000, empty=200), before, 300) is not None

    def test_a_steady_share_of_unreadable_answers_is_no_sudden_change(self) -> None:
        before = Quality(answers=10_000, unclear=2000)
        assert quality.problem(Quality(answers=1000, unclear=220), before, 300) is None

    def test_counts_add_up(self) -> None:
        both = Quality(answers=3, cut=1) + Quality(answers=2, empty=1)
        assert (both.answers, both.readable, both.unreadable) == (5, 3, 2)
        assert msgspec.structs.replace(both, answers=0).unreadable_share == 0.0
