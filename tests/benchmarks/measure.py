"""How a benchmark measures: seconds, CPU seconds and peak memory of a process, with the machine's load."""

import os
import resource
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one process needed; None where it was not measured."""

    seconds: float
    cpu_seconds: float | None = None
    peak_mb: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison: `ratio` is ours over the other, both measured in this run."""

    stage: str
    what: str
    size: int  # prompts, requests or answers on our side
    ours: Cost
    other: Cost | None = None
    per: Literal["seconds", "cpu_seconds"] = "seconds"  # the compared quantity
    ratio: float | None = None
    load: float  # load of the machine over the last minute


def compared(
    stage: str,
    what: str,
    size: int,
    ours: Cost,
    other: Cost | None = None,
    *,
    per: Literal["seconds", "cpu_seconds"] = "seconds",
    other_size: int | None = None,
) -> Result:
    """A result; the ratio is per request where the sizes differ."""
    ratio = None
    if other is not None:
        mine, theirs = getattr(ours, per) / size, getattr(other, per) / (other_size or size)
        ratio = float(f"{mine / theirs:.3g}")
    load = round(os.getloadavg()[0], 2)
    return Result(stage=stage, what=what, size=size, ours=ours, other=other, per=per, ratio=ratio, load=load)


def left_out(stage: str, why: str) -> Result:
    """A row that says why a comparison is missing."""
    return Result(stage=stage, what=why, size=0, ours=Cost(seconds=0), load=round(os.getloadavg()[0], 2))


def run(command: list[str], env: Mapping[str, str] | None = None) -> tuple[Cost, bytes]:
    """Run `command` to its end; returns its cost and its standard output."""
    started = time.monotonic()
    environment = {**os.environ, **(env or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    seconds = time.monotonic() - started
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(seconds=round(seconds, 3), cpu_seconds=round(cpu, 3), peak_mb=peak(usage)), output


def peak(usage: resource.struct_rusage) -> float | None:
    """Peak memory of ended children; smaller values than this process's own peak cannot be seen."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(usage.ru_maxrss / 1024, 1) if usage.ru_maxrss > own else None


def cpu_of(pid: int) -> float:
    """CPU seconds that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> float:
    """Peak memory of a running process in megabytes."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)
