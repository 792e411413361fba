"""Stage one: write every prompt of a probe to disk.

The items of a manifest are in hashed order, so that any prefix is a fair sample. The design is kept in memory without
text. Text is rendered, digested and written one shard at a time, in a few threads.
"""

import hashlib
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from batchbench.compile.manifest import SHARD_ROWS, Identity, Manifest, Shard, Source, folder_of, read_manifest
from batchbench.core.store import Store, sync
from batchbench.errors import DataError
from batchbench.probes.kit.probe import P, Probe, Tables
from batchbench.probes.kit.templates import hashed

if TYPE_CHECKING:
    from typing_extensions import Buffer

Progress = Callable[[int, int], None]  # rows written so far, rows in total
WORKERS = 3  # shards at a time: two keep two cores busy while the third waits for the disk


def compile(
    probe: Probe[P], params: P, tables: Tables, sources: dict[str, Source], store: Store, progress: Progress
) -> tuple[Path, Manifest]:
    """Write every prompt of `probe` to disk, in hashed order; does nothing if the manifest exists."""
    identity = identify(probe, params, sources)
    folder = folder_of(store, identity)
    if manifest := read_manifest(folder):
        return folder, _checked(manifest, identity, folder)
    with store.locked(folder):
        design = probe.design(params, tables).collect().rechunk()  # picking random rows is 5 times faster in one chunk
        prompt, variants = probe.prompt(params, tables), probe.variants(params)
        order = _hashed_order(design.height // variants)
        step = SHARD_ROWS // variants  # items per shard; a shard never splits an item

        def write(start: int) -> Shard:
            rows = _rows(design, order[start : start + step], start, variants)
            return _write_shard(rows.with_columns(prompt=prompt), folder, start // step, store)

        shards: list[Shard] = []
        with ThreadPoolExecutor(WORKERS) as pool:
            for shard in pool.map(write, range(0, len(order), step)):
                shards.append(shard)
                progress(shard.first + shard.rows, design.height)
        sync(folder)  # the names of all shards have to be on disk before manifest.json
        fields = {name: getattr(identity, name) for name in Identity.__struct_fields__}
        manifest = Manifest(**fields, items=len(order), prompts=design.height, variants=variants, shards=shards)
        manifest = msgspec.structs.replace(manifest, sha256=manifest.digest())
        store.write(folder / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return folder, manifest


def identify(probe: Probe[P], params: P, sources: dict[str, Source]) -> Identity:
    """Everything that determines the prompts that `compile` writes."""
    values = {name: getattr(params, name) for name in params.__struct_fields__}
    return Identity(probe=probe.name, version=probe.version, params=values, data=sources)


def _checked(manifest: Manifest, identity: Identity, folder: Path) -> Manifest:
    if any(getattr(manifest, name) != getattr(identity, name) for name in Identity.__struct_fields__):
        raise DataError(f"{folder} contains a manifest that does not match its name: move it away and compile again")
    return manifest


def _hashed_order(items: int) -> pl.Series:
    """The numbers of all items, sorted by their hashes.

    Each item's number replaces the low bits of its hash, so that integers can be sorted, in a third of the time of an
    argsort. If two hashes agree in all other bits, the smaller number comes first.
    """
    low = (1 << items.bit_length()) - 1
    numbers = pl.int_range(items, dtype=pl.UInt64, eager=True).alias("item").to_frame()
    keyed = hashed(pl.col("item")) & pl.lit(~low % (1 << 64), pl.UInt64) | pl.col("item")
    # Hashed in slices: at full length, the intermediate columns would take most of the stage's memory.
    keys = np.concatenate([part.select(keyed).to_series().to_numpy() for part in numbers.iter_slices(1 << 16)])
    keys.sort()
    return pl.Series(keys & np.uint64(low), dtype=pl.UInt32)


def _rows(design: pl.DataFrame, items: pl.Series, first: int, variants: int) -> pl.DataFrame:
    """The design rows of `items`, which become the items number `first` and following of the manifest."""
    numbers = pl.select(
        id=pl.int_range(first * variants, (first + len(items)) * variants, dtype=pl.UInt32)
    ).with_columns(item=pl.col("id") // variants, variant=(pl.col("id") % variants).cast(pl.UInt8))
    numbers = numbers.with_columns(origin=pl.lit(items).gather(pl.col("item") - first))
    rows = numbers.select(row=pl.col("origin") * variants + pl.col("variant"))["row"]
    return numbers.hstack(design[rows])


def _write_shard(rows: pl.DataFrame, folder: Path, number: int, store: Store) -> Shard:
    content = io.BytesIO()
    rows.write_parquet(content, compression="zstd", compression_level=1, statistics=False)
    store.write(folder / f"{number:05}.parquet", content.getbuffer(), last=False)
    return Shard(
        file=f"{number:05}.parquet",
        first=rows["id"][0],
        rows=rows.height,
        text_sha256=_text_digest(rows.select("prompt")),
        file_sha256=hashlib.sha256(content.getbuffer()).hexdigest(),
    )


def _text_digest(prompts: pl.DataFrame) -> str:
    """sha256 of all prompts, each followed by NUL; polars writes the text into the digest, block by block."""
    digest = _Digest()
    prompts.write_csv(digest, include_header=False, quote_style="never", line_terminator="\0", batch_size=1024)
    return digest.sha256.hexdigest()


class _Digest(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.sha256 = hashlib.sha256()

    def write(self, block: "Buffer") -> int:
        self.sha256.update(block)
        return memoryview(block).nbytes
