"""What a sweep asks of whom: what its file says, every mistake told with its place; or all there is, without one."""

import argparse
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from batchbench import probes
from batchbench.app import params as settings
from batchbench.cli import options
from batchbench.core import money
from batchbench.errors import DataError, UsageError, unknown
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import target as targets

EXAMPLE = """\
# A sweep: every probe below is asked of every model below. Try it with `batchbench sweep sweep.toml`.

budget = 5.00             # dollars, over all runs together, never exceeded; leave it out for no limit
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
temperature = [0.0, 1.0]  # also system, max_tokens, top_p; a list makes one run for each of its values

# [[models]]
# name = "openai:gpt-4.1-mini"                   # needs OPENAI_API_KEY
# share = 3
# batch_size = 20000                             # at most so many requests in a batch
#
# [[models]]
# name = "anthropic:claude-haiku-4-5"            # needs ANTHROPIC_API_KEY
#
# [[models]]
# name = "chat:my-model@http://127.0.0.1:8000/v1"  # any OpenAI-compatible server
# price = "0.10,0.40"                            # dollars per million tokens in and out, where nobody knows it
"""
GRID = (
    "system",
    "max_tokens",
    "temperature",
    "top_p",
)  # a change makes another run, so several values are several runs
WHOLE: Callable[[str], object] = options.positive
CHECKS: dict[str, Callable[[str], object]] = {
    "max_tokens": WHOLE,
    "temperature": options.between(0, 2),
    "top_p": options.between(0, 1),
    "batch_size": WHOLE,
    "repetitions": options.repeated,
    "replicates": lambda text: 0 if text == "0" else options.positive(text),
    "seed": lambda text: 0 if text == "0" else options.positive(text),
    "sample_k": lambda text: text if text == "all" else str(options.positive(text)),
    "system": str,
    "price": lambda text: money.parse_price(text) and text,
    "base_url": targets.checked_url,
    "budget": money.parse_budget,
}
TOP = ("budget", "sample_k", "repetitions", "replicates", "seed", "probes", "models")
OF_PROBES = ("name", "share", "sample_k", "repetitions")
FIXED = ("price", "base_url", "batch_size")
OF_MODELS = ("name", "share", *FIXED, *GRID)
Values = dict[str, Any]  # what a file says, checked


class AskedProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A probe with one choice of its parameters."""

    probe: Probe[Params]
    params: Params
    said: frozenset[str] = frozenset()  # parameters that somebody chose
    options: Values = {}
    share: float = 1.0
    where: str = ""


class AskedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model with one choice of how it is asked."""

    name: str
    options: Values = {}
    share: float = 1.0
    where: str = ""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a sweep is to do."""

    probes: list[AskedProbe]
    models: list[AskedModel]
    budget: int | None = None  # micro-dollars
    replicates: int = 1000
    seed: int = 0


def every_probe() -> Sweep:
    """What is swept without a file."""
    chosen = [probes.load(name) for name in probes.names()]
    return Sweep(
        probes=[AskedProbe(probe=probe, params=probe.params()) for probe in chosen],
        models=[AskedModel(name=f"sim:{persona}") for persona in ("unbiased", "random", "stereotyping")],
    )


def read(path: Path, home: Path) -> Sweep:
    """The sweep that a file describes; `home` is where personas learn about the data."""
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
    return _File(path, text, home).sweep(document)


class _File:
    """A file that is being read; knows how to say where something is wrong."""

    def __init__(self, path: Path, text: str, home: Path) -> None:
        self._path = path
        self._home = home
        self._lines = text.splitlines()

    def sweep(self, document: Mapping[str, object]) -> Sweep:
        self._check_keys(document, TOP, "")
        general = {key: self._value(document[key], key, key) for key in TOP[:5] if key in document}
        analysis = {key: general.pop(key) for key in ("replicates", "seed") if key in general}
        return Sweep(
            probes=[one for entry in self._entries(document, "probes") for one in self._probe(*entry, general)],
            models=[one for entry in self._entries(document, "models") for one in self._model(*entry)],
            budget=general.pop("budget", None),
            **analysis,
        )

    def _entries(self, document: Mapping[str, object], kind: str) -> Iterable[tuple[dict[str, object], str]]:
        found = document.get(kind)
        if not isinstance(found, list) or not found:
            raise self._wrong(kind, f"say which {kind} with [[{kind}]] and a name, or {kind} = [...]")
        for number, entry in enumerate(found, 1):
            where = f"{kind} {number}"
            table = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(table, dict) or not isinstance(table.get("name"), str):
                raise self._wrong(where, "it has no name")
            yield table, f"{where} ({table['name']})"

    def _probe(self, entry: dict[str, object], where: str, general: Values) -> list[AskedProbe]:
        name = str(entry["name"])
        with self._at(where, name):
            probe = probes.load(name)
        known = probe.params.__struct_fields__
        self._check_keys(entry, (*OF_PROBES, *known), where)
        own = {key: self._value(entry[key], key, where) for key in OF_PROBES[2:] if key in entry}
        grid = {key: self._words(entry[key], key, where) for key in entry if key in known}
        for key, values in grid.items():
            with self._at(where, key):
                for value in values:
                    settings.params([probe], {key: value})
        asked = []
        for chosen in _product(grid):
            with self._at(where, name):
                params = settings.params([probe], chosen)[0]
            asked.append(
                AskedProbe(
                    probe=probe,
                    params=params,
                    said=frozenset(grid),
                    options={**general, **own},
                    share=self._share(entry, where),
                    where=f"{self._path}: {where}: ",
                )
            )
        return asked

    def _model(self, entry: dict[str, object], where: str) -> list[AskedModel]:
        from batchbench.emulator import personas

        name = str(entry["name"])
        with self._at(where, name):
            _, model, _, emulated = targets.parse(name)
            if emulated and not personas.exists(model):
                raise unknown("persona", model, personas.ABOUT)
        self._check_keys(entry, OF_MODELS, where)
        fixed: Values = {key: self._value(entry[key], key, where) for key in FIXED if key in entry}
        grid = {
            key: [self._value(one, key, where) for one in self._each(entry[key], key, where)]
            for key in GRID
            if key in entry
        }
        share = self._share(entry, where)
        return [
            AskedModel(name=name, options={**fixed, **chosen}, share=share, where=f"{self._path}: {where}: ")
            for chosen in _product(grid)
        ]

    def _share(self, entry: Mapping[str, object], where: str) -> float:
        share = entry.get("share", 1)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1e9:
            raise self._wrong(where, f"share {share!r} is not a number above 0", "share")
        return float(share)

    def _words(self, value: object, key: str, where: str) -> list[str]:
        """The values of a probe's parameter, as words of a command line."""
        values = self._each(value, key, where)
        for one in values:
            if not isinstance(one, str | int | float) or isinstance(one, bool):
                raise self._wrong(where, f"{key} cannot be {one!r}", key)
        return [str(one) for one in values]

    def _each(self, value: object, key: str, where: str) -> list[object]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise self._wrong(where, f"{key} is an empty list", key)
        return values

    def _value(self, value: object, key: str, where: str) -> Any:
        """A value that has to pass the same check as the option of that name."""
        wordy = key in ("system", "price", "base_url")
        if isinstance(value, bool) or not isinstance(value, str if wordy else (str, int, float)):
            raise self._wrong(where, f"{key} cannot be {value!r}", key)
        with self._at(f"{where}: {key}" if where != key else where, key):
            return CHECKS[key](str(value))

    def _check_keys(self, entry: Mapping[str, object], known: Iterable[str], where: str) -> None:
        for key in entry:
            if key in known:
                continue
            if key in settings.ELSEWHERE:
                raise self._wrong(where, f"{key} is written sample_k or repetitions here", key)
            raise self._wrong(where, str(unknown("key", key, known)), key)

    @contextmanager
    def _at(self, where: str, word: str) -> Iterator[None]:
        """Add the place to what is said to be wrong."""
        try:
            yield
        except (argparse.ArgumentTypeError, UsageError) as error:
            raise self._wrong(where, str(error), word) from None

    def _wrong(self, where: str, what: str, word: str = "") -> UsageError:
        """A mistake with its place: the line, where just one can be meant, and in any case the entry."""
        pattern = re.compile(rf"(?:^|[\s,{{\[]){re.escape(word)}\s*=|[\"']{re.escape(word)}[\"']") if word else None
        lines = [number for number, line in enumerate(self._lines, 1) if pattern and pattern.search(line)]
        place = f"{self._path}:{lines[0]}" if len(lines) == 1 else str(self._path)
        return UsageError(f"{place}: {where}: {what}" if where else f"{place}: {what}")


def _product(grid: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
