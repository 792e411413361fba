"""Pure: a few answers to look at, of each label, chosen without looking at what they say."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from batchbench.analyze.sample import Example

EACH = 3  # examples of a label
LONGEST = 600  # letters kept of a prompt or an answer


def pick(attempts: pl.DataFrame, variants: int, answers: pl.LazyFrame, prompts: Sequence[Path]) -> list[Example]:
    """The first answers of each label, and of those nobody could read; rows stand in a random order already."""
    first = attempts.filter(pl.col("rep") == 0, pl.col("outcome") != "failed")
    lowest = first.group_by("label").agg(pl.col("id").bottom_k(EACH * variants)).sort("label", nulls_last=True)
    chosen = {row: label for label, rows in lowest.rows() for row in _spread(sorted(rows), variants)}
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


def _spread(rows: list[int], variants: int) -> Iterator[int]:
    """One row of each of the first items: the first prompt of one, the second of the next, where they have it."""
    items: dict[int, list[int]] = {}
    for row in rows:
        items.setdefault(row // variants, []).append(row)
    for place, several in enumerate(list(items.values())[:EACH]):
        yield several[place % len(several)]


def _clipped(name: str) -> pl.Expr:
    text = pl.col(name).fill_null("")
    return pl.when(text.str.len_chars() > LONGEST).then(text.str.head(LONGEST) + "…").otherwise(text)
