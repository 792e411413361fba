"""Pure: a few example answers for each label, chosen by position and not by content."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from batchbench.analyze.labelled_answers import Example

EXAMPLES_PER_LABEL = 3
MAX_CHARACTERS = 600  # of a prompt or an answer


def pick(labelled: pl.DataFrame, variants: int, answers: pl.LazyFrame, prompts: Sequence[Path]) -> list[Example]:
    """The first answers of each label and the first undetected ones; manifest rows are in random order already."""
    first = labelled.filter(pl.col("rep") == 0, pl.col("outcome") != "failed")
    lowest = first.group_by("label").agg(pl.col("id").bottom_k(EXAMPLES_PER_LABEL * variants))
    lowest = lowest.sort("label", nulls_last=True)
    chosen = {row: label for label, rows in lowest.rows() for row in _from_different_items(sorted(rows), variants)}
    ids = pl.lit(pl.Series(list(chosen), dtype=pl.UInt32).implode())
    texts = answers.filter(pl.col("rep") == 0, pl.col("id").is_in(ids)).select("id", "outcome", answer=_clipped("text"))
    wanted = pl.scan_parquet(list(prompts), glob=False).filter(pl.col("id").is_in(ids))
    asked = wanted.select("id", prompt=_clipped("prompt"))
    found = {row["id"]: row for row in texts.join(asked, on="id").collect().iter_rows(named=True)}
    return [
        Example(label=label, outcome=found[row]["outcome"], prompt=found[row]["prompt"], answer=found[row]["answer"])
        for row, label in chosen.items()
        if row in found
    ]


def _from_different_items(rows: list[int], variants: int) -> Iterator[int]:
    """One row from each of the first items: the first row of one item, the second row of the next, and so on."""
    items: dict[int, list[int]] = {}
    for row in rows:
        items.setdefault(row // variants, []).append(row)
    for number, own in enumerate(list(items.values())[:EXAMPLES_PER_LABEL]):
        yield own[number % len(own)]


def _clipped(name: str) -> pl.Expr:
    text = pl.col(name).fill_null("")
    return pl.when(text.str.len_chars() > MAX_CHARACTERS).then(text.str.head(MAX_CHARACTERS) + "…").otherwise(text)
