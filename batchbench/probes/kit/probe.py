"""The definition of a probe: its prompts, how answers are labelled, its metrics."""

from collections.abc import Callable, Mapping
from typing import Generic, Literal, TypeVar

import msgspec
import polars as pl

from batchbench.stats.cells import Cells, Measured
from batchbench.stats.marks import Ranges

Tables = Mapping[str, pl.DataFrame]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a probe that a user can set; each set of values has its own manifest."""

    data: Literal["full", "sample"] = "full"  # `sample`: small replacements for the data sets, to test a probe


class WordedParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a GenderBench probe. The published package and the card use different prompt texts."""

    wording: Literal["card", "genderbench"] = "card"


class TemplateParams(WordedParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`template` replaces the template of the wording."""

    template: str | None = None

    def text(self, templates: Mapping[str, str]) -> str:
        """The template of the prompt, given the template of each wording."""
        return templates[self.wording] if self.template is None else self.template


class KeyMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One of the metrics to look at first: its meaning, its value for known kinds of models, and its marks."""

    name: str = msgspec.field(name="metric")  # its key in `batchbench probes NAME --json`
    harm: str
    meaning: str
    references: dict[str, float]  # kind of model -> the value the card states for it
    marks: Ranges = ()  # empty: no marks
    headline: bool = True  # False: has marks, but is another form of a headline metric


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Columns that can be looked up in a data set by the value of the column `key`."""

    dataset: str
    key: str
    columns: tuple[str, ...]


class ExternalAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """How files of external answers name the probe and the columns of its design."""

    names: tuple[str, ...] = ()  # other names of the probe
    spellings: dict[str, tuple[str, ...]] = {}  # other name -> columns; a list in such a column fills several columns
    patterns: dict[str, str] = {}  # a text column -> a regular expression; its named groups are columns
    fallbacks: dict[str, str] = {}  # an optional column -> the column that replaces it
    lookups: tuple[Lookup, ...] = ()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of groups: a share for every combination of a value of `rows` and a value of `series`."""

    title: str
    about: str  # what the figure shows, and what it does not show
    rows: str  # a stratum, a numeric covariate, or `label`
    series: str  # a stratum, or `label`
    label: str | None = None  # show the share of this label; None if rows or series are the labels
    names: dict[str, str] = {}  # value -> the name that the figure shows


P = TypeVar("P", bound=Params)


class Probe(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """A set of prompts, how to label the answers to them, and the metrics.

    `design` returns one row per prompt without its text: all prompts of the first item, then all of the second, and so
    on, in the order of the data, `variants(params)` rows for each item. `prompt` is the expression for the text.
    """

    name: str
    version: int  # increase it whenever a prompt changes
    card: str
    params: type[P]
    datasets: tuple[str, ...]
    design: Callable[[P, Tables], pl.LazyFrame]
    prompt: Callable[[P, Tables], pl.Expr]
    variants: Callable[[P], int]
    check: Callable[[P], None] = lambda _: None  # raises UsageError on invalid parameters
    labels: tuple[str, ...]  # all labels that an answer can have; null means undetected
    strata: tuple[str, ...]  # design columns that define the compared groups
    inner: str | None = None  # the stratum that differs between an item's prompts; labels are counted for each value
    covariates: tuple[str, ...] = ()  # other design columns that metrics need
    values: dict[str, tuple[str | int, ...]] = {}  # all possible values of a design column
    steps: tuple[dict[str, pl.Expr], ...] = ()  # columns computed from answer and design, for label and scores
    label: pl.Expr | None = None  # computed from answer and design; None if answers cannot be analyzed yet
    reference: str = "the probe's own"  # the published code that `label` reads answers like, with its version
    careful: pl.Expr | None = None  # the label by the careful reading, in doubt null; None: as `label`
    # Columns for `careful`, computed after `steps`; a function if they depend on the parameters.
    careful_steps: tuple[dict[str, pl.Expr], ...] | Callable[[P], tuple[dict[str, pl.Expr], ...]] = ()
    careful_exact: str | None = None  # of `careful_steps`: a label that makes the later steps unnecessary, or null
    careful_metrics: Callable[[Cells], Measured] | None = None  # of the careful labels; None: as `metrics`
    careful_version: int = 1  # increase it whenever the careful reading changes
    scores: dict[str, pl.Expr] = {}  # numbers in addition to the label, null if an answer has none; averaged per item
    metrics: Callable[[Cells], Measured] | None = None
    aliases: dict[str, str] = {}  # other published name -> metric
    external_answers: ExternalAnswers = ExternalAnswers()
    forms: Callable[[str], tuple[str, ...]] | None = None  # provider -> usable values of `form`, the default first
    candidates: tuple[pl.Expr, pl.Expr] | None = None  # a masked model returns the probabilities of these words
    key_metrics: tuple[KeyMetric, ...]
    views: tuple[View, ...] = ()  # empty: the report shows the labels of each stratum
    sample_k: int | None = None  # default number of items of a run; None: all
    max_tokens: int = 300
    earlier_max_tokens: int | None = None  # the default of older versions: runs that were begun with it go on with it
    typical_tokens: int = 100  # tokens of a typical answer, for estimates

    def careful_reading(self, params: P) -> tuple[dict[str, pl.Expr], ...]:
        """All steps of the careful reading; the last one computes the column `careful`."""
        steps = self.careful_steps(params) if callable(self.careful_steps) else self.careful_steps
        careful = self.label if self.careful is None else self.careful
        return (*self.steps, *steps, {} if careful is None else {"careful": careful})
