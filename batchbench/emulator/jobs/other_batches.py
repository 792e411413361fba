"""The input of batches that another user in the same workspace submits."""

import os
from hashlib import sha256
from pathlib import Path

import msgspec

from batchbench.emulator.jobs.files import write_all

_MESSAGES = [{"role": "user", "content": "Somebody else's question."}]


def count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(1 for line in file if line.strip())


def write_openai(path: Path, nonce: str, n: int) -> tuple[int, str]:
    """Write `n` chat requests with their own nonce; returns size and digest."""
    call = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "echo", "messages": _MESSAGES}}
    return _write(path, [{"custom_id": f"{nonce}-{k}-0", **call} for k in range(n)])


def write_anthropic(path: Path, nonce: str, n: int) -> tuple[int, str]:
    """Write `n` message requests with their own nonce; returns size and digest."""
    params = {"model": "echo", "max_tokens": 8, "messages": _MESSAGES}
    return _write(path, [{"custom_id": f"{nonce}-{k}-0", "params": params} for k in range(n)])


def _write(path: Path, rows: list[dict[str, object]]) -> tuple[int, str]:
    data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    # The file exists if the emulator was killed before its ledger recorded this batch.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return len(data), sha256(data).hexdigest()
