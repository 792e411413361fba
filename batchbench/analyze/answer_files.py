"""Read and label files of external answers: JSON lines or parquet, in three shapes.

- a line per prompt: `{"probe", "item_id", "metadata": {column: value}, "answers": [text of each repetition]}`
- a row of the manifest, as `custom_id` (`<anything>-<id>-<rep>`, as batchbench sends it) or `id` and `rep`; and `text`
- the item's columns (name, role, qualification; gender; source; stereotype, options ...); and `text`

An answer may also be a masked model's list of predictions, `[{"token_str", "score"} ...]`. A line with `text` may have
`logprobs`, the alternatives for the answer's first token: `[{"token", "logprob"} ...]`.

A column that only the careful reading needs may be missing; the careful reading then does without it.

Lines with the same `item_id` belong to one item. It is optional if the probe asks one prompt per item; then every line
is an item. `outcome` may be refused, filtered, truncated, empty or failed; an answer of null counts as failed.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import polars as pl

from batchbench.analyze.labelled_answers import (
    ANSWER_COLUMNS,
    READ_COLUMNS,
    LabelledAnswers,
    Origin,
    careful_columns,
    input_columns,
    label_answers,
)
from batchbench.core.store import POLARS_ERRORS
from batchbench.core.text import repair_json
from batchbench.errors import DataError
from batchbench.probes.kit.mask_answers import MaskAnswer
from batchbench.probes.kit.probe import ExternalAnswers, Params, Probe
from batchbench.runs.results import LOGPROBS, OUTCOMES

CUSTOM_ID = re.compile(r"(?:.*-)?(?P<id>\d+)-(?P<rep>\d+)")
ANSWER_FIELDS = ("item_id", "custom_id", "id", "rep", "text", "logprobs", "outcome")  # not design columns
CHUNK = 50_000  # rows with text that are in memory at the same time

LoadTable = Callable[[str], pl.DataFrame]  # returns a data set by its name
LoadManifest = Callable[[], pl.DataFrame]  # returns the rows of the compiled manifest, without text


def label_file(
    path: Path, probe: Probe[Params], load_table: LoadTable, load_manifest: LoadManifest, *, sample_data: bool
) -> LabelledAnswers:
    """Label the answers in `path`. Every request is assumed to be in the file."""
    inner = [probe.inner] if probe.inner else []
    outer = [name for name in (*probe.strata, *probe.covariates) if name != probe.inner]
    inputs = [name for name in input_columns(probe) if name not in ANSWER_COLUMNS]
    needed = list(dict.fromkeys([*outer, *inner, *inputs]))
    optional = [name for name in careful_columns(probe) if name not in (*ANSWER_COLUMNS, *needed)]
    load_table, load_manifest = cache(load_table), cache(load_manifest)
    keys = ("line", "item_id", "variant", "rep")
    parts = []
    try:
        for chunk in _chunks(path, probe):
            if "id" in chunk.columns and "item_id" not in chunk.columns:
                rows = _by_id(chunk, [*needed, *optional], load_manifest(), path)
            else:
                rows = _by_columns(chunk, needed, probe, load_table, path)
            parts.append(label_answers(rows.lazy(), probe, *keys, *needed).collect())
    except POLARS_ERRORS as error:  # a column has the right name and the wrong type
        raise DataError(f"{path} cannot be read: {_first_line(error)}") from None
    rows = _number_items(pl.concat(parts), [*inner, *inputs], path)
    _check_items(rows, outer, path)
    key, firsts = pl.col("item_id").first().alias("key"), [pl.col(name).first() for name in outer]
    return LabelledAnswers(
        origin=Origin(model=str(path), answers=_digest(path), sample_data=sample_data),
        answers=rows.select("item", "variant", "rep", *inner, *READ_COLUMNS, *probe.scores),
        design=rows.group_by("item").agg(key, *firsts).sort("item").drop("item"),
        asked=rows.group_by(probe.strata).agg(asked=pl.len().cast(pl.Int64)),
    )


def _number_items(rows: pl.DataFrame, varying: list[str], path: Path) -> pl.DataFrame:
    """Number the items by id, the prompts of an item by the columns in `varying`, and repetitions in file order."""
    if rows["variant"].null_count() == 0:  # the manifest has numbered the prompts
        repeated = rows.filter(~pl.struct("item_id", "variant", "rep").is_first_distinct())
        if repeated.height:
            raise DataError(f"{path}:{repeated['line'][0]}: an earlier line answers the same prompt and repetition")
    else:
        prompt = (
            pl.struct(list(dict.fromkeys(varying))).rank("dense").over("item_id").cast(pl.UInt8) - 1
            if varying
            else pl.lit(0, pl.UInt8)
        )
        rows = rows.with_columns(variant=prompt)
        rows = rows.with_columns(rep=pl.int_range(pl.len(), dtype=pl.UInt16).over("item_id", "variant"))
    return rows.with_columns(item=pl.col("item_id").rank("dense").cast(pl.UInt32) - 1)


def _check_items(rows: pl.DataFrame, outer: list[str], path: Path) -> None:
    if not outer:
        return
    items = rows.group_by("item").agg(pl.col(outer).n_unique() > 1, line=pl.col("line").last())
    inconsistent = items.filter(pl.any_horizontal(outer)).sort("line")
    if inconsistent.height:
        raise DataError(f"{path}:{inconsistent['line'][0]}: lines with the same item_id differ in {', '.join(outer)}")


# -- files -------------------------------------------------------------------------------------------------


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunks(path: Path, probe: Probe[Params]) -> Iterator[pl.DataFrame]:
    """The rows of a file, with the needed columns and the line number; at least one chunk, which may be empty."""
    external = probe.external_answers
    lookups = [name for lookup in external.lookups for name in (lookup.key, *lookup.columns)]
    others = [*external.spellings, *external.patterns, *external.fallbacks.values(), *lookups]
    inputs = [*input_columns(probe), *careful_columns(probe)]
    wanted = {*ANSWER_FIELDS, *probe.strata, *probe.covariates, *inputs, *others}
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        chunks = _parquet_chunks(path, wanted) if parquet else _line_chunks(path, probe, wanted)
        for chunk in chunks:
            yield _with_outcome(_with_logprobs(chunk, path), path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _parquet_chunks(path: Path, wanted: set[str]) -> Iterator[pl.DataFrame]:
    try:
        file = pl.scan_parquet(path, glob=False)
        names = [name for name in file.collect_schema() if name in wanted]
        rows = file.select(pl.len()).collect().item()
        if "text" not in names:
            raise DataError(f"{path} has no column `text`: `batchbench analyze --help` shows the formats")
        for first in range(0, max(rows, 1), CHUNK):
            chunk = file.select(names).slice(first, CHUNK).collect().with_row_index("line", offset=first + 1)
            yield _with_id(chunk, path)
    except POLARS_ERRORS as error:
        raise DataError(f"{path} cannot be read as parquet: {_first_line(error)}") from None


def _with_id(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    if "custom_id" in rows.columns and "id" not in rows.columns:
        parts = pl.col("custom_id").str.extract_groups(f"^{CUSTOM_ID.pattern}$").struct
        rows = rows.with_columns(id=parts.field("id").cast(pl.UInt32), rep=parts.field("rep").cast(pl.UInt16))
        if rows["id"].null_count():
            line = rows.filter(pl.col("id").is_null())["line"][0]
            raise DataError(f"{path}:{line}: custom_id does not end in -<id>-<rep>")
    return rows if "rep" in rows.columns else rows.with_columns(rep=pl.lit(0, pl.UInt16))


def _line_chunks(path: Path, probe: Probe[Params], wanted: set[str]) -> Iterator[pl.DataFrame]:
    rows: list[dict[str, object]] = []
    chunks = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            found = _rows(_decoded(line, path, number), f"{path}:{number}", probe)
            rows += [{"line": number, **{name: row[name] for name in row if name in wanted}} for row in found]
            if len(rows) >= CHUNK:
                yield _frame(rows, path)
                rows, chunks = [], chunks + 1
    if rows or not chunks:
        yield _frame(rows, path)


def _frame(rows: list[dict[str, object]], path: Path) -> pl.DataFrame:
    names = dict.fromkeys(["line", "rep", "text", *(name for row in rows for name in row)])
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        return pl.DataFrame(columns, schema_overrides={"line": pl.UInt32, "rep": pl.UInt16, "text": pl.String})
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        lines = f"lines {rows[0]['line']} to {rows[-1]['line']}"
        raise DataError(f"{path}: {lines}: a column has values of several kinds ({_first_line(error)})") from None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


def _decoded(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.ValidationError:
        raise DataError(f"{path}:{number}: not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)
    try:
        return msgspec.json.decode(repair_json(line), type=dict[str, object])
    except (ValueError, RecursionError):
        raise DataError(f"{path}:{number}: not JSON ({reason})") from None


def _rows(line: dict[str, object], where: str, probe: Probe[Params]) -> Iterator[dict[str, object]]:
    """One row for each answer in a line."""
    if line.get("probe", probe.name) not in (probe.name, *probe.external_answers.names):
        raise DataError(f"{where}: these are answers to {line['probe']}, not to {probe.name}")
    metadata = line.pop("metadata", {})
    if not isinstance(metadata, dict):
        raise DataError(f"{where}: metadata is not an object")
    texts = line.pop("answers", None)
    if texts is not None and (not isinstance(texts, list) or "text" in line):
        raise DataError(f"{where}: `answers` is not a list, or the line also has `text`")
    if texts is None:
        if "text" not in line:
            raise DataError(f"{where}: the line has neither `answers` nor `text`")
        texts = [line.pop("text")]
    texts = [_encoded_predictions(text, where) if isinstance(text, list) else text for text in texts]
    if not all(isinstance(text, str | None) for text in texts):
        raise DataError(f"{where}: an answer is neither text nor null")
    row = {**metadata, **line}
    row.pop("probe", None)
    if "item_id" in row:
        row["item_id"] = str(row["item_id"])
    if "custom_id" in row:
        parts = CUSTOM_ID.fullmatch(str(row.pop("custom_id")))
        if parts is None:
            raise DataError(f"{where}: custom_id does not end in -<id>-<rep>")
        row |= {"id": int(parts["id"]), "rep": int(parts["rep"])}
    first = row.pop("rep", 0)
    if not isinstance(first, int) or first < 0 or isinstance(row.get("id", 0), bool | str | float):
        raise DataError(f"{where}: id and rep must be whole numbers, 0 or greater")
    for rep, text in enumerate(texts or [None], first):  # an empty list is one failed request
        yield {**row, "rep": rep, "text": text}


def _encoded_predictions(answer: list[object], where: str) -> str:
    """A masked model's list of predictions, encoded as in a run with a masked model."""
    try:
        return msgspec.json.encode(msgspec.convert({"top": answer}, MaskAnswer)).decode()
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: an answer is a list, but not a list of predictions ({error})") from None


def _with_logprobs(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    if "logprobs" not in rows.columns:
        return rows.with_columns(logprobs=pl.lit(None, LOGPROBS))
    try:
        return rows.with_columns(pl.col("logprobs").cast(LOGPROBS))
    except pl.exceptions.PolarsError:
        raise DataError(f"{path}: logprobs is not a list of {{token, logprob}}") from None


def _with_outcome(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    default = pl.when(pl.col("text").is_null()).then(pl.lit("failed")).otherwise(pl.lit("answered"))
    if "outcome" not in rows.columns:
        return rows.with_columns(outcome=default)
    rows = rows.with_columns(pl.col("outcome").cast(pl.String).fill_null(default))
    unknown = rows.filter(~pl.col("outcome").is_in(OUTCOMES))
    if unknown.height:
        raise DataError(f"{path}:{unknown['line'][0]}: outcome is not one of {', '.join(OUTCOMES)}")
    return rows


# -- columns -----------------------------------------------------------------------------------------------


def _by_id(rows: pl.DataFrame, needed: list[str], manifest: pl.DataFrame, path: Path) -> pl.DataFrame:
    if not rows.schema["id"].is_integer():
        raise DataError(f"{path}: the column `id` has type {rows.schema['id']}, but must hold manifest row numbers")
    unknown = rows.filter(~pl.col("id").is_between(0, manifest.height - 1) | pl.col("id").is_null())
    if unknown.height:
        raise DataError(
            f"{path}:{unknown['line'][0]}: the manifest has no row {unknown['id'][0]}: use the same --set as the run"
        )
    design = manifest.select("variant", *needed, item_id=pl.col("item").cast(pl.String))
    return rows.select("line", "rep", *ANSWER_COLUMNS, "outcome").hstack(design[rows["id"]].get_columns())


def _by_columns(
    rows: pl.DataFrame, needed: list[str], probe: Probe[Params], load_table: LoadTable, path: Path
) -> pl.DataFrame:
    rows = _with_design_columns(rows, probe.external_answers, load_table, path)
    if rows.is_empty():
        rows = rows.with_columns(pl.lit(None, pl.String).alias(name) for name in needed if name not in rows.columns)
    if missing := [name for name in needed if name not in rows.columns]:
        found = ", ".join(name for name in rows.columns if name not in (*ANSWER_FIELDS, "line")) or "none"
        raise DataError(f"{path} has no {', '.join(missing)}, which {probe.name} needs (its columns: {found})")
    for name in needed:
        rows = _with_design_type(rows, name, probe, path)
    if "item_id" not in rows.columns:
        if probe.variants(probe.params()) > 1 and not rows.is_empty():
            raise DataError(f"{path} needs an item_id: {probe.name} asks several prompts about one item")
        rows = rows.with_columns(item_id=pl.col("line").cast(pl.String))
    return rows.with_columns(pl.col("item_id").cast(pl.String), variant=pl.lit(None, pl.UInt8))


def _with_design_columns(
    rows: pl.DataFrame, external: ExternalAnswers, load_table: LoadTable, path: Path
) -> pl.DataFrame:
    """`rows` with every design column that the columns of the file determine."""
    for spelling, names in external.spellings.items():
        if spelling in rows.columns and names[0] not in rows.columns:
            rows = _renamed(rows, spelling, names, path)
    for source, pattern in external.patterns.items():
        if source in rows.columns:
            groups = rows.select(pl.col(source).cast(pl.String).str.extract_groups(pattern)).unnest(source)
            rows = rows.hstack([column for column in groups.get_columns() if column.name not in rows.columns])
    for name, source in external.fallbacks.items():
        if name not in rows.columns and source in rows.columns:
            rows = rows.with_columns(pl.col(source).alias(name))
    for lookup in external.lookups:
        if lookup.key in rows.columns and not set(lookup.columns) <= set(rows.columns):
            known = load_table(lookup.dataset).select(lookup.key, *lookup.columns)
            rows = _looked_up(rows.drop(lookup.columns, strict=False), known, lookup.key, path)
    return rows


def _renamed(rows: pl.DataFrame, spelling: str, names: tuple[str, ...], path: Path) -> pl.DataFrame:
    if len(names) == 1:
        return rows.rename({spelling: names[0]})
    kind = rows[spelling].dtype
    short = rows.filter(pl.col(spelling).list.len() != len(names)) if isinstance(kind, pl.List) else rows
    if short.height:
        raise DataError(f"{path}:{short['line'][0]}: {spelling} is not a list of {len(names)} values")
    return rows.with_columns(pl.col(spelling).list.get(index).alias(name) for index, name in enumerate(names))


def _looked_up(rows: pl.DataFrame, known: pl.DataFrame, key: str, path: Path) -> pl.DataFrame:
    unknown = rows.filter(~pl.col(key).cast(pl.String).is_in(known[key].implode()))
    if unknown.height:
        raise DataError(f"{path}:{unknown['line'][0]}: {key} {unknown[key][0]!r} is not known")
    enums = [
        pl.col(name).cast(pl.Enum(known[name].unique().sort()))
        for name in known.columns
        if known[name].dtype == pl.String and name != key
    ]
    return rows.join(known.with_columns(enums), on=key, how="left", maintain_order="left")


def _with_design_type(rows: pl.DataFrame, name: str, probe: Probe[Params], path: Path) -> pl.DataFrame:
    """`rows` with the column `name` in the type of the probe's design; the error names the first invalid line."""
    values = probe.values.get(name)
    column = pl.col(name)
    if name in probe.covariates:
        typed = column.cast(pl.Float64, strict=False)
    elif values is None:
        typed = column if isinstance(rows[name].dtype, pl.Enum) else column.cast(pl.String)
    elif isinstance(values[0], int):
        typed = column.cast(pl.Int64, strict=False)
        typed = pl.when(typed.is_in(values)).then(typed).cast(pl.UInt8)
    else:
        typed = column.cast(pl.String).str.to_lowercase().cast(pl.Enum([str(value) for value in values]), strict=False)
    result = rows.with_columns(typed)
    if result[name].null_count():
        line = result.filter(pl.col(name).is_null())["line"][0]
        value = rows.filter(pl.col("line") == line)[name][0]
        hint = f": it must be one of {', '.join(map(str, values))}" if values else ""
        raise DataError(f"{path}:{line}: {name} is {value!r}{hint}")
    return result
