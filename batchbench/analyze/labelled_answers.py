"""Pure: answers with the labels that a probe's expression gives them, from a run or from a file."""

import msgspec
import polars as pl

from batchbench.errors import UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.results import LOGPROBS, OUTCOMES
from batchbench.stats import cells

ANSWER_COLUMNS = ("text", "logprobs")  # that a label expression may use, besides columns of the design


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the answers, for metrics.json and for the stamps on every output."""

    model: str  # or the path of the file
    answers: str = ""  # digest of the labelled answers, independent of batches; for a file, the file's digest
    stored: int = 0  # number of answers in the run at the time of the analysis
    manifest: str | None = None  # name of the manifest's folder, which contains a digest
    prices: str | None = None
    sample_data: bool = False
    emulated: bool = False


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to show to people, with long texts cut. A label of None means undetected."""

    label: str | None
    outcome: str
    prompt: str
    answer: str


class LabelledAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one run or file: a row per answer, without its text, and the design of each item."""

    origin: Origin
    answers: pl.DataFrame  # item, variant, rep, outcome, label, scores; and the inner stratum, if the probe has one
    design: pl.DataFrame  # row i describes item i: other strata, covariates; `key` if the file names its items
    asked: pl.DataFrame  # strata, and the number of requests (`asked`) for each combination of them
    examples: list[Example] = []
    models: dict[str, int] = {}  # model names that the answers themselves state, with the number of answers

    @property
    def stamps(self) -> list[str]:
        """The warnings that every output of these answers has to show."""
        received, asked = self.answers.height, int(self.asked["asked"].sum())
        stamps = ["EMULATED"] if self.origin.emulated else []
        stamps += ["SAMPLE DATA"] if self.origin.sample_data else []
        return stamps + ([f"UNFINISHED: {received:,} of {asked:,} answers"] if received < asked else [])


def label_expression(probe: Probe[Params]) -> pl.Expr:
    """The probe's label expression; raises UsageError if the probe cannot be analyzed."""
    if probe.label is None or probe.metrics is None:
        raise UsageError(f"answers to {probe.name} cannot be analyzed by this version")
    return probe.label


def input_columns(probe: Probe[Params]) -> list[str]:
    """The columns of the answers and of the design that label and scores are computed from."""
    needed: list[str] = []
    computed: set[str] = set()
    for step in (*probe.steps, {"": label_expression(probe), **probe.scores}):
        roots = [name for expression in step.values() for name in expression.meta.root_names()]
        needed += [name for name in roots if name not in computed]
        computed |= step.keys()
    return list(dict.fromkeys(needed))


def label_answers(answers: pl.LazyFrame, probe: Probe[Params], *keep: str | pl.Expr) -> pl.LazyFrame:
    """Outcome, label and scores of each answer; a failed request has neither label nor scores."""
    received, outcome = pl.col("outcome") != "failed", pl.col("outcome")
    if "logprobs" in input_columns(probe):
        if "logprobs" not in answers.collect_schema():
            answers = answers.with_columns(logprobs=pl.lit(None, LOGPROBS))
        # Only the first token was requested, so such an answer is complete although the provider calls it truncated.
        complete = (outcome == "truncated") & pl.col("logprobs").is_not_null()
        outcome = pl.when(complete).then(pl.lit("answered")).otherwise(outcome.cast(pl.String))
    for step in probe.steps:
        answers = answers.with_columns(**step)
    return answers.select(
        *keep,
        outcome=outcome.cast(pl.Enum(OUTCOMES)),
        label=pl.when(received).then(label_expression(probe)),
        **{name: pl.when(received).then(score).cast(pl.Float64) for name, score in probe.scores.items()},
    )


def tally_names(probe: Probe[Params]) -> list[str]:
    """The columns that count an item's labels."""
    return [f"{value}/{label}" for value in _inner_values(probe) for label in probe.labels] or list(probe.labels)


def score_names(probe: Probe[Params]) -> list[str]:
    """The columns that hold an item's mean scores."""
    return [f"{value}/{score}" for value in _inner_values(probe) for score in probe.scores] or list(probe.scores)


def tally_items(probe: Probe[Params], labelled: LabelledAnswers) -> pl.DataFrame:
    """One row per item with at least one received request: its tallies, attempts, strata and covariates."""
    items = cells.tally(labelled.answers, probe.labels, probe.inner, _inner_values(probe), list(probe.scores))
    return items.hstack(gather_columns(labelled.design, items["item"]))


def gather_columns(table: pl.DataFrame, rows: pl.Series) -> list[pl.Series]:
    """The columns of `table` at these row numbers; also works for a table without columns."""
    return [column.gather(rows) for column in table.get_columns()]


def _inner_values(probe: Probe[Params]) -> list[str]:
    return [str(value) for value in probe.values[probe.inner]] if probe.inner else []
