"""Compressed replies are decoded piece by piece; data that never becomes content is given up."""

import gzip
import random
from collections.abc import Callable

import pytest

from batchbench.transport.encodings import MAX_SILENT, Decoder
from batchbench.transport.replies import Incomplete
from tests import zstd

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 20])
def test_members_without_content_end_after_a_limit(encoding: str, size: int) -> None:
    empty, decoder = COMPRESS[encoding](b""), Decoder(encoding)
    data = empty * (size // len(empty))
    fed = (piece for _ in range(2 + MAX_SILENT // len(data)) for piece in decoder.decode(data))
    with pytest.raises(Incomplete, match="has no content"):
        list(fed)


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("size", [100, 1 << 16, 1 << 22])
def test_content_between_some_empty_members_is_decoded(encoding: str, size: int) -> None:
    content, compress = random.Random(0).randbytes(3 << 20), COMPRESS[encoding]
    data = (compress(b"") * 50 + compress(content)) * 2
    decoder = Decoder(encoding)
    pieces = [piece for at in range(0, len(data), size) for piece in decoder.decode(data[at : at + size])]
    decoder.finish()
    assert b"".join(pieces) == content * 2
