"""Disks that are small, read-only or broken, for the client of a scene."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


def _works(*command: str) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, check=False, capture_output=True).returncode == 0


needs_mount = pytest.mark.skipif(
    os.geteuid() != 0 or not _works("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"),
    reason="only root can mount file systems",
)
needs_strace = pytest.mark.skipif(not _works("strace", "true"), reason="strace is not here or may not trace")


@contextmanager
def mounted(folder: Path, *words: str) -> Iterator[Path]:
    """Mount a file system over a folder, which is created if necessary: `mounted(folder, "-t", "tmpfs", "tmpfs")`."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *words, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def tmpfs(folder: Path, options: str) -> AbstractContextManager[Path]:
    return mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs")


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """Make a folder read-only."""
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield folder


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill a disk completely."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            pass
    yield
    filler.unlink()


def failing(calls: str, error: str, when: str, path: Path | None = None) -> list[str]:
    """The command that starts a client so that some of its system calls fail: `failing("fdatasync", "EIO", "3")`."""
    # With -D the tracer is a child of the client, so signals that a test sends reach the client.
    line = ["strace", "-D", "-f", "-qq", "-o", os.devnull, "--seccomp-bpf", "-e", f"trace={calls}"]
    line += ["-e", f"inject={calls}:error={error}:when={when}"]
    return [*line, "-P", str(path)] if path else line
