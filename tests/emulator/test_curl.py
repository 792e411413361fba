"""The `curl` commands of the providers' documentation work with the emulator."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.driver import Emulator, chat_lines, message_requests

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str) -> str:
    return subprocess.run(
        ["curl", "-sS", "--fail-with-body", *arguments], capture_output=True, text=True, check=True
    ).stdout


def test_an_openai_batch_with_curl(emulator: Emulator, tmp_path: Path) -> None:
    source = tmp_path / "batchinput.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in chat_lines("request", 2)))
    key = ["-H", f"Authorization: Bearer {emulator.token}"]
    content_type = ["-H", "Content-Type: application/json"]
    base = emulator.openai_url
    file = json.loads(curl(f"{base}/files", *key, "-F", "purpose=batch", "-F", f"file=@{source}"))
    body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = json.loads(curl(f"{base}/batches", *key, *content_type, "-d", json.dumps(body)))
    emulator.wait(batch["id"])
    batch = json.loads(curl(f"{base}/batches/{batch['id']}", *key, *content_type))
    target = tmp_path / "batch_output.jsonl"
    curl(f"{base}/files/{batch['output_file_id']}/content", *key, "-o", str(target))
    assert len(target.read_bytes().split(b"\n")) == 3
    listed: dict[str, Any] = json.loads(curl(f"{base}/batches?limit=2", *key, *content_type))
    assert listed["object"] == "list"
    refused = subprocess.run(
        ["curl", "-sS", "-X", "POST", f"{base}/batches/{batch['id']}/cancel", *key, *content_type],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Cannot cancel" in json.loads(refused.stdout)["error"]["message"]


def test_an_anthropic_batch_with_curl(emulator: Emulator, tmp_path: Path) -> None:
    head = ["--header", f"x-api-key: {emulator.token}", "--header", "anthropic-version: 2023-06-01"]
    body = tmp_path / "requests.json"
    body.write_text(json.dumps({"requests": message_requests("my", 2)}))
    base = f"{emulator.anthropic_url}/v1/messages/batches"
    batch = json.loads(curl(base, *head, "--header", "content-type: application/json", "--data", f"@{body}"))
    ended = emulator.wait(batch["id"])
    lines = curl(ended["results_url"], *head).split("\n")
    assert {json.loads(line)["custom_id"] for line in lines if line} == {"my-0-0", "my-1-0"}


def test_the_chat_completion_of_the_help_text(emulator: Emulator) -> None:
    body = '{"model": "echo", "messages": [{"role": "user", "content": "Who are you?"}]}'
    reply = curl(
        f"{emulator.openai_url}/chat/completions",
        "-H",
        f"Authorization: Bearer {emulator.token}",
        "-H",
        "Content-Type: application/json",
        "-d",
        body,
    )
    assert json.loads(reply)["choices"][0]["message"]["content"].startswith("A:")
