"""Runs of the real program against a server of our own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.dispatch.conftest import manifests
from tests.dispatch.scene import PROBE, Ran

__all__ = ["manifests"]
KEYS = ("CHAT_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
Program = Callable[..., Ran]


@pytest.fixture
def home(tmp_path: Path, manifests: Path) -> Path:
    """A home with a compiled probe."""
    shutil.copytree(manifests, tmp_path / "home/manifests")
    return tmp_path / "home"


@pytest.fixture
def ask(home: Path) -> Program:
    """Run the program: `ask("chat:m@URL", "--timeout", 1, k=12)`."""

    def run(model: str, *words: str | int, k: int = 12, **environment: str) -> Ran:
        line = [sys.executable, "-m", "batchbench", "run", *PROBE, "--model", model, "--sample-k", str(k), "--json"]
        line += ["--home", str(home), "--settle", "1", *map(str, words)]
        known = {name: value for name, value in os.environ.items() if name not in KEYS}
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=known | environment, timeout=120)
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def answers(home: Path) -> pl.DataFrame:
    """The answers of the only run, sorted by row."""
    return pl.concat(pl.read_parquet(file) for file in home.glob("cache/*/*/answers/*.parquet")).sort("id")


def notes(home: Path) -> list[str]:
    """The notes about calls of the only run."""
    return [note for file in home.glob("cache/*/*/spool/*.calls") for note in file.read_text().split()]


def results(home: Path) -> list[dict[str, Any]]:
    """The result lines of the only run."""
    files = home.glob("cache/*/*/spool/*.results.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
