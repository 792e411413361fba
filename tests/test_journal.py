"""The journal: events are read back as they were written, and damage is noticed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.core.money import Price
from batchbench.errors import DataError
from batchbench.runs import events, journal
from batchbench.runs.events import Asked, Created, Creating, Intent, Opened, Rejected, Stored, Uploaded, Void

PRICE = Price(input=75_000, output=300_000, source="test")
OPENED = Opened(at=1.0, run="r", manifest="m", target="t")
ASKED = Asked(at=2.0, items=10, repetitions=1, budget=None, rates=PRICE)


def life(nonce: str, reserve: int = 100) -> list[events.AnyEvent]:
    return [
        Intent(at=3.0, nonce=nonce, rep=0, ranges=[(0, 10)], rows=10, reserve=reserve),
        Uploaded(at=4.0, nonce=nonce, file="file-1"),
        Creating(at=5.0, nonce=nonce),
        Created(at=6.0, nonce=nonce, remote=f"batch-{nonce}"),
        events.Ended(at=7.0, nonce=nonce, status="completed"),
        Stored(at=8.0, nonce=nonce, parts=[], answered=10, again=[], missing=[], quarantined=0, cost=40),
    ]


EVENTS: list[events.AnyEvent] = [OPENED, ASKED, *life("a"), *life("b")[:3]]


def written(events: list[events.AnyEvent]) -> bytes:
    content, crc = b"", 0
    for seq, event in enumerate(events):
        line, crc = journal.line(event, seq, crc)
        content += line
    return content


def test_events_are_read_back_as_written() -> None:
    content = written(EVENTS)
    found = journal.read(content, "journal")
    assert found.events == EVENTS
    assert found.good == len(content)


@given(st.integers(0, len(written(EVENTS))))
def test_the_beginning_of_a_journal_has_its_first_events(cut: int) -> None:
    found = journal.read(written(EVENTS)[:cut], "journal")
    assert found.events == EVENTS[: len(found.events)]
    assert found.good <= cut


def test_every_changed_bit_is_noticed() -> None:
    """Also in the last line: it was complete, so a step may rely on it, and it must not be taken for a torn line."""
    content = written(EVENTS)
    for index in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[index] ^= 1 << bit
            with pytest.raises(DataError, match="damaged at byte"):
                journal.read(bytes(changed), "journal")


@given(st.binary(min_size=9, max_size=9), st.integers(0, 2_000))
def test_a_last_line_that_lacks_sectors_is_cut_off(lost: bytes, length: int) -> None:
    long = Rejected(at=9.0, nonce="b", reason="no" * length)
    before, content = written(EVENTS), bytearray(written([*EVENTS, long]))
    sectors = [start for start in range(0, len(content), journal.SECTOR) if start + journal.SECTOR > len(before)]
    gone = [start for start, byte in zip(sectors, lost, strict=False) if byte % 2]
    for start in gone:
        edges = max(start, len(before)), min(start + journal.SECTOR, len(content))
        content[slice(*edges)] = bytes(edges[1] - edges[0])
    found = journal.read(bytes(content), "journal")
    assert found.events == (EVENTS if gone else [*EVENTS, long])


def test_a_last_line_with_nothing_but_its_newline_is_cut_off() -> None:
    before, shortest = written(EVENTS), Rejected(at=9.0, nonce="b", reason="")
    fill = "x" * (-len(written([*EVENTS, shortest])) % journal.SECTOR + 1)
    content = written([*EVENTS, Rejected(at=9.0, nonce="b", reason=fill)])
    assert len(content) % journal.SECTOR == 1
    torn = before + bytes(len(content) - len(before) - 1) + b"\n"
    assert journal.read(torn, "journal").events == EVENTS


def test_removed_repeated_and_swapped_lines_are_noticed() -> None:
    lines = written(EVENTS).splitlines(keepends=True)
    broken = [
        lines[:3] + lines[4:],
        [*lines[:4], lines[3], *lines[4:]],
        [*lines[:3], lines[4], lines[3], *lines[5:]],
        [written([msgspec.structs.replace(OPENED, run="x")]), *lines[1:]],
    ]
    for case in broken:
        with pytest.raises(DataError, match="damaged"):
            journal.read(b"".join(case), "journal")


def test_another_format_is_refused() -> None:
    with pytest.raises(DataError, match="does not have format 1"):
        journal.read(written([msgspec.structs.replace(OPENED, format=2)]), "journal")


def test_a_stored_batch_counts_with_its_cost_and_an_open_batch_with_its_reserve() -> None:
    state = journal.replay(EVENTS)
    assert state.spent() == 40
    assert state.reserved() == 100
    assert [batch.nonce for batch in state.open()] == ["b"]


def test_a_question_of_the_pilot_is_reserved_until_its_reply_and_only_an_answer_is_spent() -> None:
    tried: list[events.AnyEvent] = [OPENED, ASKED, events.Tried(at=3.0, reserve=50)]
    assert journal.replay(tried).reserved() == 50
    refused = journal.replay([*tried, events.Failed(at=4.0, reason="no")])
    assert (refused.reserved(), refused.spent(), refused.passed) == (0, 0, [])
    answered = journal.replay([*tried, events.Passed(at=4.0, cost=9)])
    assert (answered.reserved(), answered.spent(), len(answered.passed)) == (0, 9, 1)


def test_a_rejected_batch_reserves_nothing_and_a_void_batch_until_it_is_cleared() -> None:
    state = journal.replay([*EVENTS, Rejected(at=9.0, nonce="b", reason="no")])
    assert state.reserved() == 0
    state = journal.replay([*EVENTS, Void(at=9.0, nonce="b", reason="never seen")])
    assert state.reserved() == 100
    state.apply(events.Cleared(at=9e4, nonce="b"))
    assert state.reserved() == 0


def test_a_batch_keeps_the_rates_at_which_it_was_bought() -> None:
    """Journals of older versions note rates only with the plan: the plan before the intent counts."""
    dearer = msgspec.structs.replace(PRICE, input=150_000)
    planned = msgspec.structs.replace(ASKED, rates=dearer)
    noted = msgspec.structs.replace(life("c")[0], rates=dearer)
    state = journal.replay([OPENED, ASKED, *life("a"), planned, *life("b"), ASKED, noted])
    assert [batch.rates for batch in state.batches.values()] == [PRICE, dearer, dearer]
    assert state.rates() == [PRICE, dearer]
