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
from batchbench.core.store import Store
from batchbench.dispatch import Account, Budget, Clock, Plan
from batchbench.errors import BatchbenchError, DataError, MissingAnswers
from batchbench.runs import events
from batchbench.runs.folder import Run, open_run, read_run, read_state, run_folders


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

        for _, run in opened:
            for nonce, answer in said:
                dispatch.resolve(run, nonce, answer, time.time())

        async def write() -> tuple[list[Written], BatchbenchError | None]:
            shared, written, troubles = Budget(budget), [], []
            accounts = [_join(args, store, run, item, shared) for item, run in opened]
            for account in accounts:
                files, trouble = await dispatch.export(account, args.folder)
                probe, model = account.run.manifest.probe, account.run.target.name
                written += [Written(probe=probe, model=model, file=str(path), requests=count) for path, count in files]
                troubles.append(trouble)
            return written, next(filter(None, troubles), None)

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


def _join(args: argparse.Namespace, store: Store, run: Run, item: Compiled, budget: Budget) -> Account:
    items = stages.sample_size(args, item.probe, item.manifest)
    rows, price = items * item.manifest.variants, stages.price(args, store, run.target)
    plan = Plan(
        items=items,
        rows=rows,
        repetitions=args.repetitions,
        price=price,
        budget=budget.limit,
        max_row_cost=price.bound(estimating.prompt_bytes(item, rows).most, run.target.max_tokens),
        rebuy_missing=args.rebuy_missing,
        adopt=args.adopt,
    )
    limits = providers.load(run.target.provider).limits
    limits = msgspec.structs.replace(limits, requests=args.batch_size or SHARD_ROWS)
    return budget.join(run, plan, limits, Clock())


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

        async def take() -> list[Taken]:
            found = []
            for nonce, files in mine.items():
                batch = opened.state.batches[nonce]
                stored = await dispatch.import_results(opened, batch, files, Clock(), partial=args.partial)
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
