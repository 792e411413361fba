"""Recognise our batches among those that the provider lists.

A provider that stores metadata shows our nonce in the listing. With another one, only the ids in the results of an
ended batch show whose it is.
"""

from collections.abc import Iterable, Sequence

import anyio
import msgspec

from batchbench.dispatch.state import Dispatch
from batchbench.errors import BatchbenchError, KeyRefusedError
from batchbench.providers.interface import Calls, Provider, Remote
from batchbench.runs.events import Foreign
from batchbench.runs.ingest import CUSTOM_ID
from batchbench.runs.journal import BatchRecord, RunState
from batchbench.runs.nonce import of_run, same_questions
from batchbench.transport.client import FAILURES
from batchbench.transport.replies import Incomplete, ProviderError, Refused
from batchbench.transport.retry import GIVE_UP_AFTER

PEEKS = 8  # results that are read at the same time
MAX_INPUT = 1 << 30  # bytes of the requests or results of a batch
DAY = 86_400.0
MAX_PROBLEM = 200  # characters of the reason why a list cannot be read
OVERDUE = 3600.0  # seconds past its announced end after which a running batch is reported


class Matches(msgspec.Struct, kw_only=True):
    """The listed batches that a create may have made."""

    ours: list[Remote] = []
    running: list[str] = []  # ids: not ended, so it is unknown whose they are
    unreadable: list[str] = []  # ids: ended, but their results cannot be read


async def list_batches(dispatch: Dispatch, since: float) -> list[Remote] | None:
    """List every batch created since then; None if the list cannot be read, so that it proves nothing."""
    try:
        remotes = await dispatch.provider.listing(dispatch.calls, since)
    except (msgspec.DecodeError, ProviderError) as error:
        if isinstance(error, ProviderError) and error.status not in (400, 404):  # the replies to a lost page cursor
            raise
        if isinstance(error, ProviderError) and error.status == 404 and not dispatch.run.state.batches:
            raise BatchbenchError(
                f"the server has no list of batches ({error}): check --base-url, which usually ends with /v1 for "
                "openai: models; a server without a batch API is asked as chat:MODEL@URL"
            ) from None
        dispatch.list_unreadable_since = dispatch.list_unreadable_since or dispatch.uptime()
        dispatch.list_problem = str(error)[:MAX_PROBLEM]
        check_patience(dispatch, dispatch.list_unreadable_since, "the provider's list of batches", error)
        return None
    dispatch.list_unreadable_since, dispatch.list_problem = None, ""
    return remotes


def check_patience(dispatch: Dispatch, since: float, what: str, error: Exception) -> None:
    """Raise if replies have been unreadable for too long."""
    if dispatch.uptime() - since > GIVE_UP_AFTER:
        raise BatchbenchError(f"{what} makes no sense ({error}): run the same command again later") from None


def unclaimed(dispatch: Dispatch, remotes: Iterable[Remote]) -> list[Remote]:
    """The batches that neither this run nor another run of this command has, and that may be ours."""
    known = dispatch.run.state.foreign | claimed(dispatch)
    return [remote for remote in remotes if remote.id not in known]


def claimed(dispatch: Dispatch) -> set[str]:
    """The ids at the provider of all batches that this run and the other runs of this command have."""
    return {remote for account in dispatch.queue.accounts for remote in account.run.state.remotes()}


async def match(dispatch: Dispatch, batch: BatchRecord, remotes: Sequence[Remote]) -> Matches:
    """Which of the unclaimed batches a create made. Names decide; sizes and dates only exclude nameless batches."""
    earliest, latest = dispatch.sent_between(batch)
    if dispatch.provider.names_batches:
        files = {batch.file} - {None}
        ours = [one for one in remotes if one.nonce == batch.nonce or one.file in files]
        # A server may keep neither our name nor the file: such a batch may be it.
        unnamed = [one for one in remotes if one.nonce is None and one.file is None]
        return Matches(ours=ours, unreadable=[one.id for one in unnamed if earliest <= one.created <= latest])
    # A provider may report no size at all.
    candidates = [one for one in remotes if one.total in (batch.rows, 0, None) and earliest <= one.created <= latest]
    nonces = await read_nonces(dispatch, candidates)
    found = Matches()
    for remote in candidates:
        if remote.state != "ended":
            found.running.append(remote.id)
        elif batch.nonce in nonces[remote.id]:
            found.ours.append(remote)
        elif not nonces[remote.id]:
            found.unreadable.append(remote.id)
    return found


async def read_nonces(dispatch: Dispatch, remotes: Sequence[Remote]) -> dict[str, set[str]]:
    """The nonces of batches by id; none of a batch that runs or cannot be read. Batches of others are recorded."""
    async with dispatch.queue.peeking:
        found = await nonces_of(dispatch.provider, dispatch.calls, remotes, dispatch.queue.peeked)
    if not dispatch.provider.names_batches:
        others = [name for name, nonces in found.items() if nonces and not _concerns(dispatch, nonces)]
        await disregard(dispatch, others)
    return found


async def nonces_of(
    provider: Provider, calls: Calls, remotes: Sequence[Remote], known: dict[str, set[str]]
) -> dict[str, set[str]]:
    """The nonces of batches by id, from the listing or from the results; `known` keeps what was read from results."""
    if provider.names_batches:
        return {remote.id: {remote.nonce} if remote.nonce else set() for remote in remotes}
    limiter = anyio.CapacityLimiter(PEEKS)

    async def peek(remote: Remote) -> None:
        async with limiter:
            if nonces := await _peek(calls, remote):
                known[remote.id] = nonces

    async with anyio.create_task_group() as group:
        for remote in remotes:
            if remote.state == "ended" and remote.id not in known:
                group.start_soon(peek, remote)
    return {remote.id: known.get(remote.id, set()) for remote in remotes}


async def disregard(dispatch: Dispatch, remotes: Sequence[str]) -> None:
    """Record batches of others, so that they are not looked at again."""
    new = [remote for remote in remotes if remote not in dispatch.run.state.foreign]
    if new:
        await dispatch.append(Foreign(at=dispatch.now(), remote=new[0], more=new[1:]))


def _concerns(dispatch: Dispatch, nonces: set[str]) -> bool:
    state = dispatch.run.state
    return any(nonce in state.batches or same_questions(nonce, state) for nonce in nonces)


async def _peek(calls: Calls, remote: Remote) -> set[str]:
    """The nonces in the first results of an ended batch: of several lines, for one may be damaged."""
    try:
        beginning = await calls.read_start(remote.parts[0][1])
    except (Refused, Incomplete, *FAILURES):
        return set()
    return {found.decode().partition("-")[0] for found in CUSTOM_ID.findall(beginning)}


async def request_ids(dispatch: Dispatch, remote: Remote) -> "IdCollector":
    """The ids of the requests of a batch, from its input file or from its results; none if neither can be read."""
    ids = IdCollector()
    for path in filter(None, [remote.input, *(path for _, path in remote.parts)]):
        try:
            await dispatch.calls.download(path, ids.take, MAX_INPUT)
        except (Refused, Incomplete, *FAILURES):
            continue
        finally:
            ids.take(b"\n")
        if path == remote.input and len(ids.lines) >= (remote.total or 1):
            break
    return ids


class IdCollector:
    """Collects the ids in lines that arrive in pieces, and counts the different lines."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.lines: set[int] = set()  # their hashes
        self._rest = b""  # the beginning of a line

    def take(self, piece: bytes) -> None:
        """Add a piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self.lines.update(hash(line) for line in lines if line.strip())
        self.found |= {one.decode() for line in lines for one in CUSTOM_ID.findall(line)}


def forgotten(state: RunState, nonces: set[str]) -> str | None:
    """The nonce in a batch that this run made although its journal does not have it."""
    return next((nonce for nonce in nonces if nonce not in state.batches and of_run(nonce, state)), None)


def is_reply_to(batch: BatchRecord, remote: Remote, known: set[str]) -> bool:
    """Whether a reply is about this batch: it has its nonce, its file or its size, and is no other batch of `known`.

    A server may report none of these.
    """
    if remote.id in known - {batch.remote}:
        return False
    if remote.nonce is not None:
        return remote.nonce == batch.nonce
    if remote.file is not None and batch.file is not None:
        return remote.file == batch.file
    return remote.total in (batch.rows, None)


def overdue(dispatch: Dispatch, remote: Remote) -> bool:
    """Whether a running batch is long past the end that the provider announced."""
    now = dispatch.calls.provider_time() or dispatch.now()
    return remote.expires is not None and now > remote.expires + OVERDUE


def check_key(dispatch: Dispatch, batch: BatchRecord) -> None:
    """Raise KeyRefusedError if a batch that cannot be found was bought with another key: that one may see it."""
    if batch.key not in ("", dispatch.calls.signature(dispatch.run.state.run)):
        raise KeyRefusedError(
            f"batch {batch.nonce} was sent with another key, and this key does not see it: set the other key again and "
            "run the same command; if that key no longer exists, settle the batch with --resolve"
        )
