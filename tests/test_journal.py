"""The journal: what is written is read back, and damage is never taken for history."""

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


def test_what_is_written_is_read_back() -> None:
    content = written(EVENTS)
    reading = journal.read(content, "journal")
    assert reading.events == EVENTS
    assert reading.good == len(content)


@given(st.integers(0, len(written(EVENTS))))
def test_any_prefix_is_a_prefix_of_the_same_history(cut: int) -> None:
    reading = journal.read(written(EVENTS)[:cut], "journal")
    assert reading.events == EVENTS[: len(reading.events)]
    assert reading.good <= cut


def test_every_single_changed_byte_is_noticed() -> None:
    """Also in the last line, which somebody may have acted upon: it is not taken for one that was never whole."""
    content = written(EVENTS)
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            with pytest.raises(DataError, match="damaged at byte"):
                journal.read(bytes(changed), "journal")


@given(st.binary(min_size=9, max_size=9), st.integers(0, 2_000))
def test_a_last_line_without_some_of_its_sectors_is_cut_off(lost: bytes, length: int) -> None:
    long = Rejected(at=9.0, nonce="b", reason="no" * length)
    before, content = written(EVENTS), bytearray(written([*EVENTS, long]))
    sectors = [start for start in range(0, len(content), journal.SECTOR) if start + journal.SECTOR > len(before)]
    gone = [start for start, byte in zip(sectors, lost, strict=False) if byte % 2]
    for start in gone:
        edges = max(start, len(before)), min(start + journal.SECTOR, len(content))
        content[slice(*edges)] = bytes(edges[1] - edges[0])
    reading = journal.read(bytes(content), "journal")
    assert reading.events == (EVENTS if gone else [*EVENTS, long])


def test_a_last_line_of_which_only_the_newline_has_come_is_cut_off() -> None:
    before, rest = written(EVENTS), Rejected(at=9.0, nonce="b", reason="")
    fill = "x" * (-len(written([*EVENTS, rest])) % journal.SECTOR + 1)
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


def test_a_stored_batch_costs_what_it_cost_and_an_open_one_what_it_may() -> None:
    state = journal.replay(EVENTS)
    assert state.spent() == 40
    assert state.reserved(10.0, 86_400) == 100
    assert [batch.nonce for batch in state.open()] == ["b"]


def test_a_trial_is_owed_until_it_is_answered_and_only_an_answer_counts() -> None:
    tried: list[events.AnyEvent] = [OPENED, ASKED, events.Tried(at=3.0, reserve=50)]
    assert journal.replay(tried).reserved(4.0, 86_400) == 50
    refused = journal.replay([*tried, events.Failed(at=4.0, reason="no")])
    assert (refused.reserved(5.0, 86_400), refused.spent(), refused.passed) == (0, 0, [])
    answered = journal.replay([*tried, events.Passed(at=4.0, cost=9)])
    assert (answered.reserved(5.0, 86_400), answered.spent(), answered.passed) == (0, 9, [9])


def test_a_rejected_batch_owes_nothing_and_a_void_one_until_its_window_has_passed() -> None:
    state = journal.replay([*EVENTS, Rejected(at=9.0, nonce="b", reason="no")])
    assert state.reserved(10.0, 86_400) == 0
    state = journal.replay([*EVENTS, Void(at=9.0, nonce="b", reason="never seen")])
    assert state.reserved(10.0, 86_400) == 100
    assert state.reserved(9.0 + 86_400, 86_400) == 0
