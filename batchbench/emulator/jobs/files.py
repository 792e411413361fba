"""Writing files so that they survive a power cut."""

import os
from pathlib import Path

from batchbench.core.store import sync


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all bytes; one os.write may write fewer."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


def publish(scratch: Path, target: Path) -> None:
    """Rename a finished scratch file to its final name, durably."""
    scratch.replace(target)
    sync(target.parent)
