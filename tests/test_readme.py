"""The README tells the truth: its commands are the ones CI runs, and what it shows is what comes out."""

import re
import shlex
from pathlib import Path

import pytest

from batchbench import probes
from tests.conftest import Run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)


def test_ci_runs_the_very_test_command() -> None:
    assert len(COMMANDS) == 2
    assert COMMANDS[1] in (ROOT / ".ci/run").read_text().splitlines()


@pytest.mark.full
def test_the_main_job_and_the_analysis_print_what_the_readme_shows(batchbench: Run, home: Path) -> None:
    *_, job = COMMANDS[0].split(" && ")
    shown = re.search(r"```\n(fetching.*?)\n```", README, re.DOTALL)
    assert shown
    ran = batchbench(*shlex.split(job)[1:], cwd=home)
    without_seconds = re.compile(r"\([\d.]+ s\)")
    assert without_seconds.sub("", ran.stdout.strip()) == without_seconds.sub("", shown[1].splitlines()[-1])
    session = re.search(r"```\n\$ \.venv/bin/batchbench (analyze .*?)\n(.*?)\n\.\.\.\n```", README, re.DOTALL)
    assert session
    analysed = batchbench(*shlex.split(session[1]), cwd=home)
    assert analysed.stdout.startswith(session[2])


def test_every_probe_is_in_the_table() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == probes.names()
