"""Find out which model a damaged run asks: from run.json, the journal, the command line, or other runs."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from batchbench.core.store import Store, content
from batchbench.errors import DataError
from batchbench.providers.target import Target
from batchbench.runs import events
from batchbench.runs.events import Opened
from batchbench.runs.folder import RunFile, unchecked_folders, without_emulator_url
from batchbench.runs.salvage.journal_repair import Survivors

MAX_BYTES = 1 << 16  # of a run.json


def find_about(folder: Path, left: Survivors, target: Target | None, store: Store) -> tuple[RunFile, bool]:
    """The manifest and the target of a run, and whether its run.json is undamaged.

    The name of the folder has a digest of the target, which proves that a target is the right one.
    """
    opened = left.events.get(0)
    run_id = opened.run if isinstance(opened, Opened) else ""
    path = folder / "run.json"
    text = content(path) if path.is_file() else b""
    if about := _decoded(text, folder):
        return about, True
    journal = [opened.settings] if isinstance(opened, Opened) and opened.settings else []
    given = [without_emulator_url(target)] if target else []
    for candidate in [*journal, *given, *_other_targets(folder, store)]:
        if folder.name in (candidate.slug, candidate.canonical().slug):
            return RunFile(manifest=folder.parent.name, target=candidate, run=run_id), False
    if about := next(_mended(text, folder), None):
        return about, False
    raise DataError(
        f"{path} is missing or damaged, and nothing else says which settings this run has: name the run as for "
        "`batchbench run`, such as `batchbench salvage PROBE --model M`, with all options that it was begun with"
    )


def _decoded(text: bytes, folder: Path) -> RunFile | None:
    """The run.json in a text, if it belongs to this folder."""
    try:
        about = msgspec.json.decode(text, type=RunFile)
    except (ValueError, RecursionError):
        return None
    slugs = (about.target.slug, about.target.canonical().slug)
    fits = about.manifest == folder.parent.name and folder.name in slugs
    return about if fits and about.format == events.FORMAT else None


def _other_targets(folder: Path, store: Store) -> Iterator[Target]:
    """The targets of the other runs: a model is often asked several probes."""
    for other in unchecked_folders(store):
        if other != folder and (about := _decoded(content(other / "run.json"), other)):
            yield about.target


def _mended(text: bytes, folder: Path) -> Iterator[RunFile]:
    """A run.json in which one byte was changed."""
    for place in range(len(text) if len(text) <= MAX_BYTES else 0):
        for byte in range(256):
            if about := _decoded(text[:place] + bytes([byte]) + text[place + 1 :], folder):
                yield about
