"""Measures and prints the emulator's speed and memory. Only wrong results fail the tests.

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
GONE = (OSError, http.client.HTTPException)  # raised in a client whose server was killed


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


def usage(emulator: Emulator) -> tuple[float, int]:
    """CPU seconds and peak resident megabytes of the emulator."""
    with open(f"/proc/{emulator.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{emulator.process.pid}/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) // 1024


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_batches_of_50_000_requests(emulate: Emulate, capsys: pytest.CaptureFixture[str]) -> None:
    emulator = emulate()
    slowest = 0.0
    began, before = time.monotonic(), usage(emulator)[0]
    batches = []
    for batch in range(BATCHES):
        file = emulator.upload_bytes(f"n{batch}-input.jsonl", b"\n".join(lines(batch)) + b"\n").json()["id"]
        batches.append(emulator.create(file).json()["id"])
        sent = time.monotonic()
        emulator.batch(batches[-1])
        slowest = max(slowest, time.monotonic() - sent)
    for batch in batches:
        while emulator.batch(batch)["status"] != "completed":
            time.sleep(0.2)
        seen = emulator.batch(batch)
        assert emulator.raw_results(seen).count(b"\n") == LINES
        assert seen["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    wall, (cpu, peak) = time.monotonic() - began, usage(emulator)
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
        print("\n" + json.dumps(figures))  # noqa: T201 - the purpose of this test


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_an_emulator_killed_many_times_bills_and_answers_every_request_once(emulate: Emulate) -> None:
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
        file = retry(partial(emulator.upload_bytes, f"n{number}-input.jsonl", content))
        batches.append(created(emulator, file.json()["id"]))
    killer.join()
    for batch in batches:
        while (seen := emulator.batch(batch))["status"] != "completed":
            assert seen["status"] in ("validating", "in_progress", "finalizing")
            time.sleep(0.2)
    batches_by_event: dict[str, list[str]] = {"accepted": [], "ended": []}
    billed: dict[str, list[str]] = {batch: [] for batch in batches}
    with emulator.ledger.open("rb") as ledger:
        for event in map(json.loads, ledger):
            batches_by_event.get(event["event"], []).append(event.get("batch", ""))
            if event["event"] == "billed":
                billed[event["batch"]] += event["ids"]
    assert batches_by_event["accepted"] == batches
    assert sorted(batches_by_event["ended"]) == sorted(batches)
    for index, batch in enumerate(batches):
        check(emulator, index, emulator.batch(batch), billed[batch])


def retry(call: Callable[[], Answer]) -> Answer:
    """Repeat a call until the server answers."""
    while True:
        try:
            return call()
        except GONE:
            time.sleep(0.1)


def created(emulator: Emulator, file: str) -> str:
    """Create a batch. If the reply is lost, look for the batch in the listing before the next attempt."""
    while True:
        try:
            return emulator.create(file).json()["id"]  # type: ignore[no-any-return]
        except GONE:
            listed = retry(lambda: emulator.call("GET", "/openai/v1/batches?limit=100")).json()["data"]
            if found := [batch["id"] for batch in listed if batch["input_file_id"] == file]:
                return found[0]  # type: ignore[no-any-return]


def check(emulator: Emulator, index: int, batch: dict[str, object], billed: list[str]) -> None:
    """Every request of the batch was billed once, and answered once with the answer to its own prompt."""
    assert len(billed) == len(set(billed)) == LINES
    answered = set()
    for line in emulator.raw_results(batch).splitlines():
        found = json.loads(line)
        number = int(found["custom_id"].split("-")[1])
        digest = hashlib.sha256(prompt(index * LINES + number).encode()).hexdigest()[:12]
        assert found["response"]["body"]["choices"][0]["message"]["content"] == f"A:{digest}"
        answered.add(found["custom_id"])
    assert answered == set(billed)
