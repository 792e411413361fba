"""Runs a program on a pseudo-terminal."""

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """A program that has ended: its exit code, its stdout (a pipe), and what the terminal showed."""

    code: int
    out: bytes
    seen: bytes


def shown(command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (24, 80)) -> Shown:
    """Run a program whose stderr is a terminal with `size` rows and columns."""
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, size)
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # every process has closed the other end
                return
            seen.extend(piece)

    reader = threading.Thread(target=read)
    variables = {name: value for name, value in environment.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=other_end, stdout=subprocess.PIPE, stderr=other_end, env=variables)
    os.close(other_end)
    reader.start()
    try:
        out, _ = process.communicate(timeout=60)
        reader.join(timeout=20)
    finally:
        process.kill()
        os.close(terminal)
    return Shown(process.returncode, out, bytes(seen))
