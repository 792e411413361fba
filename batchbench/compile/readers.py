"""Readers: from the bytes of a data set's files to its table."""

import ast
import io
from collections.abc import Sequence

import polars as pl

from batchbench.core.store import POLARS_ERRORS

# A reader may raise any of these for a file of another kind; `read_names` parses Python.
UNREADABLE = (
    *(*POLARS_ERRORS, ValueError, TypeError, LookupError),
    *(AttributeError, SyntaxError, RecursionError, MemoryError),
)
INVENTORIES = [(source, gender) for source in ("bsri", "epaq", "gaucher") for gender in ("female", "male")]


def read_names(contents: Sequence[bytes]) -> pl.DataFrame:
    """Names with gender and race, from a dictionary literal in a Python module, which is parsed and never executed."""
    tree = ast.parse(contents[0])
    literals = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "_names"]  # type: ignore[attr-defined]
    groups: dict[str, dict[str, list[str]]] = ast.literal_eval(literals[0])
    rows = [
        (name.title(), gender.lower(), race.lower())
        for gender, races in groups.items()
        for race, names in races.items()
        for name in names
    ]
    return pl.DataFrame(rows, {"name": pl.String, "gender": pl.String, "race": pl.String}, orient="row")


def read_occupations(contents: Sequence[bytes]) -> pl.DataFrame:
    """Occupations with their gender score."""
    return pl.read_csv(contents[0]).select(role="noun", role_score="score")


def read_inventories(contents: Sequence[bytes]) -> pl.DataFrame:
    """Descriptions with source and gender, from one file for each pair of INVENTORIES."""
    lists = [
        pl.DataFrame({"description": _lines(content)}).with_columns(source=pl.lit(source), gender=pl.lit(gender))
        for content, (source, gender) in zip(contents, INVENTORIES, strict=True)
    ]
    return pl.concat(lists)


def read_isear(contents: Sequence[bytes]) -> pl.DataFrame:
    """Events, one per line."""
    return pl.DataFrame({"event": _lines(contents[0])})


def _lines(content: bytes) -> list[str]:
    # Universal newlines, as the published packages read their files: six ISEAR events end in CR LF, and splitting on
    # LF alone would leave a CR in their prompts. The newline at the end of the file does not start another item.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    return text.removesuffix("\n").split("\n")


def read_gest(contents: Sequence[bytes]) -> pl.DataFrame:
    """Sentences with the number of their stereotype."""
    return read_csv(contents, ["sentence", "stereotype"]).with_columns(pl.col("stereotype").cast(pl.UInt8))


def read_csv(contents: Sequence[bytes], columns: list[str]) -> pl.DataFrame:
    """These columns of a CSV file."""
    return pl.read_csv(contents[0], columns=columns).select(columns)


def read_ndjson(contents: Sequence[bytes]) -> pl.DataFrame:
    """All columns of a file of JSON lines."""
    return pl.read_ndjson(contents[0])
