"""Pure: compare the stored answers of a batch with what this version reads in the same result files.

A row may be read differently since it was stored: an older version could not read its line, or named its outcome
otherwise. Any other difference is damage.
"""

import msgspec
import polars as pl

from batchbench.runs.events import Stored
from batchbench.runs.ingest import UNPARSED, Ingested
from batchbench.runs.journal import rows_of

# Outcomes that older versions gave to rows with the same text and tokens, and those that this version gives them.
RENAMED = [
    *("failed>empty", "answered>empty", "truncated>empty", "failed>filtered"),
    *("answered>refused", "truncated>refused"),
]


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a batch that this version reads differently."""

    readable: list[int] = []  # their lines could not be read before
    renamed: list[int] = []  # only their outcome or their error differs
    unprocessed: list[int] = []  # rows of both kinds that the provider did not process, as their lines prove
    doubtful: int = 0  # rows whose cost an older version may have booked at less than their maximum
    damaged: int = 0  # rows that no version has made of these lines

    @property
    def settled(self) -> list[int]:
        """The rows to store anew."""
        return sorted([*self.readable, *self.renamed])


def compare(kept: pl.DataFrame, found: Ingested, stored: Stored) -> Differences:
    """What is different in `found`, which this version has read, from the answers that were `kept`."""
    if found.answers.sort("id").equals(kept.sort("id")):
        return Differences(doubtful=len(rows_of(found.unpriced)))
    both = kept.join(found.answers, on=["id", "rep"], how="left", suffix="_now", maintain_order="left")
    free = pl.col("id").is_in(rows_of(found.unprocessed))
    judged = both.select("id", verdict=_verdict(free, pl.col("id").is_in(rows_of(found.again))), free=free)
    new = found.answers.join(kept, on=["id", "rep"], how="anti")
    asked_again = new.filter(
        pl.col("id").is_in(rows_of(stored.again))
    ).height  # an older version asked for these once more

    def rows(*verdicts: str) -> list[int]:
        return judged.filter(pl.col("verdict").is_in(verdicts))["id"].to_list()

    return Differences(
        readable=rows("readable"),
        renamed=rows("renamed"),
        unprocessed=judged.filter("free", pl.col("verdict").is_in(["readable", "renamed"]))["id"].to_list(),
        doubtful=len(rows_of(found.unpriced)) + len(rows("kept")) + asked_again,
        damaged=len(rows("damaged")) + new.height - asked_again,
    )


def with_lines(kept: pl.DataFrame, found: Ingested, stored: Stored) -> pl.DataFrame:
    """The stored answers, without those whose result line is known to be lost."""
    lost = {*rows_of(stored.without_line)} - {*found.answers["id"]} if stored.without_line else set()
    return kept.filter(~pl.col("id").is_in(sorted(lost))) if lost else kept


def _verdict(free: pl.Expr, again: pl.Expr) -> pl.Expr:
    """What became of each stored row; `free`: not processed, `again`: to be asked again, both as read now."""
    read = pl.col("outcome_now").is_not_null()
    unread, unread_now = pl.col("error") == UNPARSED, pl.col("error_now").eq_missing(pl.lit(UNPARSED))
    names = ("outcome", "text", "finish", "model", "error", "logprobs")
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_now")) for name in names)
    counts = [pl.col(f"{name}_tokens") == pl.col(f"{name}_tokens_now") for name in ("input", "output")]
    uncounted = (pl.col("input_tokens_now") == 0) & (pl.col("output_tokens_now") == 0)  # an older version read a part
    return (
        pl.when(same & pl.all_horizontal(counts))
        .then(pl.lit("same"))
        .when(unread_now | (again & ~free))
        .then(pl.lit("kept"))  # this version cannot read it, or would ask for it again: what is stored is paid
        .when(unread.fill_null(value=False) & (read | free))
        .then(pl.lit("readable"))
        .when((free & (pl.col("outcome") == "failed")) | (read & _alike() & (pl.all_horizontal(counts) | uncounted)))
        .then(pl.lit("renamed"))
        .otherwise(pl.lit("damaged"))
    )


def _alike() -> pl.Expr:
    """Whether the same line can have been read as both rows, by an older version and by this one."""
    text, now = pl.col("text").fill_null(""), pl.col("text_now").fill_null("")
    outcomes = pl.concat_str("outcome", "outcome_now", separator=">")
    renamed = outcomes.is_in(RENAMED) | (pl.col("outcome") == pl.col("outcome_now"))
    tops = [pl.when(pl.col(name).list.len() > 0).then(name) for name in ("logprobs", "logprobs_now")]
    others = [pl.col(name).eq_missing(pl.col(f"{name}_now")) for name in ("finish", "model")]
    same_text = (text == now) | ((text == "") & (pl.col("outcome_now") == "refused"))
    return renamed & same_text & tops[0].eq_missing(tops[1]) & pl.all_horizontal(others)
