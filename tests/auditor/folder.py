"""The folder holds the files that the journal names and no others, and a finished run stays unchanged."""

import stat
from pathlib import Path

from tests.auditor.case import Case, Check

KNOWN = {"run.json", "journal", "lock", "mark", "metrics.json", "metrics.parquet", "cells.parquet", "report.html"}


def a_finished_run_stays_unchanged(case: Case) -> Check:
    """Since an earlier audit, the provider got only reads, and no byte of the run has changed."""
    if case.before is None:
        return "not asked for"
    fresh = [event for event in case.ledger.events[case.before["events"] :] if event["event"] != "downloaded"]
    yield from (f"the provider noted `{event['event']}` since" for event in fresh)
    if case.folder.state() != case.before["folder"]:
        yield "the run's bytes have changed"
    return "nothing has changed" if not fresh else f"{len(fresh)} events"


def every_file_is_known_and_private(case: Case) -> Check:
    """Every file is known and readable by its owner only, none holds a key, and quarantined lines exist."""
    known = KNOWN | {part["file"] for stored in case.stored.values() for part in stored.parts}
    files = case.folder.files()
    for name, path in files.items():
        words = Path(name).name.removeprefix(".scratch-").split(".")[0].split("-")
        nonce = next((word for word in words if word in case.intents), "")  # a scratch name has a random word before it
        beside = nonce and name.startswith(("quarantine/", "spool/"))
        open_yet = case.unfinished and nonce and nonce not in case.stored
        kept = name.startswith(("journal.damaged", "quarantine/salvaged-"))
        if name not in known and not beside and not open_yet and not kept:
            yield f"{name}: neither the journal nor the layout names this file"
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 or not path.is_file() or path.is_symlink():
            yield f"{name}: other users may read it, or it is not a plain file"
        if case.key and case.key.encode() in path.read_bytes():
            yield f"{name} holds the key"
    for nonce, stored in case.stored.items():
        if case.folder.content(f"quarantine/{nonce}.jsonl").count(b"\n") < stored.quarantined:
            yield f"{nonce}: {stored.quarantined} quarantined lines are noted, but they are not in the folder"
    return f"{len(files)} files"
