"""Pure: a few example answers for each label, chosen by position and not by content.

Answers on which the two readings differ come first.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from batchbench.analyze.labelled_answers import Example

EXAMPLES_PER_LABEL = 3
MAX_DIFFERING = 6  # examples of answers on which the readings differ
MAX_CHARACTERS = 600  # of a prompt or an answer


def pick(labelled: pl.DataFrame, variants: int, answers: pl.LazyFrame, prompts: Sequence[Path]) -> list[Example]:
    """The first answers of each label and the first undetected ones; manifest rows are in random order already."""
    first = labelled.filter(pl.col("rep") == 0, pl.col("outcome") != "failed")
    differing = first.filter(pl.col("label").cast(pl.String).ne_missing(pl.col("careful").cast(pl.String)))
    lowest = first.group_by("label").agg(pl.col("id").bottom_k(EXAMPLES_PER_LABEL * variants))
    lowest = lowest.sort("label", nulls_last=True)
    groups = [(differing["id"].bottom_k(MAX_DIFFERING * variants).to_list(), MAX_DIFFERING)]
    groups += [(own, EXAMPLES_PER_LABEL) for _, own in lowest.rows()]
    chosen = dict.fromkeys(row for own, most in groups for row in _from_different_items(sorted(own), variants, most))
    ids = pl.lit(pl.Series(list(chosen), dtype=pl.UInt32).implode())
    labels = first.filter(pl.col("id").is_in(ids)).select("id", pl.col("label", "careful").cast(pl.String))
    texts = answers.filter(pl.col("rep") == 0, pl.col("id").is_in(ids)).select("id", "outcome", answer=_clipped("text"))
    wanted = pl.scan_parquet(list(prompts), glob=False).filter(pl.col("id").is_in(ids))
    asked = wanted.select("id", prompt=_clipped("prompt"))
    joined = texts.join(asked, on="id").join(labels.lazy(), on="id").collect()
    found = {row.pop("id"): row for row in joined.rows(named=True)}
    return [Example(**found[row]) for row in chosen if row in found]


def _from_different_items(rows: list[int], variants: int, most: int) -> Iterator[int]:
    """One row from each of the first items: the first row of one item, the second row of the next, and so on."""
    items: dict[int, list[int]] = {}
    for row in rows:
        items.setdefault(row // variants, []).append(row)
    for number, own in enumerate(list(items.values())[:most]):
        yield own[number % len(own)]


def _clipped(name: str) -> pl.Expr:
    text = pl.col(name).fill_null("")
    return pl.when(text.str.len_chars() > MAX_CHARACTERS).then(text.str.head(MAX_CHARACTERS) + "…").otherwise(text)
