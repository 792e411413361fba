"""IO: the folders that batchbench writes to, and the one function that writes a file.

A file has its final name only when it is complete and on disk: it is written under a scratch name in the same folder,
synced and renamed, and then the folder is synced. No file is edited in place.
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
MEMORY = {"tmpfs", "ramfs"}  # file systems that lose their files when the machine stops
SHARED = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "beegfs", "fuse.sshfs", "fuse.glusterfs"}


class Store:
    """The folders of one home: manifests/ for compiled prompts, cache/ for data sets and paid answers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.manifests = home / "manifests"
        self.cache = home / "cache"
        self.data = self.cache / "data"
        self.prices = self.cache / "prices.json"

    def make(self, folder: Path) -> None:
        """Create a folder and sync its parents, also those that exist: a killed process may not have synced them."""
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        above = [path for path in folder.parents if path.is_relative_to(self.home)]
        for parent in {*above, *(path.parent for path in new)}:
            sync(parent)

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Hold the lock of `folder`, which is created if it does not exist: only one process writes there."""
        with explained(folder / "lock"):
            self.make(folder)
            check_owner(folder)
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
            os.close(handle)  # releases the lock; the kernel does the same if the process is killed

    def sweep(self, folder: Path) -> None:
        """Remove scratch files that a killed process left; the caller must hold the lock."""
        for scratch in folder.glob(f"{SCRATCH}*"):
            scratch.unlink()

    def write(self, path: Path, content: bytes | memoryview, *, last: bool = True) -> None:
        """Create or replace the file at `path`, durably; with `last=False` a later write syncs the folder."""
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
        """A temporary folder, removed on exit."""
        folder = self.cache / f"{SCRATCH}{purpose}-{secrets.token_hex(4)}"
        with explained(folder):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def check_owner(folder: Path) -> None:
    """Refuse a folder that another user could change while we use it."""
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        raise DataError(f"every user can write to {folder}: run `chmod o-w` on it if you trust its content")
    if os.geteuid() not in (0, status.st_uid):
        raise DataError(f"{folder} belongs to another user: work on a copy of your own")
    check_links(folder)


def check_links(folder: Path) -> None:
    """Refuse a folder with symbolic links in it: batchbench creates none, and a link may lead anywhere."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(path := os.path.join(parent, name)):
                raise _link(path)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; refuses a link, which may lead anywhere, and a pipe, which may never end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DataError(f"{path} is not a regular file: restore it from a backup")
            yield file
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _link(path: str | Path) -> DataError:
    return DataError(f"{path} is a link: put the file itself there, or move the folder away")


def content(path: Path) -> bytes:
    """The content of a regular file."""
    with reading(path) as file:
        return file.read()


def sync(folder: Path) -> None:
    """Sync a folder, so that new and renamed files in it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a one-line message that says what to do."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space and run the same command again",
            errno.EDQUOT: "free some space and run the same command again",
            errno.EACCES: "make the folder writable, or choose another with --home",
            errno.EPERM: "make the folder writable, or choose another with --home",
            errno.EROFS: "choose a writable folder with --home",
        }.get(error.errno or 0, "repair this and run the same command again")
        raise BatchbenchError(f"cannot write {path}: {error.strerror or error}: {advice}") from None


def storage_warning(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """A warning for the user before paid answers are written to `folder`; None if its file system is safe."""
    kind = _file_system(folder, mountinfo)
    if kind in MEMORY:
        return f"{folder} is in memory ({kind}): paid answers are lost when the machine stops; choose another --home"
    if kind in SHARED:
        return f"{folder} is shared between machines ({kind}), where locks may not work: use it on one at a time"
    return None


def _file_system(folder: Path, mountinfo: Path) -> str:
    """The type of the file system that `folder` is on; empty if it is unknown."""
    try:
        device = folder.stat().st_dev
        mounts = mountinfo.read_text()
    except OSError:
        return ""
    for mount in mounts.splitlines():
        location, _, details = mount.partition(" - ")
        if location.split()[2:3] == [f"{os.major(device)}:{os.minor(device)}"]:
            return details.split()[0]
    return ""
