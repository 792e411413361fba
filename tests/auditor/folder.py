"""The folder holds what the journal tells of, and nothing else; after the end, nothing happens any more."""

import stat
from pathlib import Path

from tests.auditor.case import Case, Check

KNOWN = {"run.json", "journal", "lock", "metrics.json", "metrics.parquet", "cells.parquet", "report.html"}


def i13(case: Case) -> Check:
    """Since an earlier audit, nothing but reads reached the provider and no byte of the run has changed."""
    if case.before is None:
        return "not asked for"
    fresh = [event for event in case.ledger.events[case.before["events"] :] if event["event"] != "downloaded"]
    yield from (f"`{event['event']}` reached the provider since" for event in fresh)
    if case.folder.state() != case.before["folder"]:
        yield "the run's bytes have changed"
    return "nothing has changed" if not fresh else f"{len(fresh)} events"


def i14(case: Case) -> Check:
    """There is no file that nobody knows, nothing others may read, and no key; what was set aside is there."""
    known = KNOWN | {part["file"] for stored in case.stored.values() for part in stored.parts}
    files = case.folder.files()
    for name, path in files.items():
        words = Path(name).name.removeprefix(".scratch-").split(".")[0].split("-")
        nonce = next((word for word in words if word in case.intents), "")  # a random word may come before it
        beside = nonce and name.startswith(("quarantine/", "spool/"))
        open_yet = case.unfinished and nonce and nonce not in case.stored
        if name not in known and not beside and not open_yet:
            yield f"{name}: nobody knows this file"
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 or not path.is_file() or path.is_symlink():
            yield f"{name}: others may read it, or it is no plain file"
        if case.key and case.key.encode() in path.read_bytes():
            yield f"{name} holds the key"
    for nonce, stored in case.stored.items():
        if case.folder.content(f"quarantine/{nonce}.jsonl").count(b"\n") < stored.quarantined:
            yield f"{nonce}: {stored.quarantined} lines were set aside, and are not there"
    return f"{len(files)} files"
