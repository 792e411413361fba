"""Emulators for the tests: a shared one without special options, and a factory for the others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.driver import Emulator

Emulate = Callable[..., Emulator]


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator without faults, delays or small limits."""
    emulator = Emulator(tmp_path_factory.mktemp("emulator"))
    yield emulator
    assert emulator.stop() == 0


@pytest.fixture
def emulate(tmp_path: Path) -> Iterator[Emulate]:
    """Start emulators with options: `emulate("--delay", "processing=60", rules=[...])`."""
    running: list[Emulator] = []

    def start(*words: str, **options: Any) -> Emulator:
        emulator = Emulator(tmp_path / f"state{len(running)}", *words, **options)
        running.append(emulator)
        return emulator

    yield start
    for emulator in running:
        if emulator.process.poll() is None:
            emulator.stop()
