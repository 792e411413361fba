"""Pure: answers that have been read, wherever they came from."""

import msgspec
import polars as pl

from batchbench.errors import UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.answers import LOGPROBS, OUTCOMES
from batchbench.stats import cells

READ = ("text", "logprobs")  # the columns of an answer that can be read


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where answers come from, for the record and for the stamps on every output."""

    model: str  # or the file
    answers: str = ""  # digest of the answers as they were read, however they were cut into batches; or of the file
    stored: int = 0  # answers that the run had when they were read
    manifest: str | None = None  # the folder's name, which is a digest
    prices: str | None = None
    sample_data: bool = False
    emulated: bool = False


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to look at, long texts cut short; a label of null means that nothing could be read from it."""

    label: str | None
    outcome: str
    prompt: str
    answer: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Answers, read: a row per attempt without its text, and a row per item in the order of `item`."""

    origin: Origin
    attempts: pl.DataFrame  # item, variant, outcome, label, scores; and the inner stratum, if there is one
    design: pl.DataFrame  # the other strata and the covariates; `key` where items have names of their own
    asked: pl.DataFrame  # strata, and how many attempts were asked for with them
    examples: list[Example] = []
    models: dict[str, int] = {}  # whom the answers say that they are of, and how many


def readable(probe: Probe[Params]) -> pl.Expr:
    """The expression that reads the probe's answers."""
    if probe.label is None or probe.metrics is None:
        raise UsageError(f"answers to {probe.name} cannot be analyzed by this version")
    return probe.label


def inputs(probe: Probe[Params]) -> list[str]:
    """The columns that the answers' reading depends on: of the answer, and of the design."""
    needed: list[str] = []
    made: set[str] = set()
    for step in (*probe.steps, {"": readable(probe), **probe.scores}):
        roots = [name for expression in step.values() for name in expression.meta.root_names()]
        needed += [name for name in roots if name not in made]
        made |= step.keys()
    return list(dict.fromkeys(needed))


def labelled(answers: pl.LazyFrame, probe: Probe[Params], *keep: str | pl.Expr) -> pl.LazyFrame:
    """An attempt's outcome, label and scores; a failed one has none of these, whatever text came with it."""
    came, outcome = pl.col("outcome") != "failed", pl.col("outcome")
    if "logprobs" in inputs(probe):
        if "logprobs" not in answers.collect_schema():
            answers = answers.with_columns(logprobs=pl.lit(None, LOGPROBS))
        # The first token is all that was wanted, so nothing is missing behind it.
        whole = (outcome == "truncated") & pl.col("logprobs").is_not_null()
        outcome = pl.when(whole).then(pl.lit("answered")).otherwise(outcome.cast(pl.String))
    for step in probe.steps:
        answers = answers.with_columns(**step)
    return answers.select(
        *keep,
        outcome=outcome.cast(pl.Enum(OUTCOMES)),
        label=pl.when(came).then(readable(probe)),
        **{name: pl.when(came).then(score).cast(pl.Float64) for name, score in probe.scores.items()},
    )


def tallies_of(probe: Probe[Params]) -> list[str]:
    """The names under which an item's labels are counted."""
    return [f"{value}/{label}" for value in _inner_values(probe) for label in probe.labels] or list(probe.labels)


def scores_of(probe: Probe[Params]) -> list[str]:
    """The names under which an item's scores are kept."""
    return [f"{value}/{score}" for value in _inner_values(probe) for score in probe.scores] or list(probe.scores)


def items_of(probe: Probe[Params], sample: Sample) -> pl.DataFrame:
    """One row per item that has come back: its tallies, attempts, strata and covariates."""
    items = cells.tally(sample.attempts, probe.labels, probe.inner, _inner_values(probe), list(probe.scores))
    return items.hstack(at(sample.design, items["item"]))


def at(table: pl.DataFrame, rows: pl.Series) -> list[pl.Series]:
    """The columns of `table`, which may have none, at those rows."""
    return [column.gather(rows) for column in table.get_columns()]


def _inner_values(probe: Probe[Params]) -> list[str]:
    return [str(value) for value in probe.values[probe.inner]] if probe.inner else []
