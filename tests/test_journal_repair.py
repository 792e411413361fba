"""A damaged journal: every line that is undamaged, or has one changed byte, is read; no line is read wrongly."""

from random import Random

import pytest

from batchbench.runs import events, journal
from batchbench.runs.events import AnyEvent
from batchbench.runs.salvage.journal_repair import survivors


def history(random: Random) -> list[AnyEvent]:
    found: list[AnyEvent] = [events.Opened(at=1.0, run="ab", manifest="m", target="t")]
    for number in range(random.randint(1, 8)):
        nonce = f"{random.getrandbits(40):010x}"
        ranges = [(number, number + 5)]
        found.append(events.Intent(at=2.0, nonce=nonce, rep=0, ranges=ranges, rows=5, reserve=100))
        found.append(events.Created(at=3.0, nonce=nonce, remote=f"batch_{number}"))
    return found


def written(history: list[AnyEvent]) -> bytes:
    crc, content = 0, b""
    for number, event in enumerate(history):
        line, crc = journal.line(event, number, crc)
        content += line
    return content


def damaged(content: bytes, kind: str, random: Random) -> bytes:
    text, place = bytearray(content), random.randrange(len(content))
    match kind:
        case "one byte" | "two bytes":
            for _ in range(1 if kind == "one byte" else 2):
                text[random.randrange(len(text))] ^= random.randint(1, 255)
        case "cut off":
            del text[place:]
        case "removed":
            del text[place : place + random.randint(1, 300)]
        case "zeros":
            text[place : place + 100] = bytes(len(text[place : place + 100]))
    return bytes(text)


@pytest.mark.parametrize("kind", ["one byte", "two bytes", "cut off", "removed", "zeros"])
def test_no_line_is_read_wrongly_and_one_changed_byte_loses_nothing(kind: str) -> None:
    for seed in range(300):
        random = Random(f"{kind} {seed}")
        true = history(random)
        content = written(true)
        changed = damaged(content, kind, random)
        found = survivors(changed)
        assert all(true[number] == event for number, event in found.events.items()), (seed, found)
        if kind == "one byte":
            assert (len(found.events), found.lost, found.whole) == (len(true), 0, False), (seed, found)
        if found.whole:  # only lines at the end can be lost without a trace
            assert content.startswith(changed)
        assert found.intact or len(found.events) < len(true) or changed[-1:] != b"\n"


def test_an_undamaged_journal_is_whole() -> None:
    true = history(Random(0))
    found = survivors(written(true))
    assert found.whole
    assert [*found.events.values()] == true
    assert (found.beginning, found.lost, found.open_end) == (len(true), 0, False)


def test_a_line_that_was_removed_is_counted() -> None:
    true = history(Random(1))
    lines = written(true).splitlines(keepends=True)
    found = survivors(b"".join(lines[:2] + lines[3:]))
    assert (found.lost, found.beginning, sorted(found.events)) == (1, 2, [n for n in range(len(true)) if n != 2])


def test_nothing_is_left_of_an_empty_journal() -> None:
    assert not survivors(b"").intact
