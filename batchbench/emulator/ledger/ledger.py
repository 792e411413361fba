"""The ledger file: append, make durable, replay.

It is the emulator's only state and the outsider's proof of what was accepted and paid for, so a line is never changed.
Appending writes at once; `durable` waits for the disk, one fdatasync serving everybody who waits meanwhile.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from batchbench.emulator.ledger.events import FORMAT, AnyEvent, Born, Event
from batchbench.errors import DataError, LockedError, UsageError

CHUNK = 1 << 20

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)

E = TypeVar("E", bound=Event)


class Ledger:
    """An open ledger; only the event loop appends, only `flush` touches the disk."""

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
            raise LockedError(f"{path}: another emulator writes this ledger") from None
        self.written = self._cut_torn_tail()
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)  # the file's own name has to survive a power cut, too
        os.close(folder)
        self._durable = self.written
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
            if number == 1 and not (isinstance(event, Born) and event.format == FORMAT):
                raise DataError(f"{self.path}: not a ledger of format {FORMAT}; use another --state folder")
            yield event, offset, len(line)
            offset += len(line) + 1

    def read(self, offset: int, length: int, kind: type[E]) -> E:
        """One line again, decoded in full."""
        return msgspec.json.decode(os.pread(self._fd, length, offset), type=kind)

    def append(self, event: Event) -> None:
        """Write one event; it survives the death of this process, and `durable` makes it survive a power cut."""
        line = _encoder.encode(event) + b"\n"
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:] if done else line)
        except OSError:
            os.ftruncate(self._fd, self.written)  # half a line must not precede the next one
            raise
        self.written += len(line)
        self._dirty.set()

    async def durable(self) -> None:
        """Wait until everything appended so far is on disk."""
        if self._durable >= self.written:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((self.written, waiter))
        await waiter

    async def flush(self) -> None:
        """Serve `durable` for ever. A failed fdatasync ends the emulator: nobody knows what is on disk after it."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            target = self.written
            await asyncio.to_thread(os.fdatasync, self._fd)
            self._durable = target
            for need, waiter in self._waiting:
                if need <= target and not waiter.done():
                    waiter.set_result(None)
            self._waiting = [(need, waiter) for need, waiter in self._waiting if need > target]

    def close(self) -> None:
        os.fdatasync(self._fd)
        os.close(self._fd)

    def _lines(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            for line in file:  # bytes: splits on 0x0A only
                yield line[:-1]

    def _cut_torn_tail(self) -> int:
        """Drop what follows the last newline: a line that was being written when the process died."""
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
