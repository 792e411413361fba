"""Pure: can the answers of a run be read? Counts by cause, and the problem in words, with what to change."""

from math import comb, sqrt

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import label_answers
from batchbench.probes.kit.probe import Params, Probe

EXPECTED = 0.90  # readable answers that a run needs for a mark
MIN_READABLE = 0.75  # in a sample of 20, fewer than 15 readable answers are no accident at the expected share
MIN_ANSWERS = 20  # fewer answers of a batch are judged together with the following ones
AT_LIMIT = ("length", "max_tokens", "model_context_window_exceeded")  # finish reasons
UNLIKELY = 0.02  # the same for fewer than 20: how unlikely so few readable answers must be
WORSE = 0.10  # a batch may have this many more unreadable answers than twice the share before it
SIGMAS = 3.0  # a batch is a sample: how far its share may be above the limit


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How many answers can be read, and why the others cannot. The causes add up to the unreadable answers."""

    answers: int = 0
    empty: int = 0  # no text, at the token limit
    silent: int = 0  # no text, although the token limit was not reached
    cut: int = 0  # cut off at the token limit, or within reasoning
    refused: int = 0  # by the model or by a filter
    unclear: int = 0  # a complete text that no reading can label
    failed: int = 0  # an error instead of an answer
    reasoning_tokens: int = 0

    @property
    def unreadable(self) -> int:
        """Answers without a label."""
        return self.empty + self.silent + self.cut + self.refused + self.unclear + self.failed

    @property
    def readable(self) -> int:
        """Answers with a label."""
        return self.answers - self.unreadable

    @property
    def unreadable_share(self) -> float:
        """The share of answers without a label; 0 without answers."""
        return self.unreadable / self.answers if self.answers else 0.0

    def __add__(self, other: "Quality") -> "Quality":
        """The counts of both together."""
        mine, others = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Quality(**{name: mine[name] + others[name] for name in mine})


def measure(probe: Probe[Params], answers: pl.DataFrame) -> Quality:
    """Count answers by whether they can be read; `answers` also has the columns of the design that labels need."""
    if probe.label is None:
        labelled = answers.select("outcome", readable=pl.col("text").str.strip_chars().str.len_bytes() > 0)
    else:
        readings = label_answers(answers.lazy(), probe).collect()
        unclosed = pl.col("reasoning").eq_missing("unclosed")  # the reference may read a label in the reasoning
        labelled = readings.select(
            outcome=pl.when(unclosed).then(pl.lit("truncated")).otherwise(pl.col("outcome").cast(pl.String)),
            readable=pl.col("careful").is_not_null() | (pl.col("label").is_not_null() & ~unclosed),
        )
    silent = (pl.col("outcome") == "empty") & ~answers["finish"].is_in(AT_LIMIT).fill_null(value=False)
    unreadable = labelled.with_columns(outcome=pl.when(silent).then(pl.lit("silent")).otherwise("outcome"))
    unreadable = unreadable.filter(~pl.col("readable").fill_null(value=False))
    counts = dict(unreadable["outcome"].value_counts().iter_rows())
    return Quality(
        answers=answers.height,
        empty=counts.get("empty", 0),
        silent=counts.get("silent", 0),
        cut=counts.get("truncated", 0),
        refused=counts.get("refused", 0) + counts.get("filtered", 0),
        unclear=counts.get("answered", 0),
        failed=counts.get("failed", 0),
    )


def problem(found: Quality, before: Quality, max_tokens: int) -> str | None:
    """Why buying more is a waste of money, and what to change; None if the answers are good enough.

    `before`: answers that were judged good enough earlier. A clear change for the worse is a problem, too.
    """
    if not found.answers:
        return None
    limit = 1 - MIN_READABLE
    few = found.answers < MIN_ANSWERS and _chance(found.answers, found.unreadable) >= UNLIKELY
    if few and found.readable and not before.answers:
        return None
    if before.answers:
        limit = min(limit, 2 * before.unreadable_share + WORSE)
        limit += SIGMAS * sqrt(limit * (1 - limit) / found.answers)
    if found.unreadable_share <= limit:
        return None
    count = f"{found.unreadable:,} of {found.answers:,} answers cannot be read"
    return f"{count} ({_causes(found)}): {_advice(found, max_tokens)}"


def _chance(answers: int, unreadable: int) -> float:
    """How likely so many unreadable answers, or more, are at the expected share."""
    counts = range(unreadable, answers + 1)
    return sum(comb(answers, count) * (1 - EXPECTED) ** count * EXPECTED ** (answers - count) for count in counts)


def _causes(found: Quality) -> str:
    named = {
        "empty": found.empty + found.silent,
        "cut off": found.cut,
        "refused": found.refused,
        "unclear": found.unclear,
        "failed": found.failed,
    }
    return ", ".join(f"{count:,} {name}" for name, count in named.items() if count)


def _advice(found: Quality, max_tokens: int) -> str:
    worst = max(found.empty + found.cut, found.silent, found.refused, found.unclear, found.failed)
    if worst == found.empty + found.cut:
        thinking = f", of which the model used {found.reasoning_tokens:,} to think" if found.reasoning_tokens else ""
        return (
            f"the limit is {max_tokens:,} tokens for an answer{thinking}; raise --max-tokens, or let the model think "
            "less with --effort or --thinking off"
        )
    if worst == found.silent:
        return "the replies have no text although they did not reach the token limit; try --thinking off or --effort"
    if worst == found.refused:
        return "the model or a filter refuses these prompts; try another model or --system"
    if worst == found.failed:
        return "the server answers with errors; correct their cause and run the same command"
    return "--max-tokens, --effort, --thinking or --system may help"
