"""What `export` and `import` do, apart from their options."""

import argparse
import contextlib
import time
from pathlib import Path

import anyio
import msgspec

from batchbench import dispatch, providers
from batchbench.app import contact as stages
from batchbench.app import estimate as estimating
from batchbench.app import run as running
from batchbench.app.compile import Compiled
from batchbench.cli import output
from batchbench.compile.manifest import SHARD_ROWS, read_manifest
from batchbench.core import money
from batchbench.core.keys import Secret
from batchbench.core.store import Store
from batchbench.dispatch import Clock, Common, Wish, Work
from batchbench.errors import BatchbenchError, DataError, MissingAnswers
from batchbench.runs import events
from batchbench.runs.folder import Run, open_run, read_run, read_state, run_folders
from batchbench.transport.client import Client


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A file of requests."""

    probe: str
    model: str
    file: str
    requests: int


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A batch whose results have been taken in."""

    run: str
    batch: str
    file: str
    answered: int
    missing: int
    again: int  # failed for no fault of theirs: to be asked again
    quarantined: int
    cost_usd: float


def export(args: argparse.Namespace) -> int:
    """Write what is to be asked; the budget is one over all runs of the command, as everywhere."""
    store = output.store(args)
    budget = money.parse_budget(args.budget) if args.budget is not None else None
    pairs = stages.planned(args, store)
    said = running.resolutions(store, pairs, args.resolve)
    with contextlib.ExitStack() as stack:
        opened = [
            (item, stack.enter_context(open_run(store, item.folder, item.manifest, target, time.time())))
            for item, target in pairs
        ]

        async def write() -> tuple[list[Written], BatchbenchError | None]:
            common = Common(budget)
            works = [_export_work(args, store, run, item, common) for item, run in opened]
            for work in works:
                for nonce, answer in said:
                    await dispatch.resolve(work, nonce, answer)
            written = [
                Written(probe=work.run.manifest.probe, model=work.run.target.name, file=str(path), requests=requests)
                for work in works
                for path, requests in await dispatch.export(work, args.folder)
            ]
            return written, next((work.halt for work in works if work.halt), None)

        with output.progress(args, f"writing requests to {args.folder}", ""):
            written, trouble = anyio.run(write)
    if args.json:
        output.show_json(written)
    else:
        for entry in written:
            output.show(f"{entry.probe} {entry.model}: {entry.requests:,} requests in {entry.file}")
        if not written and trouble is None:
            output.show("nothing new to export: see `batchbench status`")
    return _code(trouble)


def _code(trouble: BatchbenchError | None) -> int:
    if trouble is None:
        return 0
    output.complain(trouble)
    return trouble.exit_code


def _export_work(args: argparse.Namespace, store: Store, run: Run, item: Compiled, common: Common) -> Work:
    items = stages.sample_size(args, item.probe, item.manifest)
    rows, price = items * item.manifest.variants, stages.price(args, store, run.target)
    wish = Wish(
        items=items,
        rows=rows,
        repetitions=args.repetitions,
        price=price,
        budget=common.budget,
        each=price.bound(estimating.prompt_bytes(item, rows).most, run.target.max_tokens),
        rebuy_missing=args.rebuy_missing,
        adopt=args.adopt,
    )
    return _work(run, wish, args.batch_size or SHARD_ROWS, common)


def _work(run: Run, wish: Wish, size: int, common: Common) -> Work:
    """Work that calls nobody: without an address or a key, and without what only matters in a provider's queue."""
    provider = providers.load(run.target.provider)
    limits = msgspec.structs.replace(provider.limits, requests=size, queued_requests=None)
    alone = msgspec.structs.replace(provider, names_batches=True)  # a file's name tells whose it is
    return Work(run, alone, limits, Client(provider, "", Secret("")), wish, Clock(), common)


def bring(args: argparse.Namespace) -> int:
    """Find out whose results these are, and take them in, run by run."""
    store = output.store(args)
    owners: dict[str, list[Path]] = {}
    for path in dict.fromkeys(args.files):
        for nonce in dispatch.nonces(path):
            owners.setdefault(nonce, []).append(path)
    taken: list[Taken] = []
    for folder in run_folders(store):
        batches = read_state(folder).batches
        mine = {nonce: owners.pop(nonce) for nonce in [*owners] if nonce in batches}
        if mine:
            taken += _bring(args, store, folder, mine)
    if not taken:
        named = ", ".join(map(str, args.files))
        raise DataError(f"no line of {named} answers a request exported from {store.home}: see `batchbench status`")
    if args.json:
        output.show_json(taken)
    else:
        for entry in taken:
            output.show(
                f"{entry.file}: {entry.answered:,} answers, {entry.missing:,} missing, {entry.again:,} to ask again, "
                f"{entry.quarantined:,} lines set aside, ${entry.cost_usd:,.4f} in {entry.run}"
            )
    missing = sum(entry.missing for entry in taken)
    told = MissingAnswers(f"{missing:,} answers are missing: `--rebuy-missing` asks for them again")
    return _code(told if missing else None)


def _bring(args: argparse.Namespace, store: Store, folder: Path, mine: dict[str, list[Path]]) -> list[Taken]:
    about = read_run(folder / "run.json")
    manifest_folder = store.manifests / about.manifest
    manifest = read_manifest(manifest_folder)
    if manifest is None:
        raise DataError(f"{manifest_folder} is not there: compile it again")
    with open_run(store, manifest_folder, manifest, about.target, time.time()) as opened:
        asked = opened.state.asked
        if asked is None:
            raise DataError(f"nothing has been asked in {folder}")
        rows = asked.items * manifest.variants
        wish = Wish(items=asked.items, rows=rows, repetitions=asked.repetitions, price=asked.rates)

        async def take() -> list[Taken]:
            work = _work(opened, wish, SHARD_ROWS, Common(None))
            found = []
            for nonce, files in mine.items():
                batch = opened.state.batches[nonce]
                stored = await dispatch.bring(work, batch, files, partial=args.partial)
                found.append(
                    Taken(
                        run=str(folder),
                        batch=nonce,
                        file=batch.file or "",
                        answered=stored.answered,
                        missing=_count(stored.missing),
                        again=_count(stored.again),
                        quarantined=stored.quarantined,
                        cost_usd=stored.cost / money.MILLION,
                    )
                )
            return found

        with output.progress(args, f"taking in results of {about.target.name}", ""):
            return anyio.run(take)


def _count(ranges: events.Ranges) -> int:
    return sum(stop - start for start, stop in ranges)
