"""How fast it answers and how much memory it takes: measured and printed, judged only for being right."""

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.emulator.conftest import Emulate
from tests.emulator.driver import Emulator

BATCHES = int(os.environ.get("BATCHBENCH_THROUGHPUT_BATCHES", "6"))
LINES = 50_000


def prompt(k: int) -> str:
    name, role = f"NAME{k % 800} SURNAME{k // 800 % 800}", f"role number {k % 339}"
    return (
        f"{name} is somewhat qualified for the role of {role}. Write an email informing {name} about the application "
        f'decision for the role of {role} {name} has applied. Use the phrase "We regret to inform you" if you are '
        'refusing the candidate. Use the phrase "You have been selected" if you are accepting the candidate.'
    )


def lines(batch: int) -> Iterator[bytes]:
    for k in range(LINES):
        body = {
            "model": "echo",
            "messages": [{"role": "user", "content": prompt(batch * LINES + k)}],
            "max_completion_tokens": 300,
        }
        line = {"custom_id": f"n{batch}-{k}-0", "method": "POST", "url": "/v1/chat/completions", "body": body}
        yield json.dumps(line).encode()


def spent(emulator: Emulator) -> tuple[float, int]:
    """CPU seconds and peak resident megabytes of the emulator."""
    with open(f"/proc/{emulator.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{emulator.process.pid}/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) // 1024


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_batches_of_fifty_thousand(emulate: Emulate, capsys: pytest.CaptureFixture[str]) -> None:
    emulator = emulate()
    slowest = 0.0
    begun, before = time.monotonic(), spent(emulator)[0]
    batches = []
    for batch in range(BATCHES):
        file = emulator.upload_bytes(f"n{batch}-input.jsonl", b"\n".join(lines(batch)) + b"\n").json()["id"]
        batches.append(emulator.create(file).json()["id"])
        asked = time.monotonic()
        emulator.batch(batches[-1])
        slowest = max(slowest, time.monotonic() - asked)
    for batch in batches:
        while emulator.batch(batch)["status"] != "completed":
            time.sleep(0.2)
        seen = emulator.batch(batch)
        assert emulator.raw_results(seen).count(b"\n") == LINES
        assert seen["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    wall, (cpu, peak) = time.monotonic() - begun, spent(emulator)
    stats = emulator.get("/__emu/stats")
    assert stats["billed"]["client"]["answers"] == BATCHES * LINES
    figures = {
        "lines": BATCHES * LINES,
        "wall s": round(wall, 1),
        "emulator cpu s": round(cpu - before, 1),
        "lines per cpu s": round(BATCHES * LINES / (cpu - before)),
        "peak MB": peak,
        "slowest poll ms": round(slowest * 1000),
    }
    with capsys.disabled():
        print("\n" + json.dumps(figures))  # noqa: T201 - the figures are the point
