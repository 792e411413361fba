"""Pure: read a damaged journal: which of its lines are undamaged, and how many are lost.

The checksum of a line continues that of the line before it, and both are written in the lines. So a line behind the
damage can be checked as long as the line before it shows its checksum. If only one byte of a line changed, the checksum
also shows which byte it was.
"""

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest

import msgspec

from batchbench.runs.events import AnyEvent
from batchbench.runs.journal import decode_event

START = re.compile(rb'[0-9a-f]{8} \d+ \{"event":"')
LINE = re.compile(rb"(.{8}) ((\d{1,12}) (\{.*\}))", re.DOTALL)
CRC = re.compile(rb"[0-9a-f]{8}")
MAX_REPAIRS = 50  # damaged lines that are repaired
# By how much a checksum changes if the last byte changes by a number; the high bytes of these values all differ.
CHANGES = [zlib.crc32(bytes([number])) ^ zlib.crc32(b"\0") for number in range(256)]
BY_HIGH_BYTE = {change >> 24: number for number, change in enumerate(CHANGES)}


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a journal."""

    events: dict[int, AnyEvent]  # by line number
    beginning: int  # how many lines precede the first lost one
    lost: int  # lines before the last undamaged one
    repaired: int  # lines with one changed byte
    open_end: bool  # more lines may have followed the last undamaged one

    @property
    def intact(self) -> bool:
        """Whether every line is known."""
        return bool(self.events) and not self.lost and not self.open_end

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return self.intact and not self.repaired


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the file that looks like a line."""

    start: int
    end: int
    stated: int | None  # its checksum; None if that is not a number
    number: int | None = None  # None if the text is not a line
    body: bytes = b""  # what the checksum is about
    event: bytes = b""


def survivors(content: bytes) -> Survivors:
    """The events in the undamaged lines of a journal."""
    found, crcs = _undamaged(content)
    events = {number: decode_event(piece.event) for number, piece in found.items()}
    repaired = dict(_repaired(content, found, crcs))
    events |= {number: decode_event(body.partition(b" ")[2]) for number, body in repaired.items()}
    # A line may be proved although its checksum or its newline is damaged.
    changed = [
        number
        for number, piece in found.items()
        if content[piece.start : piece.end] != b"%08x %s\n" % (crcs[number], piece.body)
    ]
    last = max(events, default=-1)
    end = max((piece.end for piece in found.values()), default=0)
    return Survivors(
        events=dict(sorted(events.items())),
        beginning=next((number for number in range(last + 1) if number not in events), last + 1),
        lost=last + 1 - len(events),
        repaired=len(repaired) + len(changed),
        open_end=last not in repaired and (content[end:] != b"" or _lacks_newline(found.get(last))),
    )


def _lacks_newline(piece: _Piece | None) -> bool:
    """Whether the content ends before the newline of this line: the lines after it may be cut off, too."""
    return piece is not None and piece.end - piece.start == len(b"%08x %s" % (0, piece.body))


def _undamaged(content: bytes) -> tuple[dict[int, _Piece], dict[int, int]]:
    """The undamaged lines, and their checksums, by number; line -1 stands before the first one."""
    found: dict[int, _Piece] = {}
    crcs: dict[int, int] = {-1: 0}
    pieces = list(map(_piece, *_bounds(content)))
    stated = {piece.number: piece.stated for piece in pieces}
    for piece, after in zip_longest(pieces, pieces[1:]):
        number, last = piece.number, max(found, default=-1)
        if number is None or number <= last:
            continue
        begin = found[last].end if found else 0
        before = [crcs[number - 1]] if number - 1 in crcs else [stated.get(number - 1)]
        if number - 2 == last:  # the line before it is damaged: either its checksum is right, or its text
            text = content[begin : piece.start]
            before += [_stated(text), zlib.crc32(text[9:-1], crcs[last])]
        chains = [zlib.crc32(piece.body, crc) for crc in before if crc is not None]
        right = piece.stated in chains
        # Its own checksum is damaged, or lines before it were removed: the line after it shows whether it is undamaged.
        if piece.stated is not None and begin == piece.start and number - 1 not in crcs:
            chains.append(piece.stated)
        confirmed = [chain for chain in chains if _continues(after, number, chain)]
        if right or (confirmed and _is_event(piece.event)):
            found[number] = piece
            crcs[number] = piece.stated if right and piece.stated is not None else confirmed[0]
    return found, crcs


def _continues(after: _Piece | None, number: int, chain: int) -> bool:
    """Whether a line is the undamaged next one after the line with this number and checksum."""
    return after is not None and after.number == number + 1 and zlib.crc32(after.body, chain) == after.stated


def _bounds(content: bytes) -> tuple[list[bytes], list[int]]:
    """The parts of a file that may be lines, and where they begin: at a line's end, or where a line's usual text is."""
    ends_of_lines = {match.end() for match in re.finditer(rb"\n", content)}
    places = sorted({0, *ends_of_lines, *(match.start() for match in START.finditer(content))})
    ends = [*places[1:], len(content)]
    return [content[start:end] for start, end in zip(places, ends, strict=True)], places


def _piece(text: bytes, start: int) -> _Piece:
    """A line without its last byte, which is a newline or was one."""
    match = LINE.fullmatch(text[:-1]) or LINE.fullmatch(text)
    stated = _stated(text)
    end = start + len(text)
    if match is None:
        return _Piece(start=start, end=end, stated=stated)
    return _Piece(start=start, end=end, stated=stated, number=int(match[3]), body=match[2], event=match[4])


def _stated(text: bytes) -> int | None:
    """The checksum at the start of a line; None if there is no such number."""
    return int(text[:8], 16) if CRC.match(text) else None


def _is_event(text: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        decode_event(text)
        return True
    return False


def _repaired(content: bytes, found: dict[int, _Piece], crcs: dict[int, int]) -> Iterator[tuple[int, bytes]]:
    """Single lost lines of which one byte changed, with that byte as it was; by line number."""
    known = sorted(found)
    repairs = 0
    for number in [number + 1 for number in [-1, *known] if number + 1 not in found]:
        after = found.get(number + 1)
        if (after is None and number <= max(known, default=-1)) or repairs >= MAX_REPAIRS:
            continue  # more than one line is lost here
        start = found[number - 1].end if number else 0
        region = content[start : after.start if after else len(content)]
        for text in (region, region[:-1]):
            if body := _mended(text, number, crcs[number - 1], after):
                repairs += 1
                yield number, body
                break


def _mended(text: bytes, number: int, before: int, after: _Piece | None) -> bytes | None:
    """The body of a line in which one byte changed; None if that is not what happened to it."""
    body = text[9:]
    own = zlib.crc32(body, before)
    wrong_places = sum(one != other for one, other in zip(b"%08x " % own, text[:9], strict=False))
    if wrong_places == 1 and body.startswith(b"%d " % number) and _is_event(body.partition(b" ")[2]):
        return body  # the byte is in its checksum
    if not CRC.fullmatch(text[:8]) or text[8:9] != b" ":
        return None
    stated = int(text[:8], 16)
    difference = own ^ stated
    for place in range(len(body) - 1, -1, -1):
        change = BY_HIGH_BYTE[difference >> 24]
        if CHANGES[change] == difference:  # the byte at this place changed by this number
            mended = body[:place] + bytes([body[place] ^ change]) + body[place + 1 :]
            seq, _, event = mended.partition(b" ")
            fits = after is None or zlib.crc32(after.body, stated) == after.stated
            if fits and seq == b"%d" % number and _is_event(event):
                return mended
        difference = ((difference ^ CHANGES[change]) << 8 | change) & 0xFFFFFFFF  # one byte earlier
    return None
