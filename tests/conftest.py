"""What all tests share: a guard against calls to other machines, the quick suite, a home with data, the program."""

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

# A slow machine is no reason to fail. In CI the examples are always the same, so a failure there can be repeated.
settings.register_profile("batchbench", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("batchbench")

TESTS = Path(__file__).parent
# The quick suite (`-m quick`): pure tests of every package, and one whole run. It needs no network and no GEST.
QUICK = (
    "auditor/test_mutants.py",
    "dispatch/test_allowances.py",
    "emulator/test_tokens.py",
    "model/test_stories.py",
    "report/test_drawing.py",
    "security/test_code.py",
    "sweep/test_file.py",
    "test_careful_reading.py",
    "test_cells.py",
    "test_client.py",
    "test_differences.py",
    "test_final_answer.py",
    "test_ingest.py",
    "test_journal.py",
    "test_labels.py",
    "test_layers.py",
    "test_money.py",
    "test_providers.py",
    "test_rate_limit.py",
    "test_read.py",
    "test_structure.py",
    "test_targets.py",
    "test_templates.py",
    "test_thinking.py",
    "test_whole_run.py",
)
LONG = ("full", "real", "storm", "browser", "mlm")

GEST = os.environ.get("BATCHBENCH_TEST_GEST")  # a copy of gest.csv; tests do not download it from its publisher
needs_gest = pytest.mark.skipif(not GEST, reason="set BATCHBENCH_TEST_GEST to a copy of gest.csv")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="print the result of every row of tests/faults/README.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the quick suite."""
    files = {TESTS / name for name in QUICK}
    for item in items:
        if item.path in files and not any(map(item.get_closest_marker, LONG)):
            item.add_marker("quick")


def _refuse_other_machines(event: str, args: tuple[object, ...]) -> None:
    """Fail when a test calls another machine. Data sets are downloaded by the program in its own process."""
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = str(args[1][0])
    elif event == "socket.getaddrinfo" and args[0] is not None:
        host = args[0].decode() if isinstance(args[0], bytes) else str(args[0])
    else:
        return
    if host not in _own_addresses():
        raise RuntimeError(f"a test called {host}: tests call only this machine")


@functools.cache
def _own_addresses() -> frozenset[str]:
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return frozenset({"127.0.0.1", "::1", "localhost", "", "0.0.0.0", *addresses})  # noqa: S104 - nothing is bound


sys.addaudithook(_refuse_other_machines)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with every data set from the package index, and with GEST if BATCHBENCH_TEST_GEST names a copy."""
    home = tmp_path_factory.mktemp("home")
    store = Store(home)
    for name, dataset in CATALOGUE.items():
        if name == "gest":
            if GEST:
                add_file(store, dataset, Path(GEST), trust=False)
        elif missing_files(store, dataset):
            pull_dataset(store, dataset, lambda _: None)
    yield home
    if running := emulator.find(home / "cache" / "emulator"):
        os.kill(running.pid, signal.SIGTERM)  # otherwise it would run on for ten minutes


@pytest.fixture(scope="session")
def batchbench() -> Run:
    """Run the real program in its own process."""

    def run(*words: str | Path, **options: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "batchbench", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run
