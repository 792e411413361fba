"""Fixtures of the dispatcher tests, with a key that is easy to recognise."""

import secrets
from pathlib import Path

import pytest

from tests.dispatch.conftest import manifests, stage
from tests.dispatch.scene import VARIABLES, Scene

__all__ = ["manifests", "stage"]


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key that this test's emulators accept and that is recognised wherever it leaks."""
    key = f"sk-CANARY-{secrets.token_hex(12)}"
    monkeypatch.setattr("tests.emulator.driver.TOKEN", key)
    return key


def armed(scene: Scene, key: str, folder: Path) -> None:
    """Give the scene's client the key, and its own folders for everything it may write."""
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        (folder / name).mkdir(parents=True)
        scene.environment[name] = str(folder / name)
    scene.environment[VARIABLES[scene.dialect]] = key


def found_in(key: str, *folders: Path) -> list[Path]:
    """The files that hold a key."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if key.encode() in path.read_bytes()]
