"""Run a program on a pseudo-terminal."""

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """An ended program: its exit code, its standard output, and what it wrote to the terminal."""

    code: int
    out: bytes
    seen: bytes


def shown(command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (24, 80)) -> Shown:
    """Run a program whose standard error is a terminal of `size` rows and columns."""
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    seen = bytearray()

    def watch() -> None:
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the last process with the other end open has ended
                return
            seen.extend(piece)

    watcher = threading.Thread(target=watch)
    whole = {name: value for name, value in environment.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=whole)
    os.close(theirs)
    watcher.start()
    try:
        out, _ = process.communicate(timeout=60)
        watcher.join(timeout=20)
    finally:
        process.kill()
        os.close(terminal)
    return Shown(process.returncode, out, bytes(seen))
