"""How fast it answers and how much memory it takes: measured and printed, judged only for being right.

BATCHBENCH_THROUGHPUT_BATCHES=109 makes it the full HiringAn, BATCHBENCH_THROUGHPUT_MODEL=unbiased answers as a persona.
"""

import hashlib
import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.emulator.conftest import Emulate
from tests.emulator.driver import Answer, Emulator

BATCHES = int(os.environ.get("BATCHBENCH_THROUGHPUT_BATCHES", "6"))
MODEL = os.environ.get("BATCHBENCH_THROUGHPUT_MODEL", "echo")
KILLS = min(2 * BATCHES, 40)
LINES = 50_000
GONE = (OSError, http.client.HTTPException)  # what a client sees of a server that was killed


def prompt(k: int) -> str:
    name, role = f"NAME{k % 800} SURNAME{k // 800 % 800}", f"role number {k % 339}"
    return (
        f"{name} is somewhat qualified for the role of {role}. Write an email informing {name} about the application "
        f'decision for the role of {role} {name} has applied. Use the phrase "We regret to inform you" if you are '
        'refusing the candidate. Use the phrase "You have been selected" if you are accepting the candidate.'
    )


def lines(batch: int, model: str = MODEL) -> Iterator[bytes]:
    for k in range(LINES):
        body = {
            "model": model,
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


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_killed_again_and_again_it_bills_and_answers_everything_once(emulate: Emulate) -> None:
    with socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        port = spare.getsockname()[1]
    emulator = emulate("--port", str(port))

    def kill_at_random() -> None:
        chance = random.Random(1)
        for _ in range(KILLS):
            time.sleep(0.5 + 3 * chance.random())
            emulator.kill()
            emulator.start()

    killer = threading.Thread(target=kill_at_random)
    killer.start()
    batches = []
    for number in range(BATCHES):
        content = b"\n".join(lines(number, "echo")) + b"\n"
        file = surely(partial(emulator.upload_bytes, f"n{number}-input.jsonl", content))
        batches.append(created(emulator, file.json()["id"]))
    killer.join()
    for batch in batches:
        while (seen := emulator.batch(batch))["status"] != "completed":
            assert seen["status"] in ("validating", "in_progress", "finalizing")
            time.sleep(0.2)
    told: dict[str, list[str]] = {"accepted": [], "ended": []}
    billed: dict[str, list[str]] = {batch: [] for batch in batches}
    with emulator.ledger.open("rb") as ledger:
        for event in map(json.loads, ledger):
            told.get(event["event"], []).append(event.get("batch", ""))
            if event["event"] == "billed":
                billed[event["batch"]] += event["ids"]
    assert told["accepted"] == batches
    assert sorted(told["ended"]) == sorted(batches)
    for place, batch in enumerate(batches):
        check(emulator, place, emulator.batch(batch), billed[batch])


def surely(call: Callable[[], Answer]) -> Answer:
    """An answer, however often the server is killed over it."""
    while True:
        try:
            return call()
        except GONE:
            time.sleep(0.1)


def created(emulator: Emulator, file: str) -> str:
    """A batch of a file; if no answer comes, the listing tells whether there is one."""
    while True:
        try:
            return emulator.create(file).json()["id"]  # type: ignore[no-any-return]
        except GONE:
            listed = surely(lambda: emulator.call("GET", "/openai/v1/batches?limit=100")).json()["data"]
            if found := [batch["id"] for batch in listed if batch["input_file_id"] == file]:
                return found[0]  # type: ignore[no-any-return]


def check(emulator: Emulator, place: int, batch: dict[str, object], billed: list[str]) -> None:
    """Every request of a batch was billed once and answered once, with the answer to its own prompt."""
    assert len(billed) == len(set(billed)) == LINES
    answered = set()
    for line in emulator.raw_results(batch).splitlines():
        found = json.loads(line)
        number = int(found["custom_id"].split("-")[1])
        digest = hashlib.sha256(prompt(place * LINES + number).encode()).hexdigest()[:12]
        assert found["response"]["body"]["choices"][0]["message"]["content"] == f"A:{digest}"
        answered.add(found["custom_id"])
    assert answered == set(billed)
