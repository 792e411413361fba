"""Batches that leave as files and come back as files, for a server or a person that takes nothing else.

An exported batch is an intent like any other: its rows are in flight, its money is reserved, and its nonce is in every
custom id, so that results name the very request they answer. Nobody is called here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from anyio import to_thread

from batchbench.core.money import dollars
from batchbench.dispatch.collect import keep
from batchbench.dispatch.state import Work, begin
from batchbench.dispatch.submit import encode, plan
from batchbench.errors import DataError, UsageError
from batchbench.providers.interface import Remote
from batchbench.runs import results
from batchbench.runs.events import Exported, Part, Stored
from batchbench.runs.ingest import CUSTOM_ID, LONGEST, ingest
from batchbench.runs.journal import Batch

PART = "import"  # the kept copies of result files are called <nonce>-import<n>


async def export(work: Work, folder: Path) -> list[tuple[Path, int]]:
    """Write what is to be asked as files of requests, and how many are in each; those that got lost, too."""
    await begin(work)
    written = []
    for batch in work.run.state.open():
        if batch.state == "exported" and batch.file and not (folder / batch.file).exists():
            chunk = await to_thread.run_sync(encode, work, batch.nonce, batch.rep, batch.ranges, None)
            written.append(await to_thread.run_sync(_write, work, folder / batch.file, chunk.requests))
    while planned := await plan(work):
        nonce, chunk = planned
        name = f"{work.run.manifest.probe}-{work.run.target.slug}-{nonce}.jsonl"
        # On record before the file is there: a file that nobody knows of could be answered for nothing, while a
        # lost one is written again, letter for letter.
        await work.append(Exported(at=work.now, nonce=nonce, file=name))
        written.append(await to_thread.run_sync(_write, work, folder / name, chunk.requests))
    return written


def _write(work: Work, path: Path, requests: Sequence[bytes]) -> tuple[Path, int]:
    work.run.store.write(path, b"".join(line.rstrip(b"\n") + b"\n" for line in requests))
    return path, len(requests)


def nonces(path: Path) -> set[str]:
    """The batches that a result file answers, as far as its ids tell."""
    return {nonce for _, nonce in _lines(path)} - {""}


async def bring(work: Work, batch: Batch, files: Sequence[Path], *, partial: bool) -> Stored:
    """Take in the results of an exported batch, from all the files that hold some; nothing is stored by halves.

    Lines that cannot be attributed are kept with the batch that the line before them belongs to.
    """
    _check_state(batch)
    forgotten = list((work.run.folder / "raw").glob(f"{batch.nonce}-{PART}*"))  # by an import that was interrupted
    sealed = await to_thread.run_sync(_sealed, work, batch, files)
    paths = [work.run.folder / part.file for part in sealed]
    found = await to_thread.run_sync(ingest, paths, batch, work.provider, work.wish.price)
    wrong = ""
    if found.cost > batch.reserve:
        wrong = f"they claim to have cost {dollars(found.cost)}, and {dollars(batch.reserve)} is the most they can have"
    elif found.lacking and not partial:
        wrong = f"{found.lacking:,} of {batch.rows:,} answers are not in them: name the other files, too, or --partial"
    for path in {*forgotten, *paths} if wrong else {*forgotten} - {*paths}:
        path.unlink()  # a copy that no journal tells of
    if wrong:
        raise DataError(f"the results of {batch.file} cannot be taken ({', '.join(map(str, files))}): {wrong}")
    remote = Remote(id=batch.file or "", state="ended", provider_status="imported", created=work.now)
    await keep(work, batch, remote, sealed, found)
    stored = work.run.state.batches[batch.nonce].stored
    assert stored is not None  # noqa: S101 - that is what keeping means
    return stored


def _check_state(batch: Batch) -> None:
    match batch.state:
        case "exported":
            return
        case "stored":
            raise UsageError(f"the results of batch {batch.nonce} have been taken in before")
        case "void" | "rejected":
            raise UsageError(f"batch {batch.nonce} was given up ({batch.word}), and its requests are free to ask again")
        case _:
            raise UsageError(f"batch {batch.nonce} is at the provider's: `batchbench run` collects it")


def _sealed(work: Work, batch: Batch, files: Sequence[Path]) -> list[Part]:
    """Copies of what result files hold of a batch, byte for byte, sealed on disk."""
    sealed = []
    for number, path in enumerate(files):
        segment = results.Segment(work.run, batch.nonce, f"{PART}{number}")
        held: list[bytes] = []
        owner = ""
        for line, nonce in _lines(path):
            if nonce and nonce in work.run.state.batches:
                owner = nonce
            if owner == batch.nonce:
                for text in [*held, line]:
                    segment.take(text)
                held = []
            elif not owner:
                held.append(line)  # before the first line that has an owner: they go with it
        sealed.append(segment.seal())
    return sealed


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    """The lines of a result file, each with the nonce in its id, or nothing."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST):
                number += 1
                if len(line) == LONGEST and not line.endswith(b"\n"):
                    raise DataError(f"{path}:{number}: a line of more than {LONGEST >> 20} MiB is no result")
                found = CUSTOM_ID.search(line)
                yield line, found[1].decode().partition("-")[0] if found else ""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
