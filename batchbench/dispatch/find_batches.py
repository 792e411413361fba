"""Find the batches of a run that the provider has, and fetch their results again, for a run that lost its own records.

Only calls that read are made: nothing is bought and no batch is changed.
"""

from collections.abc import Mapping, Set

import anyio
import msgspec
from anyio import to_thread

from batchbench.errors import BatchbenchError
from batchbench.providers.interface import Calls, Provider, Remote
from batchbench.runs.folder import Run
from batchbench.runs.nonce import made_by
from batchbench.runs.results import Segment
from batchbench.runs.salvage.damaged_run import DamagedRun, Evidence, FoundBatch
from batchbench.runs.salvage.files import custom_id, free_name
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused

LOCAL = ("chat", "mlm")  # their batches are files in the run's folder
UNREAD = (Refused, Incomplete, ProviderError, msgspec.DecodeError, *FAILURES)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before the provider is asked."""

    run_id: str
    known: Set[str]  # nonces of the run
    without_rows: Set[str]  # those of which the requests are unknown
    claimed: Mapping[str, str]  # ids of batches of the run, to their nonces
    elsewhere: Set[str]  # nonces of other runs in the same home
    since: float  # seconds since 1970: when the run began, or earlier
    settled: bool  # every batch of the run is old enough to be in the listing


class _Ids:
    """The custom ids in a file that is being downloaded."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int]] = []
        self.first = b""  # the first line
        self._rest = b""

    def take(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._add(lines)

    def end(self) -> None:
        self._add([self._rest] if self._rest else [])

    def _add(self, lines: list[bytes]) -> None:
        self.first = self.first or (lines[0] if lines else b"")
        self.found += [found for line in lines if (found := custom_id(line))]


async def find_batches(run: Run, provider: Provider, calls: Calls, search: Search) -> Evidence:
    """The batches of a run in the provider's list, with their requests where they are unknown."""
    found: dict[str, FoundBatch] = {}
    notes: list[str] = []
    complete = search.settled
    if not search.settled:
        notes.append("the provider may not list the newest batches yet: run `batchbench salvage` again in a while")
    for remote in await provider.listing(calls, search.since):
        nonce = remote.nonce or search.claimed.get(remote.id) or await _nonce(calls, remote)
        if nonce is None:
            complete = False
            notes.append(f"batch {remote.id} may belong to this run, which cannot be seen until it has ended")
            continue
        ours = _is_of_run(remote, nonce, search)
        if ours is False or nonce in search.elsewhere or not nonce:
            continue
        wanted = nonce not in search.known or nonce in search.without_rows
        ids = await _ids(calls, run, provider, remote) if wanted else _Ids()
        if ours is None:
            ours = _is_asked_here(ids.first, run, provider)
            if ours is False:
                continue
        rows = sorted({row for one, row, _ in ids.found if one == nonce})
        if wanted and not rows:
            complete = False
            notes.append(f"the requests of batch {remote.id} cannot be read: it may belong to this run")
            continue
        rep = next((rep for one, _, rep in ids.found if one == nonce), 0)
        found[nonce] = FoundBatch(
            remote=remote.id, rep=rep, rows=rows, total=remote.total or None, certain=ours is True
        )
    return Evidence(batches=found, complete=complete, notes=notes)


def _is_of_run(remote: Remote, nonce: str, search: Search) -> bool | None:
    """Whether a batch belongs to the run; None if neither its nonce nor its metadata tells."""
    if nonce in search.known:
        return True
    return made_by(nonce, search.run_id) if remote.run is None else remote.run == search.run_id


def _is_asked_here(line: bytes, run: Run, provider: Provider) -> bool | None:
    """Whether a request of a batch is one that this run asks; None if its text is not known."""
    found = custom_id(line)
    if found is None or not provider.names_batches:
        return None
    nonce, row, rep = found
    if row >= run.manifest.prompts:
        return False
    own = provider.encoder(run.target)(f"{nonce}-{row}-{rep}", run.prompts(row, row + 1)[0])
    try:
        bodies = [msgspec.json.decode(text, type=_Request).body for text in (line, own)]
    except msgspec.DecodeError:
        return None
    return bodies[0] == bodies[1]


class _Body(msgspec.Struct):
    model: str
    messages: list[dict[str, object]]


class _Request(msgspec.Struct):
    """A line of an input file: what identifies its question."""

    body: _Body


async def _nonce(calls: Calls, remote: Remote) -> str | None:
    """The nonce of an ended batch without a name, from its first results; empty if it is not a batch of ours."""
    if remote.state != "ended" or not remote.parts:
        return None
    try:
        beginning = await calls.read_start(remote.parts[0][1])
    except UNREAD:
        return None
    nonces = [found[0] for line in beginning.split(b"\n") if (found := custom_id(line))]
    if not nonces:
        return "" if beginning.strip() else None
    return max(set(nonces), key=nonces.count)


async def _ids(calls: Calls, run: Run, provider: Provider, remote: Remote) -> _Ids:
    """The ids of a batch's requests: in its input file or, if the provider shows none, in its results."""
    paths = [f"/files/{remote.file}/content"] if provider.upload is not None and remote.file else []
    ids = _Ids()
    for path in [*paths, *(path for _, path in remote.parts)]:
        try:
            await calls.download(path, ids.take, _max_bytes(run, remote.total or provider.limits.requests))
        except UNREAD:
            continue
        ids.end()
        if path in paths and ids.found:
            break
    return ids


def local_batches(run: Run) -> Evidence:
    """The batches that this machine executes: each is a file of requests in the run's folder."""
    spool, found = run.folder / "spool", dict[str, FoundBatch]()
    for path in sorted(spool.glob("*.jsonl")) if spool.is_dir() else []:
        if path.name.count(".") > 1:
            continue  # results, or requests that were never sent
        ids = [one for line in path.read_bytes().split(b"\n") if (one := custom_id(line))]
        if ids:
            nonce, _, rep = ids[0]
            rows = sorted({row for one, row, _ in ids if one == nonce})
            found[nonce] = FoundBatch(remote=path.name.removesuffix(".jsonl"), rep=rep, rows=rows, total=len(rows))
    return Evidence(batches=found, complete=spool.is_dir())


async def fetch_again(damaged: DamagedRun, provider: Provider, calls: Calls, evidence: Evidence) -> list[str]:
    """Fetch the results of batches whose result files are damaged or gone; returns why some could not be fetched."""
    notes = []
    for nonce in damaged.nonces:
        left, found = damaged.leftover(nonce), evidence.batches.get(nonce)
        remote = left.remote or (found.remote if found and found.certain else None)
        if not left.lacks_results or remote is None:
            continue
        try:
            about = await provider.get(calls, remote)
            if about.state == "ended":
                for _, path in about.parts:
                    await _download(damaged.run, nonce, path, calls, about.total or provider.limits.requests)
        except (*UNREAD, BatchbenchError) as error:
            notes.append(f"the results of batch {nonce} cannot be fetched again ({error})")
    return notes


async def _download(run: Run, nonce: str, path: str, calls: Calls, rows: int) -> None:
    segment = Segment(run, nonce, free_name(run, "raw", nonce))
    try:
        await calls.download(path, segment.take, _max_bytes(run, rows))
    except (*UNREAD, anyio.get_cancelled_exc_class()):
        segment.drop()
        raise
    await to_thread.run_sync(segment.seal)


def copy_local_results(damaged: DamagedRun) -> None:
    """Copy results again that this machine computed, where the copies in raw/ are damaged or gone."""
    for nonce in damaged.nonces:
        results = damaged.run.folder / "spool" / f"{nonce}.results.jsonl"
        if damaged.leftover(nonce).lacks_results and results.is_file():
            segment = Segment(damaged.run, nonce, free_name(damaged.run, "raw", nonce))
            segment.take(results.read_bytes())
            segment.seal()


def _max_bytes(run: Run, rows: int) -> int:
    """An upper bound for the requests or the results of a batch."""
    return max(64 << 20, 4 * rows * (run.target.max_tokens * 8 + 4096))
