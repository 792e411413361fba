"""What a client is told before it starts: that its time passes faster, or how its nonces are drawn."""

import os
from pathlib import Path

from tests.dispatch.scene import Scene

# Whatever waits, counts seconds or gives up does so by these clocks; the one on the wall is left alone, so that what is
# written down can be compared with what others write.
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


# The same, but replies have as long as ever: where an hour is to pass in seconds, a busy server must not seem dead.
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
# Every other nonce begins with a digit below 8, for rules that strike those, until sixteen are drawn. Then none does,
# so that whatever strikes a create comes to an end.
DRAW = """
import secrets
token_hex, firsts = secrets.token_hex, iter("08192a3b4c5d6e7f")
secrets.token_hex = lambda size: next(firsts, "f") + token_hex(5)[1:] if size == 5 else token_hex(size)
"""


def hurry(scene: Scene, speed: float) -> None:
    """Let the client's time pass so many times faster."""
    put_first(scene, HURRY.format(speed=speed))


def sleep_through(scene: Scene, speed: float) -> None:
    """Let the time that the client waits by itself pass so many times faster."""
    put_first(scene, SLEEP.format(speed=speed))


def put_first(scene: Scene, code: str) -> None:
    """Let the client run this before everything else that it imports."""
    folder = scene.folder / "first"
    folder.mkdir(exist_ok=True)
    with (folder / "sitecustomize.py").open("a") as file:
        file.write(code)
    path = os.pathsep.join(filter(None, [str(folder), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    scene.environment["PYTHONPATH"] = path
