"""Time: the wall clock, which can be set, and the machine's uptime, which cannot."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec

BOOT = Path("/proc/sys/kernel/random/boot_id")


def uptime() -> float:
    """Seconds since the machine started, including the time it was suspended where the system counts that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot() -> str:
    """The id of this boot: uptimes can be compared only within one boot. Empty if the system has no such id."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def time_of_day(at: float) -> str:
    """The local time of day, for messages."""
    return time.strftime("%H:%M:%S", time.localtime(at))


class Clock(msgspec.Struct, frozen=True):
    """The clock that the dispatcher uses; tests pass their own."""

    now: Callable[[], float] = time.time  # seconds since 1970, for messages and files
    uptime: Callable[[], float] = uptime  # to measure how long something takes
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    boot: str = msgspec.field(default_factory=boot)
