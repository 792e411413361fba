"""Patches that a client runs before its imports: faster time, and chosen nonces."""

import os
from pathlib import Path

from tests.dispatch.scene import Scene

# All waits and timeouts use these clocks. The wall clock is unchanged, so times in the journal can be compared with
# times in the ledger.
HURRY = """
import selectors, time
speed = {speed}
gettime, first, select = time.clock_gettime, {{}}, selectors.EpollSelector.select


def hurried(clock):
    now = gettime(clock)
    if clock == time.CLOCK_REALTIME:
        return now
    began = first.setdefault(clock, now)
    return began + (now - began) * speed


time.clock_gettime = hurried
time.monotonic = lambda: hurried(time.CLOCK_MONOTONIC)
selectors.EpollSelector.select = lambda self, timeout=None: select(self, timeout and timeout / speed)
"""


# The same without faster timeouts for replies: when an hour passes in seconds, a busy server must not seem dead.
SLEEP = """
import asyncio, time
monotonic, gettime, first, sleep = time.monotonic, time.clock_gettime, {{}}, asyncio.sleep


def hurried(clock):
    now = gettime(clock)
    return now if clock == time.CLOCK_REALTIME else now + (now - first.setdefault(clock, now)) * ({speed} - 1)


time.clock_gettime = hurried
time.monotonic = lambda: hurried(time.CLOCK_MONOTONIC)
asyncio.BaseEventLoop.time = lambda self: monotonic()
asyncio.sleep = lambda delay, result=None: sleep(delay / {speed}, result)
"""
# Every second one of the first sixteen nonces begins with a digit below 8, for rules that select those. Later nonces
# do not, so that faults on creates come to an end.
DRAW = """
import secrets
token_hex, firsts = secrets.token_hex, iter("08192a3b4c5d6e7f")
secrets.token_hex = lambda size: next(firsts, "f") + token_hex(5)[1:] if size == 5 else token_hex(size)
"""


def hurry(scene: Scene, speed: float) -> None:
    """Make the client's time pass `speed` times faster."""
    run_first(scene, HURRY.format(speed=speed))


def sleep_through(scene: Scene, speed: float) -> None:
    """Make the client's own pauses `speed` times shorter."""
    run_first(scene, SLEEP.format(speed=speed))


def run_first(scene: Scene, code: str) -> None:
    """Make the client run this code before it imports anything."""
    folder = scene.folder / "first"
    folder.mkdir(exist_ok=True)
    with (folder / "sitecustomize.py").open("a") as file:
        file.write(code)
    path = os.pathsep.join(filter(None, [str(folder), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    scene.environment["PYTHONPATH"] = path
