"""The input of batches that somebody else in the same workspace submits."""

import os
from hashlib import sha256
from pathlib import Path

import msgspec

from batchbench.emulator.jobs.runner import write_all


def lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(1 for line in file if line.strip())


def write_openai(path: Path, nonce: str, n: int) -> tuple[int, str]:
    """`n` chat requests under a nonce of their own; returns bytes and digest."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "Somebody else's question."}]}
    rows = ({"method": "POST", "url": "/v1/chat/completions", "body": body} for _ in range(n))
    return _write(path, [{"custom_id": f"{nonce}-{k}-0", **row} for k, row in enumerate(rows)])


def write_anthropic(path: Path, nonce: str, n: int) -> tuple[int, str]:
    """`n` message requests under a nonce of their own; returns bytes and digest."""
    params = {
        "model": "echo",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Somebody else's question."}],
    }
    return _write(path, [{"custom_id": f"{nonce}-{k}-0", "params": params} for k in range(n)])


def _write(path: Path, rows: list[dict[str, object]]) -> tuple[int, str]:
    data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    # What is there already was left by an emulator that was killed before its ledger told of it.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return len(data), sha256(data).hexdigest()
