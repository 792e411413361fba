"""Scenes for the tests: each has an emulator of its own, and a home with a compiled manifest."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dispatch.scene import PROBE, Scene

Stage = Callable[..., Scene]


@pytest.fixture(scope="session")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifests folder of a probe, compiled once."""
    home = tmp_path_factory.mktemp("compiled")
    line = [sys.executable, "-m", "batchbench", "compile", *PROBE, "--home", str(home)]
    subprocess.run(line, check=True, capture_output=True)
    return home / "manifests"


@pytest.fixture
def stage(tmp_path: Path, manifests: Path) -> Iterator[Stage]:
    """Make scenes: `stage("openai", "--delay", "processing=60", rules=[...])`."""
    scenes: list[Scene] = []

    def set_up(dialect: str, *words: str, **options: Any) -> Scene:
        scene = Scene(tmp_path / f"scene{len(scenes)}", manifests, dialect, *words, **options)
        scenes.append(scene)
        return scene

    yield set_up
    for scene in scenes:
        scene.close()
