"""Export batches to files and import their results, for servers and people that accept nothing else.

An exported batch is an intent like any other: its rows are in flight, its money is reserved, and its nonce is in every
custom id, so that each result names the request that it answers. No provider is called.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from anyio import to_thread

from batchbench.core.clock import Clock
from batchbench.core.money import dollars
from batchbench.dispatch.budget import Account
from batchbench.dispatch.submit import encode, reserve_batch
from batchbench.errors import BatchbenchError, DataError, UsageError
from batchbench.providers import load_provider
from batchbench.runs.events import Exported, Part, Stored
from batchbench.runs.folder import Run
from batchbench.runs.ingest import CUSTOM_ID, ingest, write_results
from batchbench.runs.journal import BatchRecord
from batchbench.runs.results import MAX_LINE, Segment

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
            chunk = await to_thread.run_sync(encode, account, provider, batch.nonce, batch.rep, batch.ranges, None)
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

    Lines that cannot be attributed are kept with the batch that the line before them belongs to.
    """
    _check_state(batch)
    if run.state.asked is None:
        raise DataError(f"nothing has been asked in {run.folder}")
    price, provider = run.state.asked.rates, load_provider(run.target.provider)
    leftovers = list((run.folder / "raw").glob(f"{batch.nonce}-{PART}*"))  # of an import that was interrupted
    sealed = await to_thread.run_sync(_sealed, run, batch, files)
    paths = [run.folder / part.file for part in sealed]
    found = await to_thread.run_sync(ingest, paths, batch, provider, price)
    problem = ""
    if found.cost > batch.reserve:
        problem = f"they cost {dollars(found.cost)}, but the requests can cost at most {dollars(batch.reserve)}"
    elif found.lacking and not partial:
        problem = f"{found.lacking:,} of {batch.rows:,} answers are not in them: add the other files, or use --partial"
    for path in {*leftovers, *paths} if problem else {*leftovers} - {*paths}:
        path.unlink()  # a copy that is not in the journal
    if problem:
        raise DataError(f"the results of {batch.file} cannot be imported ({', '.join(map(str, files))}): {problem}")
    stored = await to_thread.run_sync(write_results, run, batch, sealed, found, clock)
    await to_thread.run_sync(run.append, stored)
    return stored


def _check_state(batch: BatchRecord) -> None:
    match batch.state:
        case "exported":
            return
        case "stored":
            raise UsageError(f"the results of batch {batch.nonce} were imported before")
        case "void" | "rejected":
            raise UsageError(f"batch {batch.nonce} was given up ({batch.reason}): its requests can be asked again")
        case _:
            raise UsageError(f"batch {batch.nonce} is at the provider: `batchbench run` collects it")


def _sealed(run: Run, batch: BatchRecord, files: Sequence[Path]) -> list[Part]:
    """Copy the lines of a batch from result files, byte for byte; one sealed copy for each file."""
    sealed = []
    for number, path in enumerate(files):
        segment = Segment(run, batch.nonce, f"{PART}{number}")
        unowned: list[bytes] = []  # lines before the first one with a known nonce: they go with it
        owner = ""
        for line, nonce in _lines(path):
            if nonce and nonce in run.state.batches:
                owner = nonce
            if owner == batch.nonce:
                for text in [*unowned, line]:
                    segment.take(text)
                unowned = []
            elif not owner:
                unowned.append(line)
        sealed.append(segment.seal())
    return sealed


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
