"""Pure: decode compressed replies piece by piece, so that a decompression bomb takes no memory.

Every call asks for `identity`. Some servers and gateways compress their replies all the same.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from batchbench.transport.replies import Incomplete

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE = 1 << 20  # bytes decoded at once
MAX_SILENT = 1 << 18  # compressed bytes without any output, more than a block of zstd: empty members need not end
GZIP = zlib.MAX_WBITS | 16  # the value of `wbits` that stands for gzip


class Decoder:
    """Decodes one reply. Its limit of bytes is its caller's."""

    def __init__(self, encoding: str | None) -> None:
        self._encoding = (encoding or "").strip().lower() or "identity"
        if self._encoding != "identity" and self._encoding not in _STREAMS:
            raise Incomplete(f"the reply is encoded as {self._encoding[:40]!r}, which batchbench cannot decode")
        self._stream: _Stream | None = None  # None between two compressed members
        self._silent = 0  # compressed bytes since the last output

    def decode(self, data: bytes) -> Iterator[bytes]:
        """The decoded pieces of `data`; raises Incomplete if it is not encoded as announced."""
        if self._encoding == "identity":
            yield data
            return
        while data:
            stream = self._stream or _STREAMS[self._encoding](data)
            self._silent += len(data)
            try:
                for piece in stream.pieces(data):
                    self._silent = 0
                    yield piece
            except (zlib.error, zstd.ZstdError) as error:
                raise Incomplete(f"the reply is not valid {self._encoding} ({error})") from None
            data = stream.rest
            self._silent = max(0, self._silent - len(data))
            if self._silent > MAX_SILENT:
                raise Incomplete(f"the {self._encoding} data of the reply has no content")
            self._stream = None if stream.ended else stream

    def finish(self) -> None:
        """Raise Incomplete if the compressed data ended early."""
        if self._stream is not None:
            raise Incomplete(f"the {self._encoding} data of the reply ends early")


class _Stream(Protocol):
    """One compressed member."""

    rest: bytes  # data after its end
    ended: bool

    def pieces(self, data: bytes) -> Iterator[bytes]: ...


class _Zlib:
    def __init__(self, wbits: int) -> None:
        self._stream = zlib.decompressobj(wbits)
        self.rest, self.ended = b"", False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._stream.decompress(data, PIECE)
            if piece:
                yield piece
            data = self._stream.unconsumed_tail
            self.rest, self.ended = self._stream.unused_data, self._stream.eof
            if self.ended or (not data and len(piece) < PIECE):
                return


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstd.ZstdDecompressor()
        self.rest, self.ended = b"", False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._stream.decompress(data, PIECE)
            if piece:
                yield piece
            data = b""
            self.ended = self._stream.eof
            self.rest = self._stream.unused_data if self.ended else b""
            if self.ended or self._stream.needs_input:
                return


def _deflate(data: bytes) -> _Zlib:
    """Some servers leave out the header that `deflate` should have; its first byte ends with 8."""
    return _Zlib(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)


_STREAMS: dict[str, Callable[[bytes], _Stream]] = {
    "gzip": lambda _: _Zlib(GZIP),
    "x-gzip": lambda _: _Zlib(GZIP),
    "deflate": _deflate,
    "zstd": lambda _: _Zstd(),
}
