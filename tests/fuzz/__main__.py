"""Coverage-guided fuzzing: `pip install atheris`, then `python -m tests.fuzz TARGET -max_total_time=300`."""

import contextlib
import sys
import zlib
from collections.abc import Callable

import atheris

from batchbench.providers import load_provider

with atheris.instrument_imports(include=["batchbench"]):
    import msgspec

    from batchbench.core.text import FORMULA, sanitize, sanitize_json
    from batchbench.errors import DataError
    from batchbench.report import tables
    from batchbench.runs import ingest, journal
    from batchbench.transport.rate_limit import RateLimit
    from batchbench.transport.replies import retry_after

PROVIDERS = [load_provider(name) for name in ("openai", "anthropic", "chat")]


def results(content: bytes) -> None:
    """A result line is decoded or refused."""
    for provider in PROVIDERS:
        ingest._decode_line(content, provider.decode)
        ingest._unparsed(content)


def history(content: bytes) -> None:
    """A journal with correct checksums is replayed or refused."""
    signed, crc = b"", 0
    for seq, text in enumerate(content.split(b"\n")[:20]):
        body = b"%d %s" % (seq, text)
        crc = zlib.crc32(body, crc)
        signed += b"%08x %s\n" % (crc, body)
    with contextlib.suppress(DataError, ValueError, RecursionError):
        state = journal.replay(journal.read(signed, "journal").events)
        assert state.spent() >= 0
        assert state.reserved() >= 0


def replies(content: bytes) -> None:
    """Batches, errors and headers are decoded, refused or ignored."""
    for provider in PROVIDERS:
        with contextlib.suppress(msgspec.DecodeError):
            provider.read(content)
        provider.verdict(provider.problem(content[0] + 300 if content else 400, content))
    text = content.decode("utf-8", "replace")
    retry_after({"retry-after": text}, 10.0)
    RateLimit().read_headers({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": text})


def sinks(content: bytes) -> None:
    """Printed text moves no cursor, and no table cell is a formula."""
    text = content.decode("utf-8", "replace")
    assert all(letter.isprintable() or letter in "\n\t" for letter in sanitize(text))
    document = msgspec.json.encode(text).decode()
    assert msgspec.json.decode(sanitize_json(document)) == text
    cell = tables._harmless(text)
    assert isinstance(cell, str)
    assert not any(line.lstrip().startswith(FORMULA) for line in cell.split("\n"))


TARGETS: dict[str, Callable[[bytes], None]] = {target.__name__: target for target in (results, history, replies, sinks)}

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
