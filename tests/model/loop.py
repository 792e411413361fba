"""An event loop in virtual time: instead of waiting, time jumps to the next timer.

Connections are in memory, so that the real HTTP client and the real HTTP server talk without a network. There are no
threads: their work is done at once. The same calls in the same order give the same run.
"""

import asyncio
import os
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import pytest
from anyio import CancelScope
from anyio.lowlevel import checkpoint

START = 1_800_000_000.0  # seconds since 1970
LATENCY = 0.05  # seconds that data takes to arrive, so that a client can be killed in the meantime


class JumpingSelector(selectors.SelectSelector):
    """Advances the clock instead of waiting: no event comes from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "deadlock: no timer is set"
        self.now += max(0.0, timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    """Virtual time, connections in memory, the work of threads done at once."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)
        self.server: Callable[[], asyncio.Protocol] | None = None  # accepts connections; None: unreachable
        self.connections: set[End] = set()

    def time(self) -> float:
        return self._jumping.now

    def wall(self) -> float:
        return START + self.time()

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            done.set_exception(error)
        return done

    async def sock_connect(self, *_: Any) -> None:
        await asyncio.sleep(LATENCY)
        if self.server is None:
            raise ConnectionRefusedError(111, "Connection refused")

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        assert self.server is not None
        ours, theirs = End(self, sock), End(self, sock)
        ours.other, theirs.other = theirs, ours
        theirs.begin(self.server())
        protocol = protocol_factory()
        ours.begin(protocol)
        return ours, protocol

    async def sendfile(self, transport: Any, file: Any, offset: int = 0, count: int | None = None, **_: Any) -> int:
        file.seek(offset)
        content = file.read(count)
        transport.write(content)
        return len(content)

    def close_connections(self) -> None:
        """Reset every connection, as when one side has died."""
        for end in list(self.connections):
            end.lose(ConnectionResetError(104, "Connection reset by peer"))


class End(asyncio.Transport):
    """One end of a connection; data written here arrives at the other end after LATENCY, in order."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        super().__init__({"socket": sock, "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 1)})
        self.other: End
        self._loop = loop
        self._sock = sock
        self._protocol: Any = None
        self._arriving: deque[bytes | None] = deque()  # None is the end
        self._paused = False
        self._closing = False

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._loop.connections.add(self)
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self._send(bytes(data))

    def _send(self, data: bytes | None) -> None:
        other = self.other

        def arrive() -> None:
            other._arriving.append(in_transit.popleft())
            other._deliver()

        in_transit = self.__dict__.setdefault("_in_transit", deque())
        in_transit.append(data)
        self._loop.call_later(LATENCY, arrive)

    def _deliver(self) -> None:
        while self._arriving and not self._paused and self in self._loop.connections:
            piece = self._arriving.popleft()
            if piece is not None:
                self._protocol.data_received(piece)
            elif not self._protocol.eof_received():
                self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(None)
            self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self.lose(None)
        self.other.lose(ConnectionResetError(104, "Connection reset by peer"))

    def lose(self, error: Exception | None) -> None:
        if self in self._loop.connections:
            self._loop.connections.discard(self)
            self._closing = True
            self._protocol.connection_lost(error)
            self._sock.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._deliver()

    def is_reading(self) -> bool:
        return not self._paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def at_once(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
    """Do the work of a thread at once; it cannot be cancelled, and other tasks may run before and after."""
    await checkpoint()
    with CancelScope(shield=True):
        await checkpoint()
        done = work(*args)
        await checkpoint()
    return done


@contextmanager
def virtual(seed: int) -> Iterator[Loop]:
    """A loop; while it runs, clocks show its time and random numbers come from `seed`."""
    loop = Loop()
    chance = random.Random(seed)
    mask = os.umask(0o077)  # as the program sets it when it starts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", loop.wall)
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "clock_gettime", lambda _: loop.time())
        patch.setattr(random, "_urandom", chance.randbytes)
        patch.setattr(os, "urandom", chance.randbytes)
        patch.setattr(anyio.to_thread, "run_sync", at_once)
        for sync in ("fsync", "fdatasync"):  # a killed process loses no data that it has written
            patch.setattr(os, sync, lambda _: None)
        try:
            yield loop
        finally:
            loop.close()
            os.umask(mask)
