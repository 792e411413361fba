"""IO: what is left of the files of a batch: result lines and answers, also in damaged files."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import polars as pl

from batchbench.core.store import POLARS_ERRORS, SCRATCH, content, explained, sync
from batchbench.errors import DataError
from batchbench.runs import journal
from batchbench.runs.events import AnyEvent, Part, Salvaged, Stored
from batchbench.runs.folder import Run
from batchbench.runs.ingest import CUSTOM_ID
from batchbench.runs.journal import replay
from batchbench.runs.results import ANSWERS, Segment, UnreadableFileError, blocks, file_part

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUFFIX = "salvage"  # in the names of files that `batchbench salvage` writes
MAGIC = b"\x28\xb5\x2f\xfd"  # begins a zstd frame
PIECE = 256  # bytes given to the decompressor at once: what precedes the damage is not lost with it
NAME = re.compile(r"([A-Za-z0-9]{1,40})(?:-([\w-]+))?\.(?:jsonl\.zst|parquet)")
OWN_ID = re.compile(r"([A-Za-z0-9]{1,40})-(\d{1,10})-(\d{1,5})")


class BatchFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one batch on disk."""

    whole: bool  # the files are those that the journal names, and all of them are as they were stored
    raw: list[Part]  # result files that are as they were stored or, if the journal does not name them, can be read
    damaged: list[Path]  # result files that are not
    answers: pl.DataFrame  # of the answer files that are as they were stored, one for each row
    kept: list[Part] | None  # the answer files as they were stored; None if one that is in use is damaged
    unused: list[Path]  # answer files that are damaged, or that the journal does not name


def files_by_nonce(folder: Path) -> dict[str, list[Path]]:
    """The result and answer files of a run, by the nonce in their names."""
    found: dict[str, list[Path]] = {}
    for path in sorted([*(folder / "raw").glob("[!.]*"), *(folder / "answers").glob("[!.]*")]):
        match = NAME.fullmatch(path.name)
        if match and path.is_file() and not path.is_symlink():
            found.setdefault(match[1], []).append(path)
    return found


def batch_files(folder: Path, paths: list[Path], stored: Stored | None, in_use: list[Path]) -> BatchFiles:
    """Compare the files of a batch with what the journal says about them; `in_use` are the answer files it reads."""
    named = {part.file: part for part in stored.parts} if stored else {}
    raw: list[Part] = []
    damaged: list[Path] = []
    unused: list[Path] = []
    intact: set[str] = set()
    tables: list[tuple[int, pl.DataFrame]] = []  # with their place in `in_use`, before those that are not
    for path in paths:
        part = file_part(path, folder)
        known = named.get(part.file, part if stored is None or SUFFIX in path.name else None)
        if path.parent.name == "raw":
            sound = part == named.get(part.file, part) and _readable(path)
            raw += [part] if sound else []
            damaged += [] if sound else [path]
        else:
            table = read_table(path) if part == known else None
            sound = table is not None
            if table is not None:
                tables.append((in_use.index(path) if path in in_use else len(in_use), table))
            unused += [path] if not sound or (stored and part.file not in named) else []
        if sound and part.file in named:
            intact.add(part.file)
    tables.sort(key=lambda pair: pair[0])
    answers = pl.concat([pl.DataFrame(schema=ANSWERS), *(table for _, table in tables)])
    order = list(named)
    result_files = {name for name in named if name.startswith("raw/")}
    usable = stored is not None and all(str(path.relative_to(folder)) in intact for path in in_use)
    return BatchFiles(
        whole=stored is not None and intact == {*named} == {str(path.relative_to(folder)) for path in paths},
        raw=sorted(raw, key=lambda part: order.index(part.file) if part.file in named else len(order)),
        damaged=damaged,
        answers=answers.unique("id", keep="first", maintain_order=True).sort("id"),
        kept=[part for name, part in named.items() if name in intact and name not in result_files] if usable else None,
        unused=unused,
    )


def _readable(path: Path) -> bool:
    try:
        for _ in blocks(path):
            pass
    except UnreadableFileError:
        return False
    return True


def read_table(path: Path) -> pl.DataFrame | None:
    """The answers in a file; None if it cannot be read as such."""
    try:
        table = pl.read_parquet(content(path))
        whole = pl.concat([pl.DataFrame(schema=ANSWERS), table], how="diagonal_relaxed")
        return whole.select(*ANSWERS).cast(pl.Schema(ANSWERS))
    except (*POLARS_ERRORS, DataError):
        return None


def surviving_lines(path: Path) -> list[bytes]:
    """The complete lines of a result file that can be decompressed, in spite of damage."""
    packed, found, start = content(path), list[bytes](), 0
    while 0 <= start < len(packed):
        text, consumed = _decompressed(packed[start:])
        lines = text.split(b"\n")
        found += lines[:-1]
        if consumed is None:  # damaged: look for the next frame
            start = packed.find(MAGIC, start + 1)
            continue
        found += [lines[-1]] if lines[-1] else []
        start += consumed
    return [line for line in found if line.strip()]


def _decompressed(packed: bytes) -> tuple[bytes, int | None]:
    """What a frame holds, and its length; the length is None if the frame is damaged or cut off."""
    decompressor, pieces = zstd.ZstdDecompressor(), list[bytes]()
    try:
        for place in range(0, len(packed), PIECE):
            pieces.append(decompressor.decompress(packed[place : place + PIECE]))
            if decompressor.eof:
                return b"".join(pieces), place + len(packed[place : place + PIECE]) - len(decompressor.unused_data)
    except (zstd.ZstdError, EOFError):
        pass
    return b"".join(pieces), None


def custom_id(line: bytes) -> tuple[str, int, int] | None:
    """Nonce, row and repetition in the id of a result line; None if it has no such id."""
    found = CUSTOM_ID.search(line)
    match = OWN_ID.fullmatch(found[1].decode()) if found else None
    return (match[1], int(match[2]), int(match[3])) if match else None


def ids_in(paths: list[Path], nonce: str) -> set[tuple[int, int]]:
    """Row and repetition of every result line with a nonce, in files that can be read."""
    return {(row, rep) for line in _lines(paths) for one, row, rep in [custom_id(line) or ("", 0, 0)] if one == nonce}


def _lines(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        yield from surviving_lines(path)


def write_raw(run: Run, nonce: str, lines: list[bytes]) -> Part:
    """Write result lines to a new file."""
    segment = Segment(run, nonce, free_name(run, "raw", nonce))
    segment.take(b"".join(line + b"\n" for line in lines))
    return segment.seal()


def free_name(run: Run, folder: str, nonce: str, what: str = SUFFIX) -> str:
    """What follows the nonce in the name of a new file."""
    taken = len([*(run.folder / folder).glob(f"{nonce}-{what}[0-9]*")])
    aside = len([*(run.folder / "quarantine").glob(f"*{nonce}-{what}[0-9]*")])
    return f"{what}{taken + aside}"


def replace_journal(run: Run, before: bytes, history: list[AnyEvent], salvaged: Salvaged, *, copied: bool) -> None:
    """Replace the journal of a run, in one step; the one before it is kept as journal.damaged.

    Unless the run is a copy, its new journal counts as the one that its batches were bought with.
    """
    folder, path = run.folder, run.folder / "journal"
    replay([*history, salvaged])  # raises DataError if the events do not fit together
    scratch = path.with_name(f"{SCRATCH}journal")
    with explained(path):
        if before:
            number = len([*folder.glob("journal.damaged*")])
            run.store.write(folder / ("journal.damaged" + (f".{number + 1}" if number else "")), before)
        with scratch.open("xb") as file:
            if not copied:
                salvaged = msgspec.structs.replace(salvaged, inode=str(os.fstat(file.fileno()).st_ino))
            crc = 0
            for number, event in enumerate([*history, salvaged]):
                line, crc = journal.line(event, number, crc)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
        sync(folder)
