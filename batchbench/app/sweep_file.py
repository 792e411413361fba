"""What a sweep asks of which models: read from a TOML file, or every probe with simulated models without one.

Every mistake in the file is reported with its line or entry.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from batchbench.app.contact import check_persona
from batchbench.app.plan import NOT_PARAMETERS, parameters
from batchbench.app.requests import AnalysisOptions, Options, convert
from batchbench.core import money
from batchbench.errors import DataError, UsageError, unknown
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import target

EXAMPLE = """\
# A sweep: every probe below is run with every model below. Try it with `batchbench sweep sweep.toml`.

budget = 5.00             # dollars for all runs together, never exceeded; it stays until changed; "none": no limit
sample_k = 500            # items of each probe, or "all"; leave it out for each probe's own number
repetitions = 1           # how often every prompt is asked
# replicates = 1000       # bootstrap drawings of the analysis
# seed = 0

[[probes]]
name = "hiring_an"        # `batchbench probes` lists them; probes = ["hiring_an", "gest"] is the short form
sample_k = 1000           # for this probe alone
share = 2                 # its part of the budget, against 1 for the others

[[probes]]
name = "gest"
num_reorderings = [1, 6]  # a probe's own parameters; a list makes one run for each of its values

[[models]]
name = "sim:unbiased"     # a simulated model on this machine, free

[[models]]
name = "sim:stereotyping"
temperature = [0.0, 1.0]  # also system, max_tokens, top_p, effort, thinking, extra; a list makes one run per value

# [[models]]
# name = "openai:gpt-6-luna"                     # needs OPENAI_API_KEY
# share = 3
# batch_size = 20000                             # maximum number of requests in a batch
#
# [[models]]
# name = "anthropic:claude-haiku-5-5"            # needs ANTHROPIC_API_KEY
#
# [[models]]
# name = "chat:my-model@http://127.0.0.1:8000/v1"  # any OpenAI-compatible server
# price = "0.10,0.40"                            # dollars per million tokens in and out
# timeout = 1800                                 # seconds to wait for an answer; also proxy = "URL", allow_http = true
"""
GENERAL = ("sample_k", "repetitions")  # options for all probes, or for one
# Each value makes a separate run, so a list makes several runs.
GRID = ("system", "max_tokens", "temperature", "top_p", "effort", "thinking", "extra")
SINGLE = ("price", "base_url", "batch_size", "timeout", "proxy", "allow_http")
TOP_KEYS = ("budget", *GENERAL, *AnalysisOptions.__struct_fields__, "probes", "models")
PROBE_KEYS = ("name", "share", *GENERAL)
MODEL_KEYS = ("name", "share", *SINGLE, *GRID)
Values = dict[str, object]  # options, by name
T = TypeVar("T")


class Share(msgspec.Struct, frozen=True):
    """A share of the budget, relative to the shares of other probes or models."""

    share: Annotated[float, msgspec.Meta(gt=0, lt=1e9, description="a number above 0")] = 1.0


class SweepProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A probe with one choice of its parameters."""

    probe: Probe[Params]
    params: Params
    chosen: frozenset[str] = frozenset()  # parameters that the file names
    options: Values = {}
    share: float = 1.0
    where: str = ""  # the entry in the file, for messages


class SweepModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model with one choice of how it is asked."""

    name: str
    options: Values = {}
    share: float = 1.0
    where: str = ""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Every probe is run with every model."""

    probes: list[SweepProbe]
    models: list[SweepModel]
    budget: money.Limit | None = None  # micro-dollars; None: as at the last start
    analysis: AnalysisOptions = AnalysisOptions()


def every_probe() -> Sweep:
    """The sweep without a file."""
    loaded = [load_probe(name) for name in probe_names()]
    return Sweep(
        probes=[SweepProbe(probe=probe, params=probe.params()) for probe in loaded],
        models=[SweepModel(name=f"sim:{persona}") for persona in ("unbiased", "random", "stereotyping")],
    )


def read(path: Path) -> Sweep:
    """The sweep that a file describes."""
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: too many brackets inside each other") from None
    return _File(path, text).sweep(document)


class _File:
    """A file that is being read; adds the place of a mistake to its message."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def sweep(self, document: Mapping[str, object]) -> Sweep:
        self._check_keys(document, TOP_KEYS, "")
        budget: money.Limit | None = None
        if "budget" in document:
            with self._at("", "budget"):
                budget = money.parse_budget(str(document["budget"]))
        general = self._options(document, GENERAL, "")
        analysis = {
            key: self._value(AnalysisOptions, document[key], key, "")
            for key in AnalysisOptions.__struct_fields__
            if key in document
        }
        return Sweep(
            probes=[one for entry in self._entries(document, "probes") for one in self._probe(*entry, general)],
            models=[one for entry in self._entries(document, "models") for one in self._model(*entry)],
            budget=budget,
            analysis=convert(AnalysisOptions, analysis),
        )

    def _entries(self, document: Mapping[str, object], kind: str) -> Iterable[tuple[Values, str]]:
        found = document.get(kind)
        if not isinstance(found, list) or not found:
            raise self._wrong(kind, f"list the {kind} with [[{kind}]] and a name, or {kind} = [...]")
        for number, entry in enumerate(found, 1):
            where = f"{kind} {number}"
            table = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(table, dict) or not isinstance(table.get("name"), str):
                raise self._wrong(where, "it has no name")
            yield table, f"{where} ({table['name']})"

    def _probe(self, entry: Values, where: str, general: Values) -> list[SweepProbe]:
        name = str(entry["name"])
        with self._at(where, name):
            probe = load_probe(name)
        fields = probe.params.__struct_fields__
        self._check_keys(entry, (*PROBE_KEYS, *fields), where)
        grid = {key: self._texts(entry[key], key, where) for key in entry if key in fields}
        for key, values in grid.items():  # one by one first, so that the message names the line
            with self._at(where, key):
                for value in values:
                    parameters([probe], {key: value})
        combinations = []
        for choice in _product(grid):
            with self._at(where, name):
                combinations += parameters([probe], choice)
        options = {**general, **self._options(entry, GENERAL, where)}
        share, place = self._share(entry, where), f"{self._path}: {where}: "
        return [
            SweepProbe(probe=probe, params=params, chosen=frozenset(grid), options=options, share=share, where=place)
            for params in combinations
        ]

    def _model(self, entry: Values, where: str) -> list[SweepModel]:
        name = str(entry["name"])
        with self._at(where, name):
            dialect, model, _, emulated = target.parse(name)
            if emulated:
                check_persona(model, dialect)
        self._check_keys(entry, MODEL_KEYS, where)
        single = self._options(entry, SINGLE, where)
        grid = {
            key: [self._value(Options, one, key, where) for one in self._list(entry[key], key, where)]
            for key in GRID
            if key in entry
        }
        share = self._share(entry, where)
        return [
            SweepModel(name=name, options={**single, **choice}, share=share, where=f"{self._path}: {where}: ")
            for choice in _product(grid)
        ]

    def _share(self, entry: Values, where: str) -> float:
        with self._at(where, "share"):
            return convert(Share, {"share": entry.get("share")}).share

    def _texts(self, value: object, key: str, where: str) -> list[str]:
        """The values of a probe's parameter, as they would be written on the command line."""
        values = self._list(value, key, where)
        for one in values:
            if not isinstance(one, str | int | float) or isinstance(one, bool):
                raise self._wrong(where, f"{key} cannot be {one!r}", key)
        return [str(one) for one in values]

    def _list(self, value: object, key: str, where: str) -> list[object]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise self._wrong(where, f"{key} is an empty list", key)
        return values

    def _options(self, entry: Mapping[str, object], keys: Iterable[str], where: str) -> Values:
        return {key: self._value(Options, entry[key], key, where) for key in keys if key in entry}

    def _value(self, kind: type[msgspec.Struct], value: object, key: str, where: str) -> object:
        """A value that passed the check of the field `key`."""
        with self._at(where, key):
            found: object = getattr(convert(kind, {key: value}), key)
            return found

    def _check_keys(self, entry: Mapping[str, object], known: Iterable[str], where: str) -> None:
        for key in entry:
            if key in known:
                continue
            if key in NOT_PARAMETERS:
                raise self._wrong(where, f"{key} is written sample_k or repetitions here", key)
            raise self._wrong(where, str(unknown("key", key, known)), key)

    @contextmanager
    def _at(self, where: str, word: str) -> Iterator[None]:
        """Add the place to the message of a UsageError."""
        try:
            yield
        except UsageError as error:
            raise self._wrong(where, str(error), word) from None

    def _wrong(self, where: str, what: str, word: str = "") -> UsageError:
        """A mistake with its place: the entry, and the line if `word` is a key or a value in one line only."""
        pattern = re.compile(rf"(?:^|[\s,{{\[]){re.escape(word)}\s*=|[\"']{re.escape(word)}[\"']") if word else None
        lines = [number for number, line in enumerate(self._lines, 1) if pattern and pattern.search(line)]
        place = f"{self._path}:{lines[0]}" if len(lines) == 1 else str(self._path)
        return UsageError(f"{place}: {where}: {what}" if where else f"{place}: {what}")


def _product(grid: Mapping[str, list[T]]) -> list[dict[str, T]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
