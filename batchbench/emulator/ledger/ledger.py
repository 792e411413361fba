"""The ledger file: append, sync, replay.

The ledger is the emulator's only state. An auditor can check in it what the emulator accepted and billed, so a line is
never changed. `append` writes at once; `sync` waits until the line is on disk. One fdatasync serves all waiting tasks.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from batchbench.emulator.ledger.events import FORMAT, AnyEvent, LedgerEvent, LedgerStarted
from batchbench.errors import DataError, LockedError, UsageError

CHUNK = 1 << 20

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)

E = TypeVar("E", bound=LedgerEvent)


class Ledger:
    """An open ledger. Only the event loop appends; only `run_sync` calls fdatasync."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{path}: the ledger cannot be opened ({error.strerror})") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise LockedError(f"{path}: another emulator uses this ledger") from None
        self.written = self._cut_torn_tail()
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)  # makes the file name survive a power cut
        os.close(folder)
        self._synced = self.written
        self._dirty = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def replay(self) -> Iterator[tuple[AnyEvent, int, int]]:
        """Every event with the offset and length of its line."""
        offset = 0
        for number, line in enumerate(self._lines(), 1):
            try:
                event = _decoder.decode(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{self.path}: line {number} is not a ledger event ({error})") from None
            if number == 1 and not (isinstance(event, LedgerStarted) and event.format == FORMAT):
                raise DataError(f"{self.path}: not a ledger of format {FORMAT}; use another --state folder")
            yield event, offset, len(line)
            offset += len(line) + 1

    def read(self, offset: int, length: int, kind: type[E]) -> E:
        """Read one line again, with all its fields."""
        return msgspec.json.decode(os.pread(self._fd, length, offset), type=kind)

    def append(self, event: LedgerEvent) -> None:
        """Write one event. It survives the end of this process; after `sync` it survives a power cut."""
        line = _encoder.encode(event) + b"\n"
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:] if done else line)
        except OSError:
            os.ftruncate(self._fd, self.written)  # remove the incomplete line
            raise
        self.written += len(line)
        self._dirty.set()

    async def sync(self) -> None:
        """Wait until all events appended so far are on disk."""
        if self._synced >= self.written:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((self.written, waiter))
        await waiter

    async def run_sync(self) -> None:
        """Run fdatasync for `sync` until cancelled. An error of fdatasync ends the emulator."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            target = self.written
            await asyncio.to_thread(os.fdatasync, self._fd)
            self._synced = target
            for size, waiter in self._waiting:
                if size <= target and not waiter.done():
                    waiter.set_result(None)
            self._waiting = [(size, waiter) for size, waiter in self._waiting if size > target]

    def close(self) -> None:
        os.fdatasync(self._fd)
        os.close(self._fd)

    def _lines(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            for line in file:  # in binary mode, only 0x0A ends a line
                yield line[:-1]

    def _cut_torn_tail(self) -> int:
        """Remove the text after the last newline: a killed process left an incomplete line."""
        size = os.fstat(self._fd).st_size
        end = size
        while end:
            start = max(0, end - CHUNK)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)
            os.fsync(self._fd)
        return end
