"""What a power cut can leave of a home: every state on disk that the program's file operations allow.

strace records the operations. The model promises less than any file system: each sector written since a file's last
sync may or may not be on disk, in any order; the size may be old or new; an extension may read as zeros. Names in a
folder change in order, but only a sync of the folder makes them permanent. The contents of files that no reader opens
(scratch files, locks) are ignored.
"""

import itertools
import math
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
EXHAUSTIVE = 1 << 12  # states per moment; if there are more, a random sample is taken
NAMING = ("rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat")
CALLS = ("openat", "close", "dup", "write", "pwrite64", "ftruncate", "fsync", "fdatasync", *NAMING)
LINE = re.compile(r"^(\d+) +(\d+\.\d+) (.*)$")
RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+).*<(\d+\.\d+)>$")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Operation(NamedTuple):
    """One successful system call."""

    at: float  # its end, in seconds since 1970
    name: str
    words: list[str]  # its arguments, with strings replaced by ""
    texts: list[bytes]
    result: int


def traced(
    command: list[str], trace: Path, environment: Mapping[str, str], *kill: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program and record its file operations, until the call at which it is killed."""
    what = ["-e", f"trace={','.join(CALLS)}", "-ttt", "-T", "-xx", "-s", "100000000"]
    what += [word for one in kill for word in ("-e", f"inject={one}:signal=KILL")]
    line = ["strace", "-f", *what, "-o", str(trace), *command]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=dict(environment))


def operations(trace: Path) -> list[Operation]:
    """The operations of a trace, in order."""
    found, begun = [], {}
    for line in trace.read_text().splitlines():
        pid, at, text = LINE.match(line).groups()  # type: ignore[union-attr]
        if text.endswith("<unfinished ...>"):
            begun[pid] = text.removesuffix("<unfinished ...>").rstrip()
            continue
        took = 0.0
        if resumed := RESUMED.match(text):
            text = begun.pop(pid) + resumed[1]
        elif call := CALL.match(text):
            took = float(call[4])
        call = CALL.match(text)
        if call and call[1] in CALLS and int(call[3]) >= 0:
            texts = [bytes.fromhex(one.replace("\\x", "")) for one in TEXT.findall(call[2])]
            words = [word.strip() for word in TEXT.sub('""', call[2]).split(",")]
            found.append(Operation(float(at) + took, call[1], words, texts, int(call[3])))
    return sorted(found, key=lambda one: one.at)


@dataclass(eq=False)
class File:
    """A file: its content, the part that is certainly on disk, and the part that may be."""

    now: bytes = b""
    synced: bytes = b""
    sizes: list[int] = field(default_factory=list)  # its sizes since the last sync
    dirty: set[int] = field(default_factory=set)  # sectors

    def write(self, offset: int, content: bytes) -> None:
        self.now = self.now[:offset].ljust(offset, b"\0") + content + self.now[offset + len(content) :]
        self.sizes.append(len(self.now))
        self.dirty.update(range(offset // SECTOR, -(-(offset + len(content)) // SECTOR)))

    def truncate(self, size: int) -> None:
        self.now = self.now[:size].ljust(size, b"\0")
        self.sizes.append(size)
        self.dirty = {sector for sector in self.dirty if sector * SECTOR < size}

    def sync(self) -> None:
        self.synced, self.sizes, self.dirty = self.now, [], set()

    def choices(self) -> list[int]:
        """The number of choices for its size and for each of its sectors."""
        return [len({len(self.synced), *self.sizes}), *(2 for _ in self.dirty)] if self.sizes else []

    def left(self, choice: list[int]) -> bytes:
        """The content on disk after a power cut."""
        if not choice:
            return self.synced
        size = sorted({len(self.synced), *self.sizes})[choice[0]]
        content = bytearray(self.synced[:size].ljust(size, b"\0"))
        for sector, new in zip(sorted(self.dirty), choice[1:], strict=True):
            edges = slice(sector * SECTOR, min(size, sector * SECTOR + SECTOR))
            if new and edges.start < edges.stop:
                content[edges] = self.now[edges].ljust(edges.stop - edges.start, b"\0")
        return bytes(content)


Names = dict[str, "File | Folder"]


@dataclass(eq=False)
class Folder:
    """A folder: its names, and the changes, in order, that may not be on disk."""

    now: Names = field(default_factory=dict)
    synced: Names = field(default_factory=dict)
    pending: list[Callable[[Names], object]] = field(default_factory=list)

    def change(self, act: Callable[[Names], object]) -> None:
        act(self.now)
        self.pending.append(act)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.now), []

    def left(self, done: int) -> Names:
        names = dict(self.synced)
        for act in self.pending[:done]:
            act(names)
        return names


class Disk:
    """A disk after the operations so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Folder()
        self.handles: dict[int, tuple[File | Folder, str, list[int]]] = {}  # node, path, offset of the next write

    def restart(self) -> None:
        """Start another process: open files are gone, written bytes stay readable."""
        self.handles = {}

    def apply(self, one: Operation) -> bool:
        """Apply an operation; returns whether it changes what a power cut can leave."""
        match one.name:
            case "openat":
                return self._open(one)
            case "close":
                self.handles.pop(int(one.words[0]), None)
                return False
            case "dup":
                if handle := self.handles.get(int(one.words[0])):
                    self.handles[one.result] = handle
                return False
            case "write" | "pwrite64" | "ftruncate" | "fsync" | "fdatasync":
                handle = self.handles.get(int(one.words[0]))
                if handle:
                    self._touch(one, handle[0], handle[2])
                return handle is not None
            case _:
                return self._rename(one)

    def _touch(self, one: Operation, node: File | Folder, place: list[int]) -> None:
        if isinstance(node, Folder) or one.name in ("fsync", "fdatasync"):
            node.sync()
        elif one.name == "ftruncate":
            node.truncate(int(one.words[1]))
        elif one.name == "pwrite64":
            node.write(int(one.words[3]), one.texts[0][: one.result])
        else:
            offset = len(node.now) if place[0] < 0 else place[0]
            node.write(offset, one.texts[0][: one.result])
            place[0] = offset + one.result if place[0] >= 0 else -1

    def _open(self, one: Operation) -> bool:
        path, flags = self._path(one.words[0], one.texts[0]), one.words[2].split("|")
        self.handles.pop(one.result, None)
        found = self._place(path)
        if found is None:
            return False
        folder, name = found
        new = bool(name) and name not in folder.now
        if new:
            node = File()
            folder.change(lambda names: names.__setitem__(name, node))
        there = folder.now[name] if name else folder
        emptied = "O_TRUNC" in flags and isinstance(there, File) and there.now != b""
        if isinstance(there, File) and emptied:
            there.truncate(0)
        self.handles[one.result] = there, path, [-1 if "O_APPEND" in flags else 0]
        return new or emptied

    def _rename(self, one: Operation) -> bool:
        handles = [word for word in one.words if word == "AT_FDCWD" or word.isdigit()]
        paths = [self._path(handles[n] if n < len(handles) else "AT_FDCWD", text) for n, text in enumerate(one.texts)]
        places = [self._place(path) for path in paths]
        if None in places:
            return False
        folder, name = places[0]  # type: ignore[misc]
        if one.name.startswith("mkdir"):
            node = Folder()
            folder.change(lambda names: names.__setitem__(name, node))
        elif one.name.startswith("unlink"):
            # A file that a killed process was just creating is not in the trace: the tracer did not see the call's end.
            folder.change(lambda names: names.pop(name, None))
        else:
            other, new = places[1]  # type: ignore[misc]
            assert other is folder, f"{one}: only names within one folder are changed together"
            folder.change(lambda names: names.__setitem__(new, names.pop(name)))
        return True

    def _path(self, handle: str, text: bytes) -> str:
        base = "" if handle == "AT_FDCWD" else self.handles.get(int(handle), (None, "", None))[1]
        return os.path.join(base, text.decode())

    def _place(self, path: str) -> tuple[Folder, str] | None:
        """The folder of a path, and its name there; None if it is not on this disk."""
        if path == str(self.root):
            return self.top, ""
        if not path.startswith(f"{self.root}/"):
            return None
        *above, name = path.removeprefix(f"{self.root}/").split("/")
        folder = self.top
        for part in above:
            inner = folder.now[part]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def find(self, pattern: str) -> "File | None":
        """The current content of the file whose path matches a pattern."""
        found = [node for path, node in _walk(self.top, lambda folder: folder.now) if re.fullmatch(pattern, path)]
        return found[0] if found and isinstance(found[0], File) else None

    def states(self, chance: random.Random, most: int = EXHAUSTIVE) -> Iterator[dict[str, bytes | None]]:
        """States that a power cut at this moment can leave, at most `most`: path -> content, None for a folder."""
        folders = list(dict.fromkeys([self.top, *(node for node in self._nodes() if isinstance(node, Folder))]))
        files = list(dict.fromkeys(node for node in self._nodes() if isinstance(node, File) and node.choices()))
        files = [file for file in files if any(not unread(name) for name in self._names_of(file))]
        ways = [[len(folder.pending) + 1] for folder in folders] + [file.choices() for file in files]
        flat = [n for way in ways for n in way]
        if math.prod(flat) <= most:
            picks: Iterator[tuple[int, ...]] = itertools.product(*(range(n) for n in flat))
        else:
            ends = [tuple(0 for _ in flat), tuple(n - 1 for n in flat)]
            picks = iter([*ends, *(tuple(chance.randrange(n) for n in flat) for _ in range(most - 2))])
        for pick in picks:
            left = iter(pick)
            chosen = {id(node): [next(left) for _ in way] for node, way in zip([*folders, *files], ways, strict=True)}
            shown = _walk(self.top, lambda folder: folder.left(chosen[id(folder)][0]))  # noqa: B023
            yield {
                path: node.left(chosen.get(id(node), [])) if isinstance(node, File) else None for path, node in shown
            }

    def _nodes(self) -> Iterator["File | Folder"]:
        """All nodes that may exist on disk."""
        for _, node in _walk(self.top, lambda folder: dict(self._versions(folder))):
            yield node

    def _versions(self, folder: Folder) -> Iterator[tuple[str, "File | Folder"]]:
        for done in range(len(folder.pending) + 1):
            for name, node in folder.left(done).items():
                yield f"{done}:{name}", node

    def _names_of(self, file: File) -> list[str]:
        everywhere = [self.top, *(node for node in self._nodes() if isinstance(node, Folder))]
        return [
            name.partition(":")[2] for folder in everywhere for name, node in self._versions(folder) if node is file
        ]


def unread(name: str) -> bool:
    return name.startswith(".scratch-") or name == "lock"


def _walk(folder: Folder, names: Callable[[Folder], Names], above: str = "") -> Iterator[tuple[str, "File | Folder"]]:
    for name, node in names(folder).items():
        yield above + name, node
        if isinstance(node, Folder):
            yield from _walk(node, names, f"{above}{name}/")


def laid_out(state: Mapping[str, bytes | None], home: Path) -> None:
    """Write a state to a folder."""
    home.mkdir(parents=True)
    for path, content in state.items():
        if content is None:
            (home / path).mkdir()
        else:
            (home / path).touch(0o600)
            (home / path).write_bytes(content)
