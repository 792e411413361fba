"""Runs the emulator as a process and calls it without batchbench's own client."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import anthropic
import openai

Json = dict[str, Any]
TOKEN = "emu-test-token"


class Emulator:
    """One emulator process and its state folder. Tests can kill it and start it again."""

    def __init__(
        self, state: Path, *words: str, rules: list[Json] | None = None, stderr: IO[str] | None = None
    ) -> None:
        self.state = state
        self.stderr = stderr
        self.words = list(words)
        if rules is not None:
            state.mkdir(parents=True, exist_ok=True)
            file = state / "rules.jsonl"
            file.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
            self.words += ["--faults", str(file)]
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "batchbench", "emulate", "--json", "--state", str(self.state), *self.words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.stderr, env={**os.environ, "BATCHBENCH_EMULATOR_TOKEN": TOKEN}
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"no ready line from {command}"
        ready = json.loads(line)
        self.openai_url, self.anthropic_url, self.ledger = ready["openai"], ready["anthropic"], Path(ready["ledger"])
        self.token = ready["token"]
        self.port = urlsplit(self.openai_url).port

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(timeout=20)
        assert self.process.stdout
        self.process.stdout.close()
        return code

    # Clients.

    @contextlib.contextmanager
    def openai(self, **options: Any) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=self.openai_url, api_key=self.token, max_retries=0, **options) as client:
            yield client

    @contextlib.contextmanager
    def anthropic(self, **options: Any) -> Iterator[anthropic.Anthropic]:
        with anthropic.Anthropic(base_url=self.anthropic_url, api_key=self.token, max_retries=0, **options) as client:
            yield client

    def call(
        self,
        method: str,
        path: str,
        body: Json | bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 20.0,
    ) -> "Answer":
        """One request on a new connection; `path` starts at the root of the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        all_headers = {"authorization": f"Bearer {self.token}", "anthropic-version": "2026-10-21", **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            all_headers.setdefault("content-type", "application/json")
        try:
            connection.request(method, path, data, all_headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers.items()), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json()

    # Shortcuts for whole submissions.

    def upload(self, nonce: str, lines: list[Json], **options: Any) -> "Answer":
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return self.upload_bytes(f"{nonce}-input.jsonl", content, **options)

    def upload_bytes(self, name: str, content: bytes, **options: Any) -> "Answer":
        boundary = "edge-of-a-part"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        head += f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
        content_type = {"content-type": f"multipart/form-data; boundary={boundary}"}
        return self.call("POST", "/openai/v1/files", body, content_type, **options)

    def create(self, file: str, **options: Any) -> "Answer":
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return self.call("POST", "/openai/v1/batches", body, **options)

    def submit(self, nonce: str, n: int = 10, **more: Any) -> str:
        """An OpenAI batch of n requests; returns its id."""
        file = self.upload(nonce, chat_lines(nonce, n, **more)).json()["id"]
        answer = self.create(file)
        assert answer.status == 200, answer
        return str(answer.json()["id"])

    def submit_messages(self, nonce: str, n: int = 10, **more: Any) -> str:
        """A message batch of n requests; returns its id."""
        answer = self.call("POST", MESSAGE_BATCHES, {"requests": message_requests(nonce, n, **more)})
        assert answer.status == 200, answer
        return str(answer.json()["id"])

    def batch(self, batch: str) -> Json:
        path = MESSAGE_BATCHES if batch.startswith("msg") else "/openai/v1/batches"
        found: Json = self.get(f"{path}/{batch}")
        return found

    def wait(self, batch: str, *statuses: str) -> Json:
        """Poll until the batch has one of these statuses; by default, until it has ended."""
        expected = statuses or ("completed", "failed", "expired", "cancelled", "ended")
        for _ in range(2000):
            found = self.batch(batch)
            if found.get("status", found.get("processing_status")) in expected:
                return found
            time.sleep(0.005)
        raise AssertionError(found)

    def results(self, batch: Json) -> list[Json]:
        """All result lines of a finished batch, answers and errors."""
        return [json.loads(line) for line in self.raw_results(batch).split(b"\n") if line]

    def raw_results(self, batch: Json) -> bytes:
        if "results_url" in batch:
            return self.call("GET", urlsplit(batch["results_url"]).path).body
        files = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
        return b"".join(self.call("GET", f"/openai/v1/files/{file}/content").body for file in files)

    def advance(self, seconds: float) -> None:
        assert self.call("POST", "/__emu/clock", {"advance": seconds}).status == 200

    def events(self, kind: str | None = None) -> list[Json]:
        """The ledger, read from its file."""
        lines = [json.loads(line) for line in self.ledger.read_bytes().split(b"\n")[:-1]]  # the last can be incomplete
        return [line for line in lines if kind in (None, line["event"])]

    def billed(self, batch: str) -> list[str]:
        return [custom_id for line in self.events("billed") if line["batch"] == batch for custom_id in line["ids"]]


class Answer:
    """A complete HTTP reply."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.headers} {self.body[:300]!r}>"


MESSAGE_BATCHES = "/anthropic/v1/messages/batches"


def chat_body(prompt: str, **more: Any) -> Json:
    return {"model": "echo", "messages": [{"role": "user", "content": prompt}], **more}


def chat_lines(nonce: str, n: int, **more: Any) -> list[Json]:
    head = {"method": "POST", "url": "/v1/chat/completions"}
    return [{"custom_id": f"{nonce}-{k}-0", **head, "body": chat_body(f"Question {k}", **more)} for k in range(n)]


def message_requests(nonce: str, n: int, **more: Any) -> list[Any]:
    return [
        {"custom_id": f"{nonce}-{k}-0", "params": {**chat_body(f"Question {k}"), "max_tokens": 20, **more}}
        for k in range(n)
    ]
