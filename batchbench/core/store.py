"""IO: every path batchbench writes, and the one way in which it writes.

A file appears under its final name complete and on disk, or not at all: it is written under a scratch name in
the same folder, synced, renamed, and the folder synced. Nothing is edited in place.
"""

import errno
import fcntl
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import polars as pl

from batchbench.errors import BatchbenchError, DataError, LockedError

SCRATCH = ".scratch-"
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)  # raised for a damaged file


class Store:
    """The folders of one home: manifests/ for what was compiled, cache/ for what was fetched or paid for."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.manifests = home / "manifests"
        self.cache = home / "cache"
        self.data = self.cache / "data"
        self.prices = self.cache / "prices.json"

    def make(self, folder: Path) -> None:
        """Make a folder and sync all names that lead to it, for one that a killed process made may not be on disk."""
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        above = [path for path in folder.parents if path.is_relative_to(self.home)]
        for parent in {*above, *(path.parent for path in new)}:
            sync(parent)

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Be the only process that writes in `folder`, which is made if need be."""
        with explained(folder / "lock"):
            self.make(folder)
            check_ours(folder)
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 200).decode(errors="replace").strip() or "unknown"
                raise LockedError(f"{folder} is in use by {holder}: wait for it or stop it") from None
            with explained(folder / "lock"):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            self.sweep(folder)
            yield
        finally:
            os.close(handle)  # the kernel lets go of the lock, however the process ends

    def sweep(self, folder: Path) -> None:
        """Remove what a killed process left half-written; only the holder of the lock may."""
        for leftover in folder.glob(f"{SCRATCH}*"):
            leftover.unlink()

    def write(self, path: Path, content: bytes | memoryview, *, last: bool = True) -> None:
        """Create or replace the file at `path`, durably; with `last=False` its name is synced by a later write."""
        with explained(path):
            if not path.parent.is_dir():
                self.make(path.parent)
            scratch = path.with_name(f"{SCRATCH}{secrets.token_hex(4)}-{path.name}")
            try:
                with scratch.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                scratch.rename(path)
            except OSError:
                scratch.unlink(missing_ok=True)
                raise
            if last:
                sync(path.parent)

    @contextmanager
    def scratch_folder(self, purpose: str) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        folder = self.cache / f"{SCRATCH}{purpose}-{secrets.token_hex(4)}"
        with explained(folder):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def check_ours(folder: Path) -> None:
    """Refuse to work in a folder that somebody else could change under our hands."""
    about = folder.stat()
    if about.st_mode & stat.S_IWOTH:
        raise DataError(f"anybody can write to {folder}: `chmod o-w` it if you trust what is there")
    if os.geteuid() not in (0, about.st_uid):
        raise DataError(f"{folder} belongs to another user: work on a copy of your own")
    check_links(folder)


def check_links(folder: Path) -> None:
    """Refuse a folder with links in it: we make none, and what they lead to is not what its name says."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(path := os.path.join(place, name)):
                raise DataError(f"{path} is a link: put the file itself there, or move the folder away")


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A plain file to read: no link that leads elsewhere, no pipe that would never end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DataError(f"{path} is not a plain file: restore it from a backup")
            yield file
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def content(path: Path) -> bytes:
    """All that a plain file holds."""
    with reading(path) as file:
        return file.read()


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in one line why a file could not be written."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space and run the same command again",
            errno.EDQUOT: "free some space and run the same command again",
            errno.EACCES: "make the folder writable, or choose another with --home",
            errno.EPERM: "make the folder writable, or choose another with --home",
            errno.EROFS: "choose a writable folder with --home",
        }.get(error.errno or 0, "mend this and run the same command again")
        raise BatchbenchError(f"cannot write {path}: {error.strerror or error}: {advice}") from None
