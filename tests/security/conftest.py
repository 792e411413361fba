"""Scenes of the dispatcher, with a key that is easy to find again."""

import secrets
from pathlib import Path

import pytest

from tests.dispatch.conftest import manifests, stage
from tests.dispatch.scene import VARIABLES, Scene

__all__ = ["manifests", "stage"]


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key that the emulators of this test take, and that is found wherever it leaks."""
    key = f"sk-CANARY-{secrets.token_hex(12)}"
    monkeypatch.setattr("tests.emulator.driver.TOKEN", key)
    return key


def armed(scene: Scene, key: str, folder: Path) -> None:
    """Give the scene's client the key, and places of its own for everything it may write."""
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        (folder / name).mkdir(parents=True)
        scene.environment[name] = str(folder / name)
    scene.environment[VARIABLES[scene.dialect]] = key


def found_in(key: str, *folders: Path) -> list[Path]:
    """The files that hold a key."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if key.encode() in path.read_bytes()]
