"""What a user asks for, and how the application reports.

The command line, sweep files and Python programs build the Structs through `convert`, the only place where an option's
value is checked, and implement `Voice`.
"""

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from batchbench.core import money
from batchbench.dispatch import Progress
from batchbench.dispatch.budget import BudgetMode
from batchbench.errors import UsageError, unknown
from batchbench.providers.target import checked_proxy, checked_url

Count = Annotated[int, Meta(ge=1, le=999_999_999, description="a whole number above 0")]
Items = Annotated[int, Meta(ge=1, le=10**18)] | Literal["all"]
Seed = Annotated[int, Meta(ge=0, lt=10**18, description="a whole number of at most 18 digits")]
Replicates = Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number from 0 to 1,000,000")]
Resolution = Annotated[str, Meta(pattern=r"\A[^=]+=.+\Z", description="NONCE=void or NONCE=BATCH_ID")]
Word = Annotated[str, Meta(pattern=r"\A[a-z][a-z_]*\Z", description="a word in lower case, such as low or off")]
S = TypeVar("S", bound=msgspec.Struct)
Report = Callable[[int, int], None]  # done so far, and in all


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which probes are run with which models."""

    probes: list[str]  # ["all"]: every probe
    models: list[str] = []
    params: dict[str, str] = {}  # a probe's parameter: K or PROBE.K, and its value


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How models are asked. None: the default of the probe or of the provider."""

    sample_k: Annotated[Items | None, Meta(description="a number of items above 0, or `all`")] = None
    repetitions: Annotated[int, Meta(ge=1, le=65_535, description="a whole number from 1 to 65,535")] = 1
    system: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="a number from 0 to 2")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")] | None = None
    effort: Word | None = None  # how much the model thinks
    thinking: Word | None = None  # off, on, or a word of the model's family
    extra: dict[str, object] = {}  # more fields of the request's body
    price: str | None = None  # IN,OUT in dollars per million tokens
    base_url: str | None = None
    batch_size: Count | None = None
    settle: Annotated[float, Meta(ge=0, le=86_400, description="a number from 0 to 86,400")] | None = None
    timeout: Annotated[float, Meta(ge=0.1, le=86_400, description="a number from 0.1 to 86,400")] | None = None
    proxy: str | None = None  # its URL
    allow_http: bool = False  # send the key over http, too

    def __post_init__(self) -> None:
        if self.price is not None:
            money.parse_price(self.price)
        if self.base_url:
            checked_url(self.base_url)
        if self.proxy:
            checked_proxy(self.proxy)


class Purchase(msgspec.Struct, frozen=True, kw_only=True):
    """What may be bought."""

    budget: money.Limit | None = None  # micro-dollars for all runs together; None: as at the last start
    budget_mode: BudgetMode = "absolute"  # how the input of a request is reserved
    detach: bool = False  # submit, and do not wait for the answers
    adopt: bool = False  # buy although the folder is a copy; adopt batches of the same requests from other folders
    anew: bool = False  # buy although batches of the same requests are at the provider
    rebuy_missing: bool = False
    collect: bool = False  # buy nothing: collect the answers of submitted batches
    again: bool = False  # ask requests again that were in batches which the user cancelled
    retry_failed: bool = False  # ask requests again that failed
    resolve: list[Resolution] = []  # the user's decisions about batches in an unknown state
    pilot: Literal["auto", "batch", "none"] = "auto"  # auto: single calls, if the run costs money
    anyway: bool = False  # buy although the answers cannot be read or cost more than estimated
    yes: bool = False  # do not ask before spending money

    @property
    def limit(self) -> int | None:
        """The budget as a number; None: no limit."""
        return self.budget if isinstance(self.budget, int) else None


class AnalysisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How intervals are computed."""

    replicates: Replicates = 1000
    seed: Seed = 0


class AnalysisRequest(AnalysisOptions, frozen=True, kw_only=True):
    """Which answers are analyzed: either those of `models`, or the files `answers`."""

    probes: list[str]
    models: list[str] = []  # a model's name, or the folder of its run
    answers: list[Path] = []  # files of answers
    params: dict[str, str] = {}
    folder: Path | None = None  # where results go; None: into the folders of the runs


class AnswersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which answers of a run are listed, drawn for people to label (`check`), or compared with labels (`checked`)."""

    probe: str
    model: str  # its name, or the folder of its run
    params: dict[str, str] = {}
    unreadable: bool = False  # only answers that a reading cannot read
    label: str | None = None  # only answers that a reading gives this label
    limit: Annotated[Items, Meta(description="a number of answers above 0, or `all`")] = 20
    check: Annotated[int, Meta(ge=2, le=10_000, description="a whole number from 2 to 10,000")] | None = None
    seed: Seed = 0
    out: Path | None = None  # the file to label
    checked: list[Path] = []  # files with labels


def convert(kind: type[S], values: Mapping[str, object], spell: Callable[[str], str] = str) -> S:
    """The Struct that these values make, or a UsageError that names the wrong one; None counts as not given.

    Numbers may be given as text. `spell` turns the name of a field into what the user wrote.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name not in kind.__struct_fields__:
            raise unknown("option", name, kind.__struct_fields__)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").partition("[")[0]
        value = given.get(name)
        expected = next(_descriptions(typing.get_type_hints(kind, include_extras=True).get(name)), None)
        if expected is None:
            raise UsageError(f"{spell(name)}={value}: {reason[:1].lower()}{reason[1:]}") from None
        shown = ", ".join(map(repr, value)) if isinstance(value, list) else repr(value)
        raise UsageError(f"{spell(name)} {shown} is not {expected}") from None


def _descriptions(hint: object) -> Iterator[str]:
    for part in typing.get_args(hint):
        if isinstance(part, Meta) and part.description:
            yield part.description
        yield from _descriptions(part)


class Monitor(Protocol):
    """Follows several runs while their models are asked. A run's number is its place in the list of names."""

    def show(self, number: int, progress: Progress) -> None:
        """Show the progress of a run."""

    def end(self, number: int) -> None:
        """A run has ended."""

    def tick(self) -> None:
        """The event loop is alive; called several times a second."""


class Voice(Protocol):
    """Where messages go."""

    def note(self, message: str) -> None:
        """Show a message."""

    def progress(self, what: str, unit: str = "") -> AbstractContextManager[Report]:
        """Show how far a stage is, for as long as the context lasts."""

    def monitor(self, names: Sequence[str], budget: int | None) -> AbstractContextManager[Monitor]:
        """Show how far several runs are, for as long as the context lasts. The budget is in micro-dollars."""


class Silent:
    """A voice and a monitor without output."""

    def note(self, message: str) -> None:
        """Ignore the message."""

    @contextmanager
    def progress(self, what: str, unit: str = "") -> Iterator[Report]:  # noqa: ARG002 - part of the protocol
        """Show nothing."""
        yield lambda _done, _total: None

    @contextmanager
    def monitor(self, names: Sequence[str], budget: int | None) -> Iterator["Silent"]:  # noqa: ARG002 - as above
        """Show nothing."""
        yield self

    def show(self, number: int, progress: Progress) -> None:
        """Ignore it."""

    def end(self, number: int) -> None:
        """Ignore it."""

    def tick(self) -> None:
        """Ignore it."""
