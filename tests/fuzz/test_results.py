"""Result lines of any content: every row ends in one state, and the provider's bytes are kept unchanged."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import strategies as st

from batchbench.core.money import MAX_AMOUNT, Price
from batchbench.providers import load_provider
from batchbench.runs import events, results
from batchbench.runs.events import Stored
from batchbench.runs.ingest import Ingested, ingest
from batchbench.runs.journal import BatchRecord
from tests import zstd
from tests.fuzz.mutants import corpus, fuzz, mutants
from tests.test_providers import choice, openai_line

PRICE = Price(input=1_000_000, output=1_000_000, source="test")
ROWS = 3
BATCH = BatchRecord(
    nonce="n",
    rep=0,
    ranges=[(0, ROWS)],
    rows=ROWS,
    reserve=300,
    rates=PRICE,
    intended=0.0,
    provider_status="completed",
)
TOPS = {"content": [{"top_logprobs": [{"token": "he", "logprob": -0.1}, {"token": "she", "logprob": -2}]}]}
OPENAI = [
    openai_line(),
    openai_line(choices=choice("cut", "length"), usage=None),
    openai_line(choices=choice(None, refusal="no")),
    openai_line(choices=choice([{"type": "text", "text": "Joy"}])),
    openai_line(choices=[{"message": {"content": "he"}, "finish_reason": "length", "logprobs": TOPS}]),
    {"custom_id": "n-1-0", "response": None, "error": {"code": "batch_expired", "message": "late"}},
    {"custom_id": "n-2-0", "response": {"status_code": 400, "body": {"error": {"code": "x", "message": "y"}}}},
    {"custom_id": "n-0-0", "response": {"status_code": 500, "body": "oops"}, "lost": 1},
]
USAGE = {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 1}
MESSAGE = {"content": [{"type": "text", "text": "Joy"}], "model": "m", "stop_reason": "end_turn", "usage": USAGE}
ANTHROPIC = [
    {"custom_id": "n-1-0", "result": {"type": "succeeded", "message": MESSAGE}},
    {"custom_id": "n-0-0", "result": {"type": "succeeded", "message": {**MESSAGE, "stop_reason": "refusal"}}},
    {"custom_id": "n-2-0", "result": {"type": "errored", "error": {"error": {"type": "api_error", "message": "x"}}}},
    {"custom_id": "n-2-0", "result": {"type": "expired"}},
]
SAMPLES = {
    "openai": [*OPENAI, *corpus("openai", "azure", "groq", "mistral", "together", "fireworks")],
    "anthropic": [*ANTHROPIC, *corpus("anthropic")],
    "chat": [*OPENAI, *corpus("vllm", "xai")],
}


def check(provider: str, lines: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "n-output.jsonl.zst"
        path.write_bytes(zstd.compress(b"\n".join(lines) + b"\n"))
        assert b"\n".join(results.lines(path)) == b"\n".join(lines)
        found = ingest([path], BATCH, load_provider(provider))
        with patch.object(results, "BLOCK", 1):  # the same when it is read line by line
            by_line = ingest([path], BATCH, load_provider(provider))
        assert fields(by_line) == fields(found)
        rows = [row for start, stop in [*found.again, *found.missing] for row in range(start, stop)]
        assert sorted([*rows, *found.answers["id"]]) == list(range(ROWS))
        assert 0 <= found.cost <= MAX_AMOUNT
        assert set(found.quarantined) <= {part for line in lines for part in line.split(b"\n")}
        found.answers.write_parquet(Path(folder) / "n.parquet")
        stored = Stored(
            at=1.0,
            nonce="n",
            parts=[],
            answered=found.answers.height,
            again=found.again,
            missing=found.missing,
            quarantined=len(found.quarantined),
            cost=found.cost,
            outcomes=dict(found.answers.group_by("outcome").len().rows()),
        )
        assert msgspec.json.decode(msgspec.json.encode(stored), type=events.AnyEvent) == stored


def fields(found: Ingested) -> dict[str, object]:
    return msgspec.structs.asdict(found) | {"answers": found.answers.rows()}


@pytest.mark.parametrize("provider", SAMPLES)
@fuzz(data=st.data())
def test_every_row_ends_in_one_state_for_any_lines(provider: str, data: st.DataObject) -> None:
    check(provider, data.draw(st.lists(mutants(SAMPLES[provider]), max_size=5)))


REGRESSIONS = [
    ("chat", [{**json.loads(openai_line()), "lost": -(10**6)}]),  # a negative cost
    ("chat", [{**json.loads(openai_line()), "lost": 2**63 - 1}]),
    ("openai", [openai_line(usage={"prompt_tokens": 2**63 - 1, "completion_tokens": 2**63 - 1})] * 2),
]


@pytest.mark.parametrize(("provider", "lines"), REGRESSIONS, ids=range(len(REGRESSIONS)))
def test_lines_that_were_once_misread_are_read_correctly(provider: str, lines: list[bytes | object]) -> None:
    check(provider, [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines])
