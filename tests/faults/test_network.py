"""Network faults: a sent create is known or searched for; a download is complete or repeated."""

import pytest

from tests.faults.rows import row
from tests.faults.stories import ROWS, Play, Story, by_draw, cases, in_turn, judge, play

__all__ = ["play"]

FAST = 60.0  # minutes of client time in one second
DOWNLOADS = ["content", "results"]
RATES = ("bare", "seconds", "float", "date", "past-date", "ms", "negative", "inf", "nan", "text", "huge", "no-retry")
STORIES = {
    "a create that breaks off before it is read": Story(
        row(51),
        [{"do": "reset-before", "on": "create", "key": "^0"}, {"do": "close-before", "on": "create", "key": "^1"}],
    ),
    "a create that breaks off after it was executed": Story(
        row(52), [*by_draw("create", "reset-after"), {"do": "close-after", "on": "create"}], voids=0, size=4
    ),
    "a create that is executed late": Story(row(53), [{"do": "late-act", "on": "create", "seconds": 0.4}], voids=0),
    "a create that is never answered": Story(
        row(53), [{"do": "hang-after", "on": "create"}], voids=0, speed=FAST, full=True
    ),
    "a create that is neither answered nor executed": Story(
        row(53), [{"do": "hang-before", "on": "create", "key": "^0"}], speed=FAST, full=True
    ),
    "an error after acting": Story(row(54), [{"do": "500-after", "on": "create"}], voids=0),
    "all kinds of errors after acting": Story(
        row(54),
        by_draw("create", *(f"{status}-after" for status in (408, 409, 502, 503, 504, 520, 529))),
        voids=0,
        size=3,
        full=True,
    ),
    "endless errors": Story(row(54), [{"do": "500-before", "on": "create"}], 4, 0, "500", speed=FAST, full=True),
    "rate limits with any time to wait": Story(
        row(55), in_turn("poll", *(f"429-{kind}" for kind in RATES)), size=ROWS, speed=FAST
    ),
    "rate limits on everything": Story(
        row(55), [{"do": "429-ms", "on": ["create", "poll", "list"], "p": 0.4}], full=True
    ),
    "creates that come too fast": Story(
        row(55), by_draw("create", "429-slow-down", "429-seconds"), dialects=("openai",), full=True
    ),
    "creates that grow too fast": Story(
        row(55), by_draw("create", "429-ramp-limit", "429-seconds"), dialects=("anthropic",), full=True
    ),
    "all kinds of errors": Story(
        row(58),
        in_turn("poll", *(f"{status}-before" for status in (500, 502, 503, 504, 520, 529, 408, 409))),
        size=ROWS,
        speed=FAST,
    ),
    "a proxy's page of errors on every other path": Story(
        row(58),
        [{"do": "502-before", "on": ["upload", "list", *DOWNLOADS], "first": 2}],
        size=4,
        dialects=("openai",),
        full=True,
    ),
    "a create that never arrives completely": Story(
        row(59), [{"do": "400-not-json", "on": "create"}], 4, 0, "unexpected end of data", full=True
    ),
    "a file that is not found at once": Story(row(60), by_draw("create", "400-cannot-find-file"), dialects=("openai",)),
    "a batch that is too large": Story(
        row(61), [], size=ROWS, emulator=("--limit", "upload_bytes=9000", "--limit", "anthropic_bytes=9000")
    ),
    "downloads that are cut in every way": Story(
        row(62), in_turn(DOWNLOADS, "cut-length", "cut-chunked", "cut-line", "cut-mid-line", "cut-utf8")
    ),
    "downloads that break off": Story(row(62), [{"do": "cut-length", "first": 1}], full=True),
    "downloads that end at a line": Story(row(62), [{"do": "cut-line", "first": 2}], full=True),
    # Of ten downloads of two files, one of each is complete, in different attempts.
    "two downloads that are never complete together": Story(
        row(62),
        [{"do": "expire-half", "seconds": 0.1, "key": "^[0-7]"}, {"do": "cut-line", "nth": [1, 3, 4, 5, 6, 7, 8, 10]}],
        None,
        None,
        dialects=("openai",),
        full=True,
    ),
    # The names of the files decide which fault occurs.
    "a server that handles ranges wrongly": Story(
        row(63),
        [
            {"do": "cut-line", "nth": [1]},
            {"do": "range-416", "nth": [2], "key": "[a-m]$", "p": 1.0},
            {"do": "range-wrong", "nth": [2], "key": "[A-Z]$", "p": 1.0},
            {"do": "range-ignored", "nth": [2], "key": ".", "p": 1.0},
        ],
    ),
    "downloads with broken compression": Story(
        row(64), in_turn(DOWNLOADS, "gzip-cut", "gzip-crc", "gzip-fake", "gzip-double", "brotli-fake")
    ),
    "downloads that never end": Story(row(65), in_turn(DOWNLOADS, "gzip-bomb", "endless", "huge-length"), size=ROWS),
    "downloads that trickle or stall": Story(row(66), in_turn(DOWNLOADS, "slow", "stall"), size=ROWS, speed=FAST),
    "an unreadable reply to an executed create": Story(
        row(67), by_draw("create", "html-after", "empty-after", "null-after", "other-json-after"), voids=0, size=4
    ),
    "unreadable replies about a batch": Story(
        row(67),
        in_turn("poll", "html-before", "empty-before", "null-before", "other-json-before"),
        size=ROWS,
        full=True,
    ),
    "endless unreadable replies about a batch": Story(
        row(67),
        [{"do": "html-before", "on": "poll"}],
        1,
        0,
        "makes no sense",
        size=ROWS,
        speed=FAST,
        open_batches=True,
        full=True,
    ),
    "unreadable bytes instead of results": Story(
        row(67), in_turn(DOWNLOADS, "html-before", "other-json-before", "empty-before", "null-before"), size=3
    ),
    "a redirect of everything": Story(
        row(68), [{"do": "redirect-307"}], 1, 0, "a redirect to localhost", dialects=("openai",)
    ),
    "a redirect of every create": Story(
        row(68), [{"do": "redirect-308", "on": "create"}], 4, 0, "a redirect to localhost", full=True
    ),
    "a download that is redirected to a host that asks for the key": Story(
        row(68), [{"do": "redirect-303", "on": "content", "nth": [1]}], dialects=("openai",)
    ),
    "replies that are not HTTP": Story(
        row(70),
        in_turn(
            "poll",
            *(f"{what}-before" for what in ("bad-status-line", "http09", "huge-header", "header-bomb", "extra-bytes")),
        ),
        size=ROWS,
        speed=FAST,
    ),
    "creates whose replies are not HTTP": Story(
        row(70),
        [
            *by_draw(
                "create", *(f"{what}-after" for what in ("bad-status-line", "http09", "header-bomb", "extra-bytes"))
            ),
            {"do": "huge-header-after", "on": "create", "key": "^[89a]"},
        ],
        voids=0,
        size=4,
        full=True,
    ),
    "a proxy that sends twice": Story(row(72), [{"do": "dup-accept"}], full=True),
    "a proxy that sends twice and loses the reply": Story(
        row(72), [{"do": "reset-after", "on": "create"}, {"do": "dup-accept"}]
    ),
    "uploads that arrive in part": Story(
        row(74), [*by_draw("upload", "upload-bytes"), {"do": "upload-cut", "first": 1}], dialects=("openai",)
    ),
}


@pytest.mark.parametrize(("name", "dialect"), cases(STORIES))
def test_a_run_survives(play: Play, name: str, dialect: str) -> None:
    judge(STORIES[name], *play(name, dialect))
