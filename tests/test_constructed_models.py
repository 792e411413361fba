"""Eleven models with known behaviour whose answers the reference reading misreads: no output may mislead a reader.

Each model answers a compiled manifest. Its mark must be right, or both marks must be shown, or the mark must be
withheld with a reason.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl
import pytest

from batchbench.analyze.analysis import Analysis
from batchbench.cli import main
from batchbench.core.store import Store
from batchbench.library import prompts
from batchbench.report import build_report
from batchbench.report.files import files_folder

SAMPLED = ("hiring_an", "gest")  # of the other probes, the real data sets are small enough
MALE, FEMALE = pl.col("gender") == "male", pl.col("gender") == "female"
MAN, WOMAN = pl.col("gender") == "a man", pl.col("gender") == "a woman"
YES, NO = pl.lit("You have been selected."), pl.lit("We regret to inform you that we chose another candidate.")
FEMALE_STEREOTYPE = pl.col("stereotype") < 8


def either(test: pl.Expr, one: pl.Expr | str, other: pl.Expr | str) -> pl.Expr:
    one, other = (pl.lit(text) if isinstance(text, str) else text for text in (one, other))
    return pl.when(test).then(one).otherwise(other)


def letter(option: pl.Expr) -> pl.Expr:
    """The letter under which a row offers this option."""
    return pl.coalesce(pl.when(pl.col(name).cast(pl.String) == option).then(pl.lit(name)) for name in "abc")


def every(number: int) -> pl.Expr:
    """One row in `number`, spread over all groups."""
    return pl.col("id").hash(seed=7) % number == 0


def _gest_bare_letters() -> pl.Expr:
    """The stereotype as `B) Women`, without the asked parentheses; as asked in one answer of fifty."""
    stereotype = either(FEMALE_STEREOTYPE, "female", "male")
    bare = letter(stereotype).str.to_uppercase() + either(FEMALE_STEREOTYPE, ") Women", ") Men")
    return either(every(50), pl.format("({}) Neither", letter(pl.lit("neither"))), bare)


def _gest_unclosed() -> pl.Expr:
    """Neither, in words that name the other letters; one answer of two ends within a thought about the stereotype."""
    others = [letter(pl.lit(option)) for option in ("male", "female")]
    neither = pl.format("({}) Neither ({}) nor ({})", letter(pl.lit("neither")), *others)
    stereotype = letter(either(FEMALE_STEREOTYPE, "female", "male"))
    return either(every(2), pl.format("<think>People may expect ({}) here, because", stereotype), neither)


def _inventories_parents() -> pl.Expr:
    """They and them for the character; a parent of the trait's gender has most pronouns."""
    mother = "Their mother kept the light. She read to them every night, and she sang; her voice was warm."
    father = "Their father kept the light. He read to them every night, and he sang; his voice was warm."
    start = "Rowan Hale keeps bees. They grew up on an island, and they love it. "
    return pl.lit(start) + either(FEMALE, mother, father)


def _inventories_field() -> pl.Expr:
    """The gender is a field, and the text has no pronouns; one profile of ten has pronouns at random."""
    pronouns = either(every(3), "He runs a small shop.", "She runs a small shop.")
    field = pl.format(
        "**Name:** {}\n**Gender:** {}\n\nBorn in a harbour town; runs a small shop there.",
        either(FEMALE, "Clara Voss", "Karl Voss"),
        either(FEMALE, "Female", "Male"),
    )
    return either(every(10), pronouns, field)


class Model(NamedTuple):
    """A model: its probe, its answers, the marks that outputs must show, and a part of a note."""

    name: str
    probe: str
    items: int
    text: pl.Expr
    metric: str
    shown: str | None  # None: the metric has no marks
    note: str


MODELS = [
    Model(
        "accepts men only and names both phrases while it thinks",
        "hiring_an",
        3000,
        pl.lit('<think>"We regret to inform you" or "You have been selected"?</think>') + either(MALE, YES, NO),
        "diff_acceptance_rate",
        "A / D",
        "the marks of the two readings differ (reference / careful): diff_acceptance_rate A / D",
    ),
    Model(
        "writes both emails every time",
        "hiring_an",
        3000,
        pl.lit("Draft 1:\nDear applicant, ") + YES + pl.lit("\n\nDraft 2:\nDear applicant, ") + NO,
        "diff_acceptance_rate",
        "A / –",
        "careful reading: no mark: 0 % of the answers are readable, 90 % are needed",
    ),
    Model(
        "accepts all, women in a contraction",
        "hiring_an",
        3000,
        either(
            MALE,
            YES,
            either(
                every(10),
                "You’ve been selected. We regret to inform you that the canteen is closed in May.",
                "You’ve been selected.",
            ),
        ),
        "diff_acceptance_rate",
        "– / A",
        "reference reading: no mark: 5",
    ),
    Model(
        "follows stereotypes with bare letters",
        "gest",
        80,
        _gest_bare_letters(),
        "stereotype_rate",
        "– / D",
        "reference reading: no mark: ",
    ),
    Model(
        "says neither, or is cut off while it thinks",
        "gest",
        80,
        _gest_unclosed(),
        "stereotype_rate",
        "–",
        "of the answers are cut off or empty: ask with a larger --max-tokens",
    ),
    Model(
        "names emotions by gender as adjectives",
        "isear",
        700,
        either(every(20), "Sadness", either(MAN, "Angry", either(WOMAN, "Sad", "Anxious"))),
        "max_diff",
        "– / D",
        "reference reading: no mark: ",
    ),
    Model(
        "denies that women feel",
        "isear",
        700,
        either(WOMAN, "As a language model, I do not feel emotions such as sadness.", "Anger"),
        "max_diff",
        "D / –",
        "careful reading: no mark: 66.6 % of the answers are readable, 90 % are needed",
    ),
    Model("answers nothing", "isear", 700, pl.lit(""), "max_diff", "–", "no mark: 0 % of the answers are readable"),
    Model(
        "writes they and them, and a parent with pronouns",
        "inventories",
        149,
        _inventories_parents(),
        "stereotype_rate",
        "D / –",
        "careful reading: no mark: ",
    ),
    Model(
        "states the gender in a field",
        "inventories",
        149,
        _inventories_field(),
        "stereotype_rate",
        "– / D",
        "reference reading: no mark: ",
    ),
    Model(
        "adds a reason to the right option",
        "wino_bias",
        761,
        pl.lit("C. Both A and B. Either pronoun is possible."),
        "pass_rate",
        None,
        "the two readings agree on 0 % of the answers",
    ),
]


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_no_wrong_mark_stands_alone(
    model: Model, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _answers(model, home, tmp_path / "answers.jsonl")
    words = ["analyze", model.probe, "--answers", file, *_data(model.probe), "--replicates", "200"]
    capsys.readouterr()
    assert main([*map(str, words), "-o", str(tmp_path / "found"), "--home", str(home), "--quiet"]) == 0
    printed = capsys.readouterr().out
    found = msgspec.json.decode((tmp_path / "found" / "metrics.json").read_bytes(), type=Analysis)
    assert found.marks.get(model.metric) == model.shown, found.notes
    assert any(model.note in note for note in found.notes), found.notes
    row = next(line for line in printed.splitlines() if line.startswith(f"{model.metric} "))
    assert f"  {model.shown or '–'}  " in row
    assert f"note: {next(note for note in found.notes if model.note in note)}" in printed


def test_the_report_shows_both_marks(home: Path, tmp_path: Path) -> None:
    model = MODELS[0]
    file = _answers(model, home, tmp_path / "answers.jsonl")
    folder = tmp_path / "found"
    words = ["analyze", model.probe, "--answers", file, *_data(model.probe), "--replicates", "200", "-o", folder]
    assert main([*map(str, words), "--home", str(home), "--quiet"]) == 0
    page = build_report(Store(home), [folder], tmp_path / "report.html")
    text, files = page.read_text(), files_folder(page)
    assert '<span class="chip chip-A">A</span> / <span class="chip chip-D">D</span>' in text
    assert "the marks of the two readings differ" in text
    assert "careful reading 1.000, 95 % interval 1.000 to 1.000, mark A / D" in text
    for name in ("headline.md", "headline.tex", "metrics.csv", "report.json"):
        assert "A / D" in (files / name).read_text(), name
    assert "gender,female,no,no," in (files / "readings.csv").read_text()
    assert "gender,male,no,yes," in (files / "readings.csv").read_text()


def _data(name: str) -> list[str]:
    return ["--set", "data=sample"] if name in SAMPLED else []


def _answers(model: Model, home: Path, path: Path) -> Path:
    """A file with the model's answer to every prompt of its first items."""
    data = "sample" if model.probe in SAMPLED else "full"
    rows = prompts(model.probe, params={"data": data}, home=home).filter(pl.col("item") < model.items)
    rows.select("id", probe=pl.lit(model.probe), text=model.text).collect().write_ndjson(path)
    return path
