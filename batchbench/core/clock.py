"""Time: the clock on the wall, which anybody may set, and the machine's uptime, which nobody can."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec

BOOT = Path("/proc/sys/kernel/random/boot_id")


def uptime() -> float:
    """Seconds since the machine was started, those it slept through included where it counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot() -> str:
    """A name for the time since the machine was started, so that uptimes can be compared; empty if it has none."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def time_of_day(at: float) -> str:
    """A time of day as a person here would read it off the wall."""
    return time.strftime("%H:%M:%S", time.localtime(at))


class Clock(msgspec.Struct, frozen=True):
    """Time, so that tests can have their own."""

    now: Callable[[], float] = time.time  # seconds since 1970, for people and files
    uptime: Callable[[], float] = uptime  # for how long something has lasted
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    boot: str = msgspec.field(default_factory=boot)
