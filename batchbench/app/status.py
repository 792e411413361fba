"""What `status`, `audit` and `explain` do, apart from their options."""

import argparse
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import polars as pl

from batchbench import probes, providers
from batchbench.analyze.labelled_answers import label_answers
from batchbench.app import contact as stages
from batchbench.cli import output
from batchbench.compile.manifest import read_manifest
from batchbench.core import money
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, DataError, UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs import journal, results
from batchbench.runs.answers import answer_files, outcomes
from batchbench.runs.audit import Audit, Finding
from batchbench.runs.audit import audit as audit_run
from batchbench.runs.folder import read_run, read_state, run_folders
from batchbench.runs.journal import State
from batchbench.runs.progress import GIVEN_UP, IN_FLIGHT, MISSING, TODO, row_states


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as its files tell it."""

    run: str
    model: str
    manifest: str
    asked: int
    answered: int
    refused: int
    failed: int
    missing: int
    in_flight: int
    todo: int  # not asked yet
    batches: dict[str, int]
    spent_usd: float
    reserved_usd: float
    budget_usd: float | None
    live: str | None  # the process that is working on it
    unresolved: list[str]
    emulated: bool


def look(store: Store, folder: Path) -> Look:
    """Read a run without locking it."""
    about = read_run(folder / "run.json")
    state = read_state(folder)
    manifest = read_manifest(store.manifests / folder.parent.name)
    variants = manifest.variants if manifest else 1
    rows = state.asked.items * variants if state.asked else 0
    repetitions = state.asked.repetitions if state.asked else 0
    marks = row_states(state, rows, repetitions)
    counts = [sum(row.count(value) for row in marks) for value in range(5)]
    states: dict[str, int] = {}
    for batch in state.batches.values():
        states[batch.state] = states.get(batch.state, 0) + 1
    ends = outcomes(folder, state, rows, repetitions)
    window = providers.load(about.target.provider).limits.window
    budget = state.asked.budget if state.asked else None
    return Look(
        run=str(folder),
        model=about.target.name,
        manifest=folder.parent.name,
        asked=rows * repetitions,
        answered=ends["answered"] + ends["truncated"],
        refused=ends["refused"] + ends["filtered"],
        failed=ends["failed"],
        missing=counts[MISSING] + counts[GIVEN_UP],
        in_flight=counts[IN_FLIGHT],
        todo=counts[TODO],
        batches=states,
        spent_usd=state.spent() / money.MILLION,
        reserved_usd=state.reserved(time.time(), window) / money.MILLION,
        budget_usd=None if budget is None else budget / money.MILLION,
        live=_holder(folder),
        unresolved=[
            f"{batch.nonce}: {batch.word} ({', '.join(batch.candidates)})"
            for batch in state.batches.values()
            if batch.state == "unresolved"
        ],
        emulated=about.target.emulated,
    )


def _holder(folder: Path) -> str | None:
    """Who works on a run at this moment; null if nobody does. Taking the lock to find out could be in the way."""
    try:
        words = (folder / "lock").read_text().split()
        os.kill(int(words[1]), 0)
    except (OSError, ValueError, IndexError):
        return None
    return " ".join(words) if words[-1] == socket.gethostname() else None


def status(args: argparse.Namespace) -> int:
    """Show every run, once or again and again."""
    if args.watch and args.json:
        raise UsageError("--json is one document, and --watch never ends: take one of them")
    store = output.store(args)
    while True:
        found = [look(store, folder) for folder in run_folders(store)]
        if args.json:
            output.show_json(found)
        elif not found:
            output.show("no runs yet: start one with `batchbench run PROBE --model M`")
        else:
            output.show(_table(found))
        if not args.watch:
            return 0
        time.sleep(2)


def _table(found: list[Look]) -> str:
    names = ["ASKED", "ANSWERED", "REFUSED", "FAILED", "MISSING", "LEFT"]
    rows = [["RUN", "MODEL", *names, "BATCHES", "SPENT", "RESERVED", "BUDGET", ""]]
    for entry in found:
        batches = " ".join(f"{count} {state}" for state, count in entry.batches.items())
        notes = ["EMULATED"] * entry.emulated + ([f"live: {entry.live}"] if entry.live else [])
        rows.append(
            [
                entry.manifest,
                entry.model,
                *(f"{count:,}" for count in (entry.asked, entry.answered, entry.refused, entry.failed, entry.missing)),
                f"{entry.todo + entry.in_flight:,}",
                batches or "none",
                money.dollars(round(entry.spent_usd * money.MILLION)),
                money.dollars(round(entry.reserved_usd * money.MILLION)),
                "none" if entry.budget_usd is None else money.dollars(round(entry.budget_usd * money.MILLION)),
                " ".join(notes),
            ]
        )
    lines = [output.table(rows)]
    lines += [f"UNRESOLVED {entry.run} {text}" for entry in found for text in entry.unresolved]
    return "\n".join(lines)


def audit(args: argparse.Namespace) -> int:
    """Check every run; exit code 65 if anything is wrong."""
    store = output.store(args)
    audits = []
    folders = run_folders(store)
    with output.progress(args, "checking", "runs") as progress:
        for number, folder in enumerate(folders):
            progress(number, len(folders))
            manifest_folder = store.manifests / folder.parent.name
            checked = audit_run(folder, manifest_folder, read_manifest(manifest_folder), _price(folder))
            if args.remote:
                checked = msgspec.structs.replace(checked, findings=[*checked.findings, *_remote(args, store, folder)])
            audits.append(checked)
    if args.json:
        output.show_json(audits)
    elif not audits:
        output.show("no runs to check")
    else:
        for checked in audits:
            output.show(_verdict(checked))
    return DataError.exit_code if any(checked.findings for checked in audits) else 0


def _price(folder: Path) -> money.Price | None:
    """The price a run was charged at, as far as its journal and our table can tell."""
    state = read_state(folder)
    return state.asked.rates if state.asked else None


def _verdict(checked: Audit) -> str:
    spent = money.dollars(checked.spent)
    head = f"{checked.run}: {checked.batches} batches, {checked.rows:,} rows answered, {spent} spent"
    wrong = [f"  {finding.where}: {finding.what}" for finding in checked.findings]
    return "\n".join([head, *(wrong or ["  all is as it should be"])])


def _remote(args: argparse.Namespace, store: Store, folder: Path) -> list[Finding]:
    """Batches at the provider's that carry a name of ours and that the journal does not know."""
    target = read_run(folder / "run.json").target
    state = read_state(folder)
    options = argparse.Namespace(**vars(args), settle=None, batch_size=None, price="0,0")
    try:
        contact = stages.contact(options, store, stages.vouched(args, target, folder))
    except UsageError as error:
        return [Finding(str(folder), f"not compared: {error}")]
    since = min((batch.intended for batch in state.batches.values()), default=time.time()) - 600

    async def listing() -> list[providers.Remote]:
        async with stages.connected(contact, args, store, folder) as api:
            return await contact.provider.listing(api, since)

    known = {batch.remote for batch in state.batches.values()} | {copy.remote for copy in state.duplicates}
    return [
        Finding(f"batch {remote.id}", f"carries our name {remote.nonce} but is not in the journal")
        for remote in anyio.run(listing)
        if remote.nonce in state.batches and remote.id not in known
    ]


def explain(args: argparse.Namespace) -> int:
    """Tell all about one request."""
    store = output.store(args)
    nonce, row, rep = _parsed(args.custom_id)
    for folder in run_folders(store):
        state = read_state(folder)
        if nonce in state.batches:
            found = _explained(store, folder, state, nonce, row, rep)
            if args.json:
                output.show_json(found)
            else:
                output.show("\n".join(_lines(found)))
            return 0
    raise UsageError(f"no run knows a batch {nonce!r}: see `batchbench status`")


def _lines(found: dict[str, object]) -> Iterator[str]:
    """What is known about a request, for people: a name in front, long texts as blocks, nothing that is not there."""
    for name, value in found.items():
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            texts = [f"{key}: {one}" for key, one in value.items() if one is not None]
        lines = [line for text in texts for line in _indented(str(text))] or ["none"]
        yield f"{name:9} {lines[0]}"
        yield from (f"{'':9} {line}" for line in lines[1:])


def _indented(text: str) -> list[str]:
    """The lines of a text; what a provider sent as JSON is spread out."""
    try:
        return msgspec.json.format(text, indent=2).splitlines() if text.startswith("{") else text.splitlines()
    except (ValueError, RecursionError):
        return text.splitlines()


def _parsed(custom_id: str) -> tuple[str, int, int]:
    parts = re.fullmatch(r"([^-]+)-(\d{1,10})-(\d{1,10})", custom_id)
    if parts is None:
        raise UsageError(f"{custom_id!r} is not a custom id, such as 7c7ed463f1-42-0")
    return parts[1], int(parts[2]), int(parts[3])


def _explained(store: Store, folder: Path, state: State, nonce: str, row: int, rep: int) -> dict[str, object]:
    manifest_folder = store.manifests / folder.parent.name
    manifest = read_manifest(manifest_folder)
    if manifest is None:
        raise BatchbenchError(f"{manifest_folder} is not there: compile it again")
    batch = state.batches[nonce]
    shard = next((shard for shard in manifest.shards if shard.first <= row < shard.first + shard.rows), None)
    if shard is None or rep != batch.rep or not any(start <= row < stop for start, stop in batch.ranges):
        raise UsageError(f"batch {nonce} carried no row {row} with repetition {rep}")
    rows = pl.read_parquet(manifest_folder / shard.file, glob=False)[row - shard.first]
    design = rows.row(0, named=True)
    attempts = [
        f"{other.nonce} ({other.state})"
        for other in state.batches.values()
        if other.rep == rep and any(start <= row < stop for start, stop in other.ranges)
    ]
    found: dict[str, object] = {
        "run": str(folder),
        "prompt": design.pop("prompt"),
        "design": design,
        "shard": shard.file,
        "batch": f"{batch.remote or batch.file or 'none'} ({batch.state})",
        "attempts": attempts,
    }
    return found | _answer(folder, state, batch, rows, probes.load(manifest.probe))


def _answer(
    folder: Path, state: State, batch: journal.Batch, rows: pl.DataFrame, probe: Probe[Params]
) -> dict[str, object]:
    if batch.stored is None:
        return {"answer": "none yet"}
    row = rows["id"][0]
    answers = pl.concat(pl.read_parquet(path, glob=False) for path in answer_files(folder, batch))
    answers = answers.filter(pl.col("id") == row)
    needle = f'"{batch.nonce}-{row}-{batch.rep}"'.encode()
    raw = [
        line.decode("utf-8", "replace")
        for part in batch.stored.parts
        if part.file.startswith("raw/")
        for line in results.lines(folder / part.file)
        if needle in line
    ]
    kept = answers.row(0, named=True) if answers.height else {}
    rates = state.asked.rates if state.asked else None
    cost = rates.cost(kept["input_tokens"], kept["output_tokens"]) if rates and kept else None
    read = None
    if answers.height:
        asked = rows.with_columns(answers.select("text", "logprobs", "outcome").get_columns())
        read = label_answers(asked.lazy(), probe, "id").collect()["label"][0] or "undetected"
    price = None if cost is None else f"{cost} micro-dollars"
    return {"answer": kept or _why_none(batch, row), "label": read, "cost": price, "raw": raw}


def _why_none(batch: journal.Batch, row: int) -> str:
    lost = batch.stored is not None and any(start <= row < stop for start, stop in batch.stored.missing)
    return "missing, maybe paid for" if lost else "none; the provider did not get to it"
