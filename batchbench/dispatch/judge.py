"""Look at answers before and while money is spent: stop buying if they cannot be read.

Answers are judged three times: those of the pilot before the first batch, a sample of everything that is stored at
each start, and a sample of every batch. Nothing is remembered: the same answers get the same verdict at every start.
"""

import msgspec
import polars as pl
from anyio import to_thread

from batchbench.analyze.labelled_answers import ANSWER_COLUMNS, bound, careful_columns, input_columns
from batchbench.analyze.quality import MIN_ANSWERS, Quality, measure, problem
from batchbench.core.text import sanitize
from batchbench.dispatch.state import Dispatch, Stop
from batchbench.errors import UnreadableAnswers
from batchbench.probes import load_probe
from batchbench.runs.folder import Run
from batchbench.runs.journal import RunState
from batchbench.runs.results import sample_answers

QUESTIONS = 20  # of a pilot
PART_OF_RUN = 5  # a pilot asks at most a fifth of the run's prompts
WATCHED = 1000  # answers of a batch that are judged
SHOWN, SHOWN_CHARACTERS = 5, 160  # answers in the message, and how much of each
USUAL_ENDS = ("stop", "end_turn")


async def judge_stored(dispatch: Dispatch) -> Stop:
    """Judge the answers that earlier processes stored, so that a restart does not buy more of the same."""
    if dispatch.plan.anyway:
        return None
    answers = await to_thread.run_sync(sample_answers, dispatch.run.folder, dispatch.run.state)
    found = await to_thread.run_sync(run_quality, dispatch.run, answers)
    if found.answers < (1 if dispatch.plan.pilot == "batch" else MIN_ANSWERS):
        return None
    return _verdict(dispatch, found, answers)


async def watch(dispatch: Dispatch, answers: pl.DataFrame) -> Stop:
    """Judge answers that were just stored. The first answers of a run with `--pilot batch` are its pilot."""
    if dispatch.plan.anyway or answers.is_empty():
        return None
    sample = answers.sample(min(WATCHED, answers.height), seed=0)
    found = dispatch.unjudged + await to_thread.run_sync(run_quality, dispatch.run, sample)
    is_pilot = dispatch.plan.pilot == "batch" and not dispatch.judged.answers
    if found.answers < MIN_ANSWERS and not is_pilot:
        dispatch.unjudged = found
        return None
    dispatch.unjudged = Quality()
    return _verdict(dispatch, found, sample)


def pilot_waits(dispatch: Dispatch) -> bool:
    """Whether the first batch is a pilot that has not been judged yet, so that no other batch is bought."""
    return pilot_size(dispatch) is not None and bool(dispatch.run.state.pending())


def pilot_size(dispatch: Dispatch) -> int | None:
    """The largest number of requests in the next batch if it is a pilot; None if it is not."""
    if dispatch.plan.pilot != "batch" or _has_answers(dispatch.run.state):
        return None
    return question_count(dispatch.plan.rows)


def question_count(rows: int) -> int:
    """How many questions the pilot of a run has."""
    return min(QUESTIONS, max(1, rows // PART_OF_RUN))


def run_quality(run: Run, answers: pl.DataFrame) -> Quality:
    """Judge answers of a run: how many can be read."""
    if answers.is_empty():
        return Quality()
    probe = load_probe(run.manifest.probe)
    probe = bound(probe, msgspec.convert(run.manifest.params, probe.params))
    inputs = [*input_columns(probe), *careful_columns(probe)] if probe.label is not None else []
    if needed := [name for name in inputs if name not in ANSWER_COLUMNS]:
        answers = answers.join(run.design(answers["id"].unique().sort().to_list(), needed), on="id")
    return measure(probe, answers)


def unreadable(message: str, answers: pl.DataFrame) -> UnreadableAnswers:
    """The reason to stop, with some of the answers."""
    stop = UnreadableAnswers(message)
    for answer in answers.head(SHOWN).iter_rows(named=True):
        end = f" [{answer['finish']}]" if answer["finish"] not in (None, *USUAL_ENDS) else ""
        stop.add_note(f"  row {answer['id']}: {_shown(answer['text'], answer['error'])}{end}")
    return stop


def _verdict(dispatch: Dispatch, found: Quality, answers: pl.DataFrame) -> Stop:
    """The reason to stop if these answers cannot be read; otherwise later answers are compared with them."""
    if cause := problem(found, dispatch.judged, dispatch.run.target.max_tokens):
        message = f"{cause}. Nothing more is bought; `batchbench answers` lists the answers, --anyway continues"
        return unreadable(message, answers)
    dispatch.judged += found
    return None


def _has_answers(state: RunState) -> bool:
    return any(batch.stored is not None and sum(batch.stored.outcomes.values()) for batch in state.batches.values())


def _shown(text: str | None, error: str | None) -> str:
    """An answer for people, on one line."""
    words = " ".join(sanitize(text or "").split())
    if not words:
        return f"({sanitize(error or 'no text')[:SHOWN_CHARACTERS]})"
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]} …"
