"""Shared by tests of sweeps: a home with a sweep file, the program, and readers of its folders and the ledger."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from batchbench import emulator
from tests.dispatch.scene import Ran, ended

Json = dict[str, Any]
SMALL = """\
sample_k = 60
probes = [
  { name = "gest", data = "sample", num_reorderings = 2 },
  { name = "hiring_an", data = "sample" },
  { name = "isear", data = "sample" },
]
models = [
  { name = "sim:random", batch_size = 25 },
  { name = "sim:stereotyping", batch_size = 40 },
]
"""


class Home:
    """A home with a sweep file. Simulated models start an emulator, which `close` stops."""

    def __init__(self, folder: Path, text: str = SMALL) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "sweep.toml"
        self.file.write_text(text)

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        line = [sys.executable, "-m", "batchbench", "sweep", str(self.file), "--json", "--home", str(self.folder)]
        variables = {**os.environ, **environment}
        return subprocess.Popen(
            [*line, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
        )

    def sweep(self, *words: str, timeout: float = 120, **environment: str) -> Ran:
        return ended(self.start(*words, **environment), timeout)

    def command(self, *words: str) -> Any:
        line = [sys.executable, "-m", "batchbench", *words, "--json", "--home", str(self.folder)]
        return json.loads(subprocess.run(line, capture_output=True, text=True, check=False).stdout)

    def close(self) -> None:
        if running := emulator.find(self.folder / "cache/emulator"):
            os.kill(running.pid, signal.SIGTERM)

    # -- files ------------------------------------------------------------------------------------

    def events(self) -> int:
        """Lines of all journals together."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("cache/*/*/journal"))

    def spent(self) -> int:
        """Micro-dollars that all runs have spent, according to their journals."""
        return sum(round(run["spent_usd"] * 1e6) for run in self.command("status"))

    def owed(self) -> int:
        """Micro-dollars spent and reserved; a create without a reply keeps its reservation for a day."""
        return sum(round((run["spent_usd"] + run["reserved_usd"]) * 1e6) for run in self.command("status"))

    def results(self) -> dict[str, bytes]:
        """The content of every result file, by its path."""
        names = ("metrics.json", "metrics.parquet", "cells.parquet")
        found = [path for name in names for path in self.folder.glob(f"cache/*/*/{name}")]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}

    def ledger(self, *kinds: str) -> list[Json]:
        path = self.folder / "cache/emulator/ledger.jsonl"
        return [entry for entry in map(json.loads, path.read_text().splitlines()) if entry["event"] in kinds]

    def cost(self) -> int:
        """Micro-dollars that the provider has charged."""
        return sum(entry["cost"] for entry in self.ledger("billed"))

    def billed(self) -> int:
        return sum(entry["n"] for entry in self.ledger("billed"))
