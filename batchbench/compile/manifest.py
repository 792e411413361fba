"""IO: a compiled probe: manifest.json and the shards beside it."""

import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import polars as pl

from batchbench.core.store import Store, check_links, content
from batchbench.errors import DataError

FORMAT = 1  # of manifest.json; other formats are refused
SHARD_ROWS = 50_000  # the smallest batch limit of all providers, so a shard always fits into one batch


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A data set that a manifest was compiled from."""

    sha256: str
    sample: bool


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One file of prompts."""

    file: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]+\.parquet\Z")]
    first: int  # id of its first row
    rows: int
    text_sha256: str  # of the prompts, each followed by NUL; the same wherever they are compiled
    file_sha256: str  # of the file, to detect damage


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines the prompts of a manifest; its digest is part of the folder's name."""

    format: int = FORMAT
    probe: str
    version: int
    params: dict[str, str | int | float | bool | None]
    data: dict[str, Source]


class Manifest(Identity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compiled probe; on disk as manifest.json, written after all shards.

    Unknown fields are refused, because the name of a known field may be damaged.
    """

    items: int
    prompts: int
    variants: int
    shards: list[Shard]
    sha256: str = ""  # of all the other fields; empty in older manifests

    def digest(self) -> str:
        """The correct value of `sha256`."""
        plain = msgspec.structs.replace(self, sha256="")
        return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()

    def prompts_digest(self) -> str:
        """sha256 of what decides the prompts and their order; the same wherever they are compiled."""
        texts = [(shard.first, shard.rows, shard.text_sha256) for shard in self.shards]
        decisive = (_identity(self), self.items, self.variants, texts)
        return hashlib.sha256(msgspec.json.encode(decisive, order="deterministic")).hexdigest()

    @property
    def sample_data(self) -> bool:
        """Whether any data set is our stand-in; every output then shows a stamp."""
        return any(source.sample for source in self.data.values())


def folder_of(store: Store, identity: Identity) -> Path:
    """The folder of the manifest with this identity: the probe's name and the digest of the identity."""
    digest = hashlib.sha256(msgspec.json.encode(_identity(identity), order="deterministic")).hexdigest()
    return store.manifests / f"{identity.probe}-{digest[:8]}"


def _identity(manifest: Identity) -> Identity:
    """The identity of a manifest, without its other fields."""
    return Identity(**{name: getattr(manifest, name) for name in Identity.__struct_fields__})


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in `folder`; None if the folder was not compiled."""
    path = folder / "manifest.json"
    check_links(folder)
    return decode(content(path), path) if os.path.lexists(path) else None


def decode(content: bytes, path: Path) -> Manifest:
    """The manifest in `content`, or an error that names `path`."""
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.format != FORMAT:
            raise DataError(
                f"{path} has format {head.format}, and this batchbench reads format {FORMAT}: "
                "use the version that wrote it, or move the folder away and compile again"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
        if manifest.sha256 not in ("", manifest.digest()):
            raise DataError(f"{path} is damaged (its digest is another): move the folder away and compile again")
        return manifest
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}): move the folder away and compile again") from None


def checked_shards(folder: Path, manifest: Manifest) -> list[Path]:
    """The files of a manifest; raises DataError if a file's digest is not the manifest's."""
    paths = [folder / shard.file for shard in manifest.shards]
    for path, shard in zip(paths, manifest.shards, strict=True):
        if not path.is_file() or hashlib.sha256(content(path)).hexdigest() != shard.file_sha256:
            raise DataError(f"{path} is missing or damaged: move the folder away and compile again")
    return paths


class PromptBytes(NamedTuple):
    """How long prompts are."""

    mean: float
    longest: int


def prompt_bytes(folder: Path, manifest: Manifest, rows: int) -> PromptBytes:
    """The length of the first `rows` prompts."""
    return _prompt_bytes(tuple(folder / shard.file for shard in manifest.shards if shard.first < rows), rows)


@cache  # a probe that is asked of many models is measured once
def _prompt_bytes(files: tuple[Path, ...], rows: int) -> PromptBytes:
    size = pl.col("prompt").str.len_bytes()
    asked = pl.scan_parquet(list(files), glob=False).filter(pl.col("id") < rows)
    return PromptBytes(*asked.select(mean=size.mean(), longest=size.max()).collect().row(0))


def sizes_of(folder: Path, manifest: Manifest, ranges: Sequence[tuple[int, int]]) -> pl.DataFrame:
    """The id of every row of ranges, which are sorted, and the bytes of its prompt."""
    found = [pl.DataFrame(schema={"id": pl.UInt32, "bytes": pl.UInt32})]
    for shard in manifest.shards:
        parts = [(max(start - shard.first, 0), min(stop - shard.first, shard.rows)) for start, stop in ranges]
        if parts := [(start, stop) for start, stop in parts if start < stop]:
            columns = [pl.col("id").cast(pl.UInt32), pl.col("prompt").str.len_bytes().cast(pl.UInt32).alias("bytes")]
            sizes = pl.scan_parquet(folder / shard.file, glob=False).select(columns).collect()
            found += [sizes[start:stop] for start, stop in parts]
    return pl.concat(found)


class _Head(msgspec.Struct):
    format: int
