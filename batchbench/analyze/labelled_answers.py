"""Pure: answers with the labels that a probe's expressions give them, from a run or from a file.

There are two readings. `label` is the reference reading, `careful` the careful reading; null means undetected.
"""

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from batchbench.errors import UsageError
from batchbench.probes.kit.final_answer import reasoning
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.results import LOGPROBS, OUTCOMES
from batchbench.stats import cells

ANSWER_COLUMNS = ("text", "logprobs")  # that a label expression may use, besides columns of the design
Step = Mapping[str, pl.Expr]
TYPES = {"logprobs": LOGPROBS}  # of columns that are not text

READ_COLUMNS = ("outcome", "label", "careful", "reasoning")  # what is read in each answer, besides scores


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the answers, for metrics.json and for the stamps on every output."""

    model: str  # or the path of the file
    answers: str = ""  # digest of the labelled answers, independent of batches; for a file, the file's digest
    stored: int = 0  # number of answers in the run at the time of the analysis
    rereads: int = 0  # how often its lines had been read again by then
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
    careful: str | None = None  # the label by the careful reading


class LabelledAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one run or file: a row per answer, without its text, and the design of each item."""

    origin: Origin
    answers: (
        pl.DataFrame
    )  # item, variant, rep, inner stratum (if the probe has one), and the columns of `label_answers`
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
    return root_names([*probe.steps, {"": label_expression(probe), **probe.scores}])


def bound(probe: Probe[Params], params: Params) -> Probe[Params]:
    """The probe with the careful reading for these parameters; an unbound probe uses their default values."""
    steps = probe.careful_reading(params)[len(probe.steps) : -1]
    return msgspec.structs.replace(probe, careful_steps=steps)


def careful_columns(probe: Probe[Params]) -> list[str]:
    """The columns that only the careful reading needs."""
    names = root_names(probe.careful_reading(probe.params()))
    return [name for name in names if name not in input_columns(probe)]


def root_names(steps: Sequence[Step]) -> list[str]:
    """The columns that the steps use but do not compute."""
    needed: list[str] = []
    computed: set[str] = set()
    for step in steps:
        roots = [name for expression in step.values() for name in expression.meta.root_names()]
        needed += [name for name in roots if name not in computed]
        computed |= step.keys()
    return list(dict.fromkeys(needed))


def label_answers(answers: pl.LazyFrame, probe: Probe[Params], *keep: str | pl.Expr) -> pl.LazyFrame:
    """Outcome, label by both readings, reasoning and scores of each answer; a failed request has only an outcome.

    A text that a filter of the provider cut off has no label. `reasoning` is closed or unclosed if the text contains a
    model's reasoning, and null if it does not. A column that only the careful reading needs may be missing.
    """
    known = answers.collect_schema()
    absent = [name for name in [*careful_columns(probe), *ANSWER_COLUMNS] if name not in known]
    answers = answers.with_columns(pl.lit(None, TYPES.get(name, pl.String)).alias(name) for name in absent)
    received, outcome = pl.col("outcome") != "failed", pl.col("outcome").cast(pl.String)
    complete = received & (pl.col("outcome") != "filtered")
    blank = pl.col("text").fill_null("").str.contains(r"^[\s\u200b-\u200d\u2060\ufeff]*$")
    if "logprobs" in input_columns(probe):
        # Only the first token was requested, so such an answer is complete although the provider calls it truncated.
        scored = pl.col("logprobs").is_not_null()
        outcome = pl.when((outcome == "truncated") & scored).then(pl.lit("answered")).otherwise(outcome)
        blank &= ~scored
    outcome = pl.when((outcome == "answered") & blank).then(pl.lit("empty")).otherwise(outcome)
    steps, careful = _careful(probe)
    for step in steps:
        answers = answers.with_columns(**step)
    return answers.select(
        *keep,
        outcome=outcome.cast(pl.Enum(OUTCOMES)),
        label=pl.when(complete).then(label_expression(probe)),
        careful=pl.when(complete).then(careful),
        reasoning=pl.when(received).then(reasoning(pl.col("text"))),
        **{name: pl.when(received).then(score).cast(pl.Float64) for name, score in probe.scores.items()},
    )


def _careful(probe: Probe[Params]) -> tuple[Sequence[Step], pl.Expr]:
    """The steps for all answers, and the careful label.

    An expression takes time for each row, also for null. So the steps behind `careful_exact` are applied only to the
    rows where it is null, in a table of these rows.
    """
    *steps, last = probe.careful_reading(probe.params())
    labels = pl.Enum(probe.labels)
    label = last["careful"].cast(labels)
    first = next((number for number, step in enumerate(steps, 1) if probe.careful_exact in step), None)
    if probe.careful_exact is None or first is None:
        return steps, label
    exact = pl.col(probe.careful_exact)

    def read(rows: pl.Series) -> pl.Series:
        table = rows.struct.unnest()
        doubtful = table.filter(exact.is_null())
        for step in steps[first:]:
            doubtful = doubtful.with_columns(**step)
        places = table.select(exact.is_null().arg_true()).to_series()
        return table.select(exact.cast(labels)).to_series().scatter(places, doubtful.select(label).to_series())

    inputs = dict.fromkeys([*root_names([*steps[first:], last]), probe.careful_exact])
    return steps[:first], pl.struct(list(inputs)).map_batches(read, return_dtype=labels, is_elementwise=True)


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
