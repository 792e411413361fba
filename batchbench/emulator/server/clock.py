"""Virtual time: the machine's clock plus an offset that only grows."""

import asyncio
import time
from collections.abc import Callable


class VirtualClock:
    """Coroutines can wait for virtual time; `advance` wakes them."""

    def __init__(self, offset: float = 0.0, wall: Callable[[], float] = time.time) -> None:
        self.offset = offset
        self.wall = wall
        self._advanced = asyncio.Event()

    def now(self) -> float:
        return self.wall() + self.offset

    def advance(self, seconds: float) -> None:
        self.offset += seconds
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of virtual time; `advance` can end the wait early."""
        await self.sleep_until(self.now() + seconds)

    async def sleep_until(self, deadline: float) -> None:
        while (left := deadline - self.now()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._advanced.wait()
            except TimeoutError:
                return
