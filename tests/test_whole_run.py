"""One probe from nothing to a report, through the command line and the emulator."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchbench import emulator
from tests.conftest import Run

SAMPLE = ("gest", "--set", "data=sample", "--set", "num_reorderings=1")
MODELS = ("sim:stereotyping", "sim:anthropic/stereotyping")  # one of each dialect


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if left := emulator.find(tmp_path / "cache" / "emulator"):
        os.kill(left.pid, signal.SIGTERM)


def test_a_probe_goes_from_nothing_to_a_report(folder: Path, batchbench: Run) -> None:
    models = [word for model in MODELS for word in ("--model", model)]
    ran = batchbench("run", *SAMPLE, *models, "--sample-k", "30", "--home", folder, "--json")
    assert ran.returncode == 0, ran
    assert [(report["asked"], report["answered"]) for report in json.loads(ran.stdout)] == [(30, 30), (30, 30)]
    analyzed = batchbench("analyze", *SAMPLE, *models, "--home", folder, "--json")
    assert analyzed.returncode == 0, analyzed
    for analysis in json.loads(analyzed.stdout)["analyses"]:
        assert analysis["metrics"]["stereotype_rate"]["estimate"] == 1.0
    page = folder / "report.html"
    assert batchbench("report", "--home", folder, "-o", page).returncode == 0
    assert "<html" in page.read_text()
    audits = json.loads(batchbench("audit", "--home", folder, "--json").stdout)
    assert [(audit["rows"], audit["findings"]) for audit in audits] == [(30, []), (30, [])]
