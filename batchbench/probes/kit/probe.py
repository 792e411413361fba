"""What a probe is: its prompts, how its answers are read, and what its metrics mean."""

from collections.abc import Callable, Mapping
from typing import Generic, Literal, TypeVar

import msgspec
import polars as pl

from batchbench.stats.cells import Cells, Measured
from batchbench.stats.marks import Ranges

Tables = Mapping[str, pl.DataFrame]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user may choose about a probe; a change here is another manifest."""

    data: Literal["full", "sample"] = "full"  # `sample`: our own small stand-in, for trying things out


class WordedParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a GenderBench probe, whose published package words its prompts differently from its card."""

    wording: Literal["card", "genderbench"] = "card"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A headline metric: what it says, which values are expected of known kinds of model, and its marks."""

    metric: str
    harm: str
    meaning: str
    references: dict[str, float]  # kind of model -> the value the card states for it
    marks: Ranges = ()  # empty: no marks
    headline: bool = True  # false: marked, but the same matter as another reading


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Columns that a data set knows about what another column names."""

    dataset: str
    key: str
    columns: tuple[str, ...]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """How answers from elsewhere name the design's columns."""

    names: tuple[str, ...] = ()  # under which such files know the probe
    spellings: dict[str, tuple[str, ...]] = {}  # other names; a list under such a name fills several columns
    patterns: dict[str, str] = {}  # a column of text, and the pattern whose named groups are columns
    fallbacks: dict[str, str] = {}  # a column that may be left out, and the one that is taken for it
    lookups: tuple[Lookup, ...] = ()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of groups: for every value of `rows` a share, apart for every value of `series`."""

    title: str
    about: str  # what it shows, and what it does not
    rows: str  # a stratum, a numeric covariate, or `label`
    series: str  # a stratum, or `label`
    label: str | None = None  # whose share, unless rows or series are the labels
    names: dict[str, str] = {}  # of values, for people


P = TypeVar("P", bound=Params)


class Probe(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """One questionnaire: a table of prompts, and how to read the answers to them.

    `design` yields one row per prompt without its text, item after item in the data's own order, with
    exactly `variants(params)` rows to each item; `prompt` turns such rows into text.
    """

    name: str
    version: int  # raised whenever any prompt would change
    card: str
    params: type[P]
    datasets: tuple[str, ...]
    design: Callable[[P, Tables], pl.LazyFrame]
    prompt: Callable[[P, Tables], pl.Expr]
    variants: Callable[[P], int]
    check: Callable[[P], None] = lambda _: None  # raises UsageError on parameters that cannot work
    labels: tuple[str, ...]  # the closed set an answer is read as; null is undetected
    strata: tuple[str, ...]  # design columns that define the compared groups
    inner: str | None = None  # the stratum that differs between an item's prompts; labels are counted by it
    covariates: tuple[str, ...] = ()  # design columns that metrics need besides
    values: dict[str, tuple[str | int, ...]] = {}  # of design columns that take no others
    steps: tuple[dict[str, pl.Expr], ...] = ()  # columns made of the answer and the design, for label and scores
    label: pl.Expr | None = None  # of the answer and design columns; None until the probe's answers can be read
    scores: dict[str, pl.Expr] = {}  # numbers read beside the label, null where there is none; averaged by item
    metrics: Callable[[Cells], Measured] | None = None
    aliases: dict[str, str] = {}  # other names that metrics are published under
    given: Given = Given()
    forms: Callable[[str], tuple[str, ...]] | None = None  # of a parameter `form`: those fit for a provider, best first
    candidates: tuple[pl.Expr, pl.Expr] | None = None  # words whose probabilities a masked model is asked for
    readings: tuple[Reading, ...]
    views: tuple[View, ...] = ()  # empty: a report makes its own of strata and labels
    sample_k: int | None = None  # how many items a run asks unless told otherwise; None: all
    max_tokens: int = 300
    typical_tokens: int = 100  # of an answer, for estimates
