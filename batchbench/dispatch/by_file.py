"""Export batches to files and import their results, for servers and people that accept nothing else.

An exported batch is an intent like any other: its rows are in flight, its money is reserved, and its nonce is in every
custom id, so that each result names the request that it answers. No provider is called.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl
from anyio import to_thread

from batchbench.core.clock import Clock
from batchbench.core.money import dollars
from batchbench.core.text import repair_json
from batchbench.dispatch.budget import Account
from batchbench.dispatch.learning import Terms
from batchbench.dispatch.submit import encode, reserve_batch
from batchbench.errors import BatchbenchError, DataError, UsageError
from batchbench.providers import load_provider
from batchbench.providers.interface import Provider
from batchbench.runs.events import Exported, Late, Part, Stored
from batchbench.runs.folder import Run
from batchbench.runs.ingest import CUSTOM_ID, Ingested, as_ranges, ingest, write_results
from batchbench.runs.journal import BatchRecord, rows_of
from batchbench.runs.results import MAX_LINE, Segment, write_answers
from batchbench.runs.row_states import MISSING, TODO, row_states

PART = "import"  # copies of imported result files are called <nonce>-import<n>


async def export(account: Account, folder: Path) -> tuple[list[tuple[Path, int]], BatchbenchError | None]:
    """Write the requests that are in no batch yet to files; exported files that got lost are written again.

    Returns each file with the number of its requests, and the reason if not everything could be exported.
    """
    await account.begin()
    run, provider = account.run, load_provider(account.run.target.provider)
    written = []
    for batch in run.state.open():
        if batch.state == "exported" and batch.file and not (folder / batch.file).exists():
            args = (account, provider, batch.nonce, batch.rep, batch.ranges, None)
            chunk = await to_thread.run_sync(encode, *args, Terms(max_tokens=batch.max_tokens))
            written.append(await to_thread.run_sync(_write, run, folder / batch.file, chunk.requests))
    while isinstance(reserved := await reserve_batch(account, provider, account.limits.requests), tuple):
        nonce, chunk = reserved
        name = f"{run.manifest.probe}-{run.target.slug}-{nonce}.jsonl"
        # On record before the file exists: an unknown file could be answered for nothing, while a lost one is
        # written again, byte for byte.
        await account.append(Exported(at=account.clock.now(), nonce=nonce, file=name))
        written.append(await to_thread.run_sync(_write, run, folder / name, chunk.requests))
    return written, reserved


def _write(run: Run, path: Path, requests: Sequence[bytes]) -> tuple[Path, int]:
    run.store.write(path, b"".join(line.rstrip(b"\n") + b"\n" for line in requests))
    return path, len(requests)


def nonces(path: Path) -> set[str]:
    """The nonces of the batches that a result file has answers for."""
    return {nonce for _, nonce in _lines(path)} - {""}


async def import_results(run: Run, batch: BatchRecord, files: Sequence[Path], clock: Clock, *, partial: bool) -> Stored:
    """Store the results of an exported batch, from all the files that hold some of them: all or nothing.

    Lines that cannot be attributed are kept with the batch that the line before them belongs to. A later import adds
    the rows that were missing.
    """
    missing = _missing(run, batch)
    provider = load_provider(run.target.provider)
    await to_thread.run_sync(_check_shape, provider, batch, files)
    kept = [part for part in batch.stored.parts if part.file.startswith("raw/")] if batch.stored else []
    known = [run.folder / part.file for part in kept]
    # What an interrupted import left is not in the journal.
    leftovers = {*(run.folder / "raw").glob(f"{batch.nonce}-{PART}*")} - {*known}
    sealed = await to_thread.run_sync(_sealed, run, batch, files, missing)
    paths = [run.folder / part.file for part in sealed]
    found = await to_thread.run_sync(ingest, [*known, *paths], batch, provider)
    lacking = found.lacking if missing is None else len(missing & {*rows_of(found.missing)})
    problem = ""
    if missing is not None and lacking == len(missing):
        problem = "what they contain was imported before"
    elif found.cost > batch.reserve:
        problem = f"they cost {dollars(found.cost)}, but the requests can cost at most {dollars(batch.reserve)}"
    elif lacking and not partial:
        problem = f"{lacking:,} of {batch.rows:,} answers are not in them: add the other files, or use --partial"
    for path in {*leftovers, *paths} if problem else leftovers - {*paths}:
        path.unlink()  # a copy that is not in the journal
    if problem:
        raise DataError(f"the results of {batch.file} cannot be imported ({', '.join(map(str, files))}): {problem}")
    if missing is None or batch.stored is None:
        stored = await to_thread.run_sync(write_results, run, batch, sealed, found, clock)
        await to_thread.run_sync(run.append, stored)
        return stored
    late = await to_thread.run_sync(_late, run, batch.stored, sealed, found, missing, clock)
    await to_thread.run_sync(run.append, late)
    return run.state.batches[batch.nonce].stored or batch.stored


def _missing(run: Run, batch: BatchRecord) -> set[int] | None:
    """The rows that an earlier import lacked and no other batch has answered or contains; None: the first import."""
    match batch.state:
        case "exported":
            return None
        case "stored" if batch.stored and batch.stored.missing and batch.remote is None:
            lacking = rows_of(batch.stored.missing)
            marks = row_states(run.state, max(lacking) + 1, batch.rep + 1)[batch.rep]
            return {row for row in lacking if marks[row] in (MISSING, TODO)}
        case "stored":
            raise UsageError(f"the results of batch {batch.nonce} were imported before")
        case "void" | "rejected":
            raise UsageError(f"batch {batch.nonce} was given up ({batch.reason}): its requests can be asked again")
        case _:
            raise UsageError(f"batch {batch.nonce} is at the provider: `batchbench run` collects it")


def _check_shape(provider: Provider, batch: BatchRecord, files: Sequence[Path]) -> None:
    """Raise DataError if no line about the batch has the shape of a result."""
    for path in files:
        for line, nonce in _lines(path):
            if nonce == batch.nonce and _is_result(line, provider.result_fields):
                return
    names = ", ".join(map(str, files))
    raise DataError(f"no line of {names} is a result, so nothing was imported. Expected: {provider.result_line}")


def _is_result(line: bytes, fields: Sequence[str]) -> bool:
    try:
        found = msgspec.json.decode(repair_json(line))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and any(isinstance(found.get(name), dict) for name in fields)


def _late(run: Run, stored: Stored, sealed: list[Part], found: Ingested, missing: set[int], clock: Clock) -> Late:
    """Write the answers to rows that were missing; returns the event that the caller has to append."""
    answers = found.answers.filter(pl.col("id").is_in(sorted(missing)))
    again = sorted({*rows_of(found.again)} & missing)
    name = Path(sealed[0].file).name.partition(".")[0]  # of the first copy, so it is new
    written = write_answers(run, name, answers)
    settled = {*answers["id"], *again}
    return Late(
        at=clock.now(),
        nonce=stored.nonce,
        parts=[*sealed, written],
        again=as_ranges(again),
        missing=as_ranges([row for row in rows_of(stored.missing) if row not in settled]),
        quarantined=0,
        outcomes=dict(answers["outcome"].value_counts().sort("outcome").rows()),
        cost=found.cost,
    )


def _sealed(run: Run, batch: BatchRecord, files: Sequence[Path], missing: set[int] | None) -> list[Part]:
    """Copy the lines of a batch from result files, byte for byte; one sealed copy for each file.

    With `missing`, only lines about these rows are copied: the others were imported before.
    """
    wanted = {f"{batch.nonce}-{row}-{batch.rep}".encode() for row in missing or ()}
    first = sum(part.file.startswith("raw/") for part in batch.stored.parts) if batch.stored else 0
    sealed = []
    for number, path in enumerate(files, first):
        segment = Segment(run, batch.nonce, f"{PART}{number}")
        for line in _own_lines(run, batch, path):
            found = CUSTOM_ID.search(line)
            if missing is None or (found and found[1] in wanted):
                segment.take(line)
        sealed.append(segment.seal())
    return sealed


def _own_lines(run: Run, batch: BatchRecord, path: Path) -> Iterator[bytes]:
    """The lines of a result file that belong to a batch, or stand beside its lines and belong to none."""
    unowned: list[bytes] = []  # lines before the first one with a known nonce: they go with it
    owner = ""
    for line, nonce in _lines(path):
        if nonce and nonce in run.state.batches:
            owner = nonce
        if owner == batch.nonce:
            yield from [*unowned, line]
            unowned = []
        elif not owner:
            unowned.append(line)


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    """The lines of a result file, each with the nonce in its id; the nonce is empty if there is no id."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE):
                number += 1
                if len(line) == MAX_LINE and not line.endswith(b"\n"):
                    raise DataError(f"{path}:{number}: a line of more than {MAX_LINE >> 20} MiB is not a result")
                found = CUSTOM_ID.search(line)
                yield line, found[1].decode().partition("-")[0] if found else ""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
