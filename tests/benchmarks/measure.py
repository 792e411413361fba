"""How a benchmark measures: seconds, CPU seconds and peak memory of a whole process, beside the machine's load."""

import os
import subprocess
import time
from pathlib import Path

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one process needed."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def run(command: list[str], cwd: Path | None = None) -> tuple[Cost, bytes]:
    """Run `command` to its end; its cost and its standard output."""
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=cwd) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    seconds = time.monotonic() - started
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(seconds=round(seconds, 2), cpu_seconds=round(cpu, 2), peak_mb=round(usage.ru_maxrss / 1024, 1)), output
