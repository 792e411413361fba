"""The evidence, read from its bytes with the standard library (parquet with polars)."""

import contextlib
import hashlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

Json = dict[str, Any]
Row = tuple[int, int]  # row of the manifest, repetition


def rows_of(ranges: list[list[int]]) -> list[int]:
    return [row for start, stop in ranges for row in range(start, stop)]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Journal:
    """The events, up to the first break of their checksum chain."""

    events: list[Json]
    damage: list[str]
    torn: bool

    @classmethod
    def read(cls, path: Path) -> "Journal":
        events: list[Json] = []
        crc, content = 0, path.read_bytes()
        *lines, tail = content.split(b"\n")
        for number, line in enumerate(lines):
            stated, _, body = line.partition(b" ")
            seq, _, text = body.partition(b" ")
            crc = zlib.crc32(body, crc)
            if stated != b"%08x" % crc or seq != b"%d" % number:
                return cls(events, [f"the chain breaks at line {number}"], bool(tail))
            events.append(json.loads(text))
        return cls(events, [], bool(tail))

    def kind(self, *names: str) -> list[Json]:
        return [event for event in self.events if event["event"] in names]


# What each fault of a result line excuses; a fault that is not in a set excuses nothing.
LOSES = {f"line-{name}" for name in ("missing", "unknown-id", "foreign-id", "out-of-range", "null-id", "duplicate-key")}
SPOILS = {
    f"line-{name}"
    for name in ("malformed", "nan", "trailing", "conflict", "tool-call", "huge", "nested", "choices-none", "renamed")
} | {"line-wrapped", "line-number-text"}
ALTERS = {f"line-{name}" for name in ("invalid-utf8", "surrogate", "choices-many", "swapped")}
UNPRICED = {f"line-usage-{name}" for name in ("absent", "negative", "null", "nulls")}  # the cost is not in the line
ABSURD = {"line-usage-huge"}
REFUSES = {"line-policy"}  # the request fails, and is not billed
SILENT = {"line-empty", "line-content-filter"}  # the model's answer has no text


@dataclass
class Submission:
    """One batch, as the provider recorded it."""

    id: str
    nonce: str
    owner: str
    t: float
    wall: float
    place: int  # line of the ledger
    ids: list[str] = field(default_factory=list)
    billed: dict[str, str] = field(default_factory=dict)  # id -> digest of the text
    costs: dict[str, int] = field(default_factory=dict)
    longest: int = 0  # output tokens of a billed answer at most
    twice: list[str] = field(default_factory=list)  # ids billed more than once within the batch
    ended: tuple[float, int, float] | None = None  # time, line, wall
    faults: dict[str, str] = field(default_factory=dict)  # id -> the fault in its result line
    output: str = ""  # the file with the answers
    refused: bool = False  # the whole batch failed validation
    blamed: set[int] = field(default_factory=set)  # the lines that the refusal names
    deleted: bool = False

    def rows(self) -> list[Row]:
        return [parsed(one) for one in self.ids]


def parsed(custom_id: str) -> Row:
    _, row, rep = custom_id.split("-")
    return int(row), int(rep)


class Call(NamedTuple):
    """A single call that was billed."""

    id: str
    text: str  # its digest
    cost: int


@dataclass
class Ledger:
    events: list[Json]
    batches: dict[str, Submission] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    doubled: Counter[str] = field(default_factory=Counter)  # creates that a fault sent twice, by nonce
    handed_out: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)  # file -> time, complete

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        ledger = cls([json.loads(line) for line in path.read_bytes().split(b"\n") if line])
        names = {e["file"]: e["name"].partition(".")[0] for e in ledger.events if e["event"] == "uploaded"}
        for place, event in enumerate(ledger.events):
            if event["event"] == "accepted":
                nonce = event.get("nonce") or (event.get("metadata") or {}).get("batchbench") or names[event["file"]]
                one = Submission(event["batch"], nonce, event.get("owner", "client"), event["t"], event["wall"], place)
                one.ids = event.get("ids") or []
                ledger.batches[one.id] = one
            ledger._note(event, place)
        return ledger

    def _note(self, event: Json, place: int) -> None:
        batch = self.batches.get(str(event.get("batch") or event.get("id")))
        match event["event"]:
            case "fault" if event["do"] == "dup-accept":
                self.doubled[event["key"]] += 1
            case "downloaded":
                self.handed_out.setdefault(event["file"], []).append((event["wall"], event["complete"]))
            case "billed" if event["batch"] == "sync":
                self.calls.append(Call(event["ids"][0], event["texts"][0], event["cost"]))
            case "validated" if batch:
                batch.ids = event["ids"]
            case "billed" if batch:
                batch.longest = max([batch.longest, *event["outputs"]])
                for custom_id, cost, text in zip(event["ids"], event["costs"], event["texts"], strict=True):
                    batch.twice += [custom_id] * (custom_id in batch.billed)
                    batch.billed[custom_id] = text
                    batch.costs[custom_id] = batch.costs.get(custom_id, 0) + cost
            case "failed" | "ended" if batch:
                batch.ended = (event["at"], place, event["wall"])
                batch.refused = event["event"] == "failed"
                batch.faults = {one: fault for fault, ids in event.get("struck", {}).items() for one in ids}
                batch.blamed = {error["line"] for error in event.get("errors", []) if error.get("line")}
                batch.output = (event.get("output") or {"file": ""})["file"]
            case "deleted" if batch:
                batch.deleted = True


@dataclass
class Manifest:
    prompts: list[str]
    variants: int
    damage: list[str]

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        about = json.loads((folder / "manifest.json").read_bytes())
        prompts: list[str] = []
        damage = []
        for shard in about["shards"]:
            content = (folder / shard["file"]).read_bytes()
            texts = pl.read_parquet(content, columns=["prompt"])["prompt"].to_list()
            if digest(content) != shard["file_sha256"] or len(texts) != shard["rows"]:
                damage.append(f"{shard['file']} is not the shard that was compiled")
            if digest(b"".join(text.encode() + b"\0" for text in texts)) != shard["text_sha256"]:
                damage.append(f"{shard['file']} holds other prompts than were compiled")
            prompts += texts
        return cls(prompts, about["variants"], damage)


@dataclass
class Folder:
    """The files of a run."""

    path: Path
    target: Json

    @classmethod
    def read(cls, path: Path) -> "Folder":
        return cls(path, json.loads((path / "run.json").read_bytes())["target"])

    def files(self) -> dict[str, Path]:
        return {str(file.relative_to(self.path)): file for file in sorted(self.path.rglob("*")) if not file.is_dir()}

    def state(self) -> str:
        """A digest of all names and bytes, except the lock's."""
        parts = [f"{name} {digest(path.read_bytes())}\n" for name, path in self.files().items() if name != "lock"]
        return digest("".join(parts).encode())

    def content(self, name: str) -> bytes:
        path = self.path / name
        return path.read_bytes() if path.exists() else b""

    def answers(self, part: str) -> list[Json]:
        """The rows of an answers file; none if it is absent or damaged, which the digests reveal."""
        with contextlib.suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return pl.read_parquet(self.content(part)).to_dicts()
        return []

    def lines(self, part: str) -> Iterator[bytes]:
        """The lines of a result file, split at newline bytes only; none if it is damaged."""
        with contextlib.suppress(zstd.ZstdError):
            yield from (line for line in zstd.decompress(self.content(part)).split(b"\n") if line.strip())


class Reading(NamedTuple):
    """What an undamaged result line says."""

    id: str
    outcome: str = "failed"
    text: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    call: str = ""  # the answer's own id
    lost: bool = False  # a single call without a known outcome
    cut: bool = False  # the token limit has cut the answer off

    def is_kept_as(self, row: Json) -> bool:
        mine = (self.outcome, self.text, self.input_tokens, self.output_tokens)
        return mine == (row["outcome"], row["text"] or "", row["input_tokens"], row["output_tokens"])


def read_line(line: bytes, provider: str) -> Reading | None:
    """Read an undamaged result line; None for any other line."""
    try:
        found = json.loads(line)
        if provider == "anthropic":
            result = found["result"]
            if result["type"] != "succeeded":
                return Reading(found["custom_id"])
            message, usage = result["message"], result["message"]["usage"]
            text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
            outcome = {"max_tokens": "truncated"}.get(message["stop_reason"], "answered") if text.strip() else "empty"
            outcome = "refused" if message["stop_reason"] == "refusal" else outcome
            counts = usage["input_tokens"], usage["output_tokens"]
            return Reading(found["custom_id"], outcome, text, *counts, cut=message["stop_reason"] == "max_tokens")
        response = found["response"]
        if response is None or response["status_code"] != 200:
            return Reading(found["custom_id"], lost=(found["error"] or {}).get("code") == "call_lost")
        body, choice, usage = response["body"], response["body"]["choices"][0], response["body"]["usage"]
        message = choice["message"]
        content = message["content"]
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if part["type"] == "text")
        text = content or message.get("refusal") or ""
        outcome = {"length": "truncated"}.get(choice["finish_reason"], "answered")
        outcome = outcome if text.strip() or choice.get("logprobs") else "empty"
        outcome = "filtered" if choice["finish_reason"] == "content_filter" else outcome
        outcome = "refused" if message.get("refusal") else outcome
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        cut = choice["finish_reason"] == "length"
        return Reading(found["custom_id"], outcome, text, *counts, body["id"], cut=cut)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
