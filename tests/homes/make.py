"""Make homes with the code of older commits: `python tests/homes/make.py [--full] COMMIT...`.

Each commit is checked out into a temporary worktree, whose code makes the home. Two files are written beside this one.
COMMIT.tar.xz holds the home, with the emulator's state and, if the commit can export, a file of results that has not
been imported. COMMIT.json holds what the old code printed about each run. There is a small home for every commit that
changed the events of the journal, and a large one (`--full`) for a few. Imports nothing of batchbench, so that only the
worktree decides which code runs.
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
from typing import Any, NamedTuple

Json = dict[str, Any]
Asked = tuple[str, str]  # probe, model
SAMPLE = ("--set", "data=sample")
FOREVER = ("--limit", "results_days=36500")  # the results of Anthropic's dialect stay, however old the home is
TOKEN = "emu-home"
LEFT_OUT = ("endpoint.json", "emulator.log", "lock")  # where the emulator ran, and its lock
ANALYSIS = ("metrics.json", "metrics.parquet", "cells.parquet")  # can be computed again; left out of small homes


class Recipe(NamedTuple):
    """The runs of a home: every way in which a run can stop."""

    finished: dict[Asked, str]  # with the number of items
    missing: Asked  # without the answers to some rows
    stopped: Asked  # by its budget
    budget: str
    unsent: Asked | None  # killed before it sent a create
    unheard: Asked  # killed before it noted the reply to a create
    unheard_items: str
    exported: Asked
    more: tuple[str, ...]  # options of the exported run and of the one with missing answers
    stopped_more: tuple[str, ...]  # options of the stopped run


FULL = Recipe(
    finished={("gest", "sim:random"): "30", ("inventories", "sim:anthropic/random"): "20"},
    missing=("stereoset", "sim:stereotyping"),
    stopped=("isear", "sim:anthropic/random"),
    budget="0.0004",
    unsent=("wino_bias", "sim:random"),
    unheard=("gest", "sim:anthropic/random"),
    unheard_items="10",
    exported=("crows_pairs", "openai:random"),
    more=(),
    stopped_more=(),
)
SMALL = Recipe(  # one probe with few items
    finished={("isear", "sim:random"): "4"},
    missing=("isear", "sim:stereotyping"),
    stopped=("isear", "sim:anthropic/random"),
    budget="0.00011",
    unsent=None,
    unheard=("isear", "sim:anthropic/unbiased"),
    unheard_items="8",
    exported=("isear", "openai:random"),
    more=("--sample-k", "4"),
    stopped_more=("--sample-k", "4"),
)
RECIPES = {"full": FULL, "small": SMALL}


def main() -> None:
    here, (recipe, *commits) = Path(__file__).resolve(), sys.argv[1:]
    if recipe.startswith("--inside="):
        inside(here.parent, commits[0], recipe.removeprefix("--inside="))
        return
    name = "full" if recipe == "--full" else "small"
    for commit in commits if recipe == "--full" else [recipe, *commits]:
        with tempfile.TemporaryDirectory() as folder:
            worktree = Path(folder) / commit
            git = ["git", "-C", str(here.parents[2]), "worktree"]
            subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), commit], check=True)
            try:
                line = [sys.executable, str(here), f"--inside={name}", commit]
                subprocess.run(line, env={**os.environ, "PYTHONPATH": str(worktree)}, cwd=folder, check=True)
            finally:
                subprocess.run([*git, "remove", "--force", str(worktree)], check=True)


def inside(here: Path, commit: str, recipe: str) -> None:
    """Make the home of a commit, with the code that PYTHONPATH names."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "home"
        recorded = {"recipe": recipe, **make(made, RECIPES[recipe])}
        (here / f"{commit}.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")
        for path in [*made.rglob("*")]:
            if path.is_file() and path.name in (*LEFT_OUT, *(ANALYSIS if recipe == "small" else ())):
                path.unlink()
        with tarfile.open(here / f"{commit}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(made, ".", filter=_anonymous)


def make(home: Path, recipe: Recipe) -> Json:
    """Ask in every way in which a run can stop; what the old code says about it."""
    home.mkdir()
    with_faults = home.parent / "faults.jsonl"
    with_faults.write_text('{"do": "line-missing", "nth": [2, 5]}\n')
    with Emulator(home, "--faults", str(with_faults)):
        program(home, "run", *asked(recipe.missing), *recipe.more, "--batch-size", "6", code=6)
    with Emulator(home):
        for run, items in recipe.finished.items():
            program(home, "run", *asked(run), "--sample-k", items, "--batch-size", "50")
        program(
            home,
            "run",
            *asked(recipe.stopped),
            *recipe.stopped_more,
            "--batch-size",
            "12",
            "--budget",
            recipe.budget,
            code=3,
        )
        if recipe.unsent:
            program(home, "run", *asked(recipe.unsent), crash="once-before-send:1", code=-9)
        killed = ("run", *asked(recipe.unheard), "--sample-k", recipe.unheard_items, "--batch-size", "20")
        program(home, *killed, crash="once-after-reply:2", code=-9)
        if "export" in program(home, "--help"):
            out = home / "export"
            words = ("--price", "0.075,0.30", "-o", str(out), "--batch-size", "10", *recipe.more)
            program(home, "export", *asked(recipe.exported), *words)
            for file in [*out.iterdir()]:
                file.with_suffix(".results").write_text("".join(map(answered, file.read_text().splitlines())))
        wait_for_the_batches(home)
        metrics = {}
        for run in (*recipe.finished, recipe.missing):
            found = json.loads(program(home, "analyze", *asked(run), "--json"))["metrics"]
            metrics[" ".join(run)] = {name: {"estimate": one["estimate"]} for name, one in found.items()}
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
