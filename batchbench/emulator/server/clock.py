"""Virtual time: the wall clock plus an offset that only grows."""

import asyncio
import time
from collections.abc import Callable


class Clock:
    """Tells the virtual time and lets coroutines wait for it; moving it wakes them."""

    def __init__(self, offset: float = 0.0, wall: Callable[[], float] = time.time) -> None:
        self.offset = offset
        self.wall = wall
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self.wall() + self.offset

    def advance(self, seconds: float) -> None:
        self.offset += seconds
        self._moved.set()
        self._moved = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of virtual time have passed, at once if the clock is moved that far."""
        deadline = self.now() + seconds
        while (left := deadline - self.now()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                return
