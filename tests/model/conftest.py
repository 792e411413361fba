"""A small probe, compiled once."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one manifest of 24 items in 72 prompts."""
    home = tmp_path_factory.mktemp("small")
    line = [sys.executable, "-m", "batchbench", "compile", "isear", "--set", "data=sample", "--home", str(home)]
    subprocess.run(line, check=True, capture_output=True)
    return home / "manifests"
