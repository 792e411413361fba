"""Make a home with the code of an older commit: `PYTHONPATH=CHECKOUT python tests/homes/make.py COMMIT`.

Writes two files beside this one. COMMIT.tar.xz holds the home, with the emulator's state, and a file of results that
has not been imported. COMMIT.json holds what the old code printed about each run. Imports nothing of batchbench, so
that only the checkout decides which code runs.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]
SAMPLE = ("--set", "data=sample")
FOREVER = ("--limit", "results_days=36500")  # the results of Anthropic's dialect stay, however old the home is
TOKEN = "emu-home"
FINISHED = {  # probe, model -> items
    ("gest", "sim:random"): "30",
    ("inventories", "sim:anthropic/random"): "20",
}
MISSING = ("stereoset", "sim:stereotyping")
STOPPED = ("isear", "sim:anthropic/random")  # by its budget
UNSENT = ("wino_bias", "sim:random")  # killed before it sent a create
UNHEARD = ("gest", "sim:anthropic/random")  # killed before it noted the reply to a create
EXPORTED = ("crows_pairs", "openai:random")
LOCAL = ("endpoint.json", "emulator.log", "lock")  # where the emulator ran, and its lock


def main() -> None:
    here, commit = Path(__file__).resolve().parent, sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "home"
        recorded = make(made)
        (here / f"{commit}.json").write_text(json.dumps(recorded, indent=1) + "\n")
        for path in [*made.rglob("*")]:
            if path.is_file() and path.name in LOCAL:
                path.unlink()
        with tarfile.open(here / f"{commit}.tar.xz", "w:xz") as archive:
            archive.add(made, ".", filter=_anonymous)


def make(home: Path) -> Json:
    """Ask in every way in which a run can stop; what the old code says about it."""
    home.mkdir()
    with_faults = home.parent / "faults.jsonl"
    with_faults.write_text('{"do": "line-missing", "nth": [2, 5]}\n')
    with Emulator(home, "--faults", str(with_faults)):
        program(home, "run", *asked(MISSING), "--batch-size", "6", code=6)
    with Emulator(home):
        for run, items in FINISHED.items():
            program(home, "run", *asked(run), "--sample-k", items, "--batch-size", "50")
        program(home, "run", *asked(STOPPED), "--batch-size", "12", "--budget", "0.0004", code=3)
        program(home, "run", *asked(UNSENT), crash="once-before-send:1", code=-9)
        killed = ("run", *asked(UNHEARD), "--sample-k", "10", "--batch-size", "20")
        program(home, *killed, crash="once-after-reply:2", code=-9)
        out = home / "export"
        program(home, "export", *asked(EXPORTED), "--price", "0.075,0.30", "-o", str(out), "--batch-size", "10")
        for file in [*out.iterdir()]:
            file.with_suffix(".results").write_text("".join(map(answered, file.read_text().splitlines())))
        wait_for_the_batches(home)
        metrics = {}
        for run in (*FINISHED, MISSING):
            metrics[" ".join(run)] = json.loads(program(home, "analyze", *asked(run), "--json"))["metrics"]
    told = {command: program(home, command, "--json").replace(f"{home}/", "") for command in ("status", "audit")}
    return {**{command: json.loads(text) for command, text in told.items()}, "metrics": metrics}


def asked(run: tuple[str, str]) -> tuple[str, ...]:
    probe, model = run
    return (probe, *SAMPLE, "--model", model)


def program(home: Path, *words: str, crash: str = "", code: int = 0) -> str:
    """Run a command of the checkout; its output."""
    environment = {**os.environ, "BATCHBENCH_CRASH": crash}
    line = [sys.executable, "-m", "batchbench", *words, "--home", str(home)]
    ran = subprocess.run(line, env=environment, cwd=home, capture_output=True, text=True, check=False)
    if ran.returncode != code:
        sys.exit(f"{line} ended with {ran.returncode}, not {code}\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


class Emulator:
    """The emulator of a home, which `sim:` models find there."""

    def __init__(self, home: Path, *words: str) -> None:
        self.line = [sys.executable, "-m", "batchbench", "emulate", "--json", "--home", str(home), *FOREVER, *words]
        self.home = home

    def __enter__(self) -> Json:
        """Its addresses and its key."""
        environment = {**os.environ, "BATCHBENCH_EMULATOR_TOKEN": TOKEN}
        self.process = subprocess.Popen(self.line, cwd=self.home, env=environment, stdout=subprocess.PIPE)
        assert self.process.stdout
        ready: Json = json.loads(self.process.stdout.readline())
        return ready

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()


def wait_for_the_batches(home: Path) -> None:
    """Until the emulator has answered all that it has accepted."""
    while True:
        lines = map(json.loads, (home / "cache/emulator/ledger.jsonl").read_text().splitlines())
        states = {line["batch"]: line["event"] for line in lines if line["event"] in ("accepted", "ended")}
        if "accepted" not in states.values():
            return
        time.sleep(0.1)


def answered(line: str) -> str:
    """A result line of OpenAI's for an exported request."""
    request = json.loads(line)
    message = {"role": "assistant", "content": "A", "refusal": None}
    body = {
        "id": f"chatcmpl-{request['custom_id']}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": request["body"]["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41},
    }
    response = {"status_code": 200, "request_id": "req", "body": body}
    result = {"id": "batch_req", "custom_id": request["custom_id"], "response": response, "error": None}
    return json.dumps(result) + "\n"


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
