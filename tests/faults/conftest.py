"""The table of faults: `python -m pytest tests/faults --table` prints every row with its result and the seed."""

from collections.abc import Iterator

import pytest

from tests.dispatch.conftest import manifests, stage
from tests.faults.rows import rows

__all__ = ["manifests", "stage"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Copy marks into the report: only reports reach the main process of xdist."""
    for mark in item.iter_markers("row"):
        item.user_properties.extend(("row", number) for number in mark.args)
    callspec = getattr(item, "callspec", None)
    if callspec and "seed" in callspec.params:
        item.user_properties.append(("seed", callspec.params["seed"]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("table"):
        return
    results: dict[int, list[tuple[str, str, str]]] = {}
    for number, found in _outcomes(terminalreporter):
        results.setdefault(number, []).append(found)
    terminalreporter.section("faults")
    for number, fault in sorted(rows().items()):
        for outcome, test, seed in results.get(number, [("not run", "", "")]):
            terminalreporter.write_line(f"{number:4}  {outcome:8}  {seed:>6}  {fault}  {test}")


def _outcomes(terminalreporter: pytest.TerminalReporter) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if outcome == "passed" and report.when != "call":
                continue
            seeds = [str(value) for name, value in report.user_properties if name == "seed"]
            for name, value in report.user_properties:
                if name == "row":
                    yield value, (outcome, report.nodeid.rpartition("/")[2], seeds[0] if seeds else "-")
