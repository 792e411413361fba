"""What there is to be judged, read from its bytes with the standard library (parquet with polars)."""

import contextlib
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Json = dict[str, Any]
Row = tuple[int, int]  # row of the manifest, repetition


def rows_of(ranges: list[list[int]]) -> list[int]:
    return [row for start, stop in ranges for row in range(start, stop)]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Journal:
    """The events, as far as their chain holds."""

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


@dataclass
class Submission:
    """One batch as the provider saw it."""

    id: str
    nonce: str
    owner: str
    t: float
    wall: float
    place: int  # line of the ledger
    ids: list[str] = field(default_factory=list)
    billed: dict[str, str] = field(default_factory=dict)  # id -> digest of the text
    costs: dict[str, int] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)  # ids billed more than once within the batch
    ended: tuple[float, int] | None = None  # time, line
    struck: set[str] = field(default_factory=set)  # ids whose result lines the provider damaged
    blamed: set[int] = field(default_factory=set)  # lines for which it refused the whole batch

    def rows(self) -> list[Row]:
        return [parsed(one) for one in self.ids]


def parsed(custom_id: str) -> Row:
    _, row, rep = custom_id.split("-")
    return int(row), int(rep)


@dataclass
class Ledger:
    events: list[Json]
    batches: dict[str, Submission]
    size: int

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        content = path.read_bytes()
        events = [json.loads(line) for line in content.split(b"\n") if line]
        names = {e["file"]: e["name"].partition(".")[0] for e in events if e["event"] == "uploaded"}
        batches: dict[str, Submission] = {}
        for place, event in enumerate(events):
            if event["event"] == "accepted":
                nonce = event.get("nonce") or (event.get("metadata") or {}).get("batchbench") or names[event["file"]]
                one = Submission(event["batch"], nonce, event.get("owner", "client"), event["t"], event["wall"], place)
                one.ids = event.get("ids") or []
                batches[one.id] = one
            if "batch" not in event or event["batch"] not in batches:
                continue
            batch = batches[event["batch"]]
            match event["event"]:
                case "validated":
                    batch.ids = event["ids"]
                case "billed":
                    for custom_id, cost, text in zip(event["ids"], event["costs"], event["texts"], strict=True):
                        batch.twice += [custom_id] * (custom_id in batch.billed)
                        batch.billed[custom_id] = text
                        batch.costs[custom_id] = batch.costs.get(custom_id, 0) + cost
                case "failed" | "ended":
                    batch.ended = (event["at"], place)
                    batch.struck |= {one for ids in event.get("struck", {}).values() for one in ids}
                    batch.blamed = {error["line"] for error in event.get("errors", []) if error.get("line")}
        return cls(events, batches, len(content))


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
    answers: dict[str, list[Json]]  # nonce -> rows

    @classmethod
    def read(cls, path: Path) -> "Folder":
        target = json.loads((path / "run.json").read_bytes())["target"]
        found: dict[str, list[Json]] = {}
        for file in sorted(path.glob("answers/*.parquet")):
            found.setdefault(file.stem.partition("-")[0], []).extend(pl.read_parquet(file.read_bytes()).to_dicts())
        return cls(path, target, found)

    def files(self) -> dict[str, Path]:
        return {str(file.relative_to(self.path)): file for file in sorted(self.path.rglob("*")) if not file.is_dir()}

    def state(self) -> str:
        """A digest of every name and byte but the lock's."""
        parts = [f"{name} {digest(path.read_bytes())}\n" for name, path in self.files().items() if name != "lock"]
        return digest("".join(parts).encode())

    def raw(self, part: str) -> Iterator[bytes]:
        """The lines of a result file: they end at a newline byte and nowhere else. A damaged one has none."""
        with contextlib.suppress(zstd.ZstdError, FileNotFoundError):
            yield from (line for line in zstd.decompress((self.path / part).read_bytes()).split(b"\n") if line.strip())


def read_line(line: bytes, provider: str) -> tuple[str, str | None, int, int] | None:
    """Id, text (null: no answer), tokens in and out of a plain result line; null for anything else."""
    try:
        found = json.loads(line)
        if provider == "anthropic":
            result = found["result"]
            if result["type"] != "succeeded":
                return found["custom_id"], None, 0, 0
            message, usage = result["message"], result["message"]["usage"]
            text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
            return found["custom_id"], text, usage["input_tokens"], usage["output_tokens"]
        response = found["response"]
        if response is None or response["status_code"] != 200:
            return found["custom_id"], None, 0, 0
        message, usage = response["body"]["choices"][0]["message"], response["body"]["usage"]
        text = message["content"] or message.get("refusal") or ""
        return found["custom_id"], text, usage["prompt_tokens"], usage["completion_tokens"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
