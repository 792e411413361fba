"""The README: CI runs its commands, and they print what it shows."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from batchbench import cli, probes
from batchbench.probes import probe_names
from tests.conftest import Run, needs_gest
from tests.sweep.scene import Home

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)\n```", README, re.DOTALL)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert len(COMMANDS) == 2
    assert COMMANDS[1] in (ROOT / ".ci/run").read_text().splitlines()


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_gest
def test_the_main_job_prints_what_the_readme_shows(batchbench: Run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/data").symlink_to(home / "cache/data")
    *_, job = COMMANDS[0].split(" && ")
    shown = re.search(r"```\n(EMULATED.*?)\n```", README, re.DOTALL)
    assert shown
    try:
        ran = batchbench(*shlex.split(job)[1:], cwd=tmp_path)
    finally:
        Home(tmp_path).close()
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in shown[1].splitlines() if line not in ("...", "")]
    assert [line for line in lines if _squeezed(line) not in map(_squeezed, ran.stdout.splitlines())] == []
    assert (tmp_path / "report.html").stat().st_size > 100_000


def _squeezed(line: str) -> str:
    """A line without the widths of its table's columns, which depend on the other rows."""
    return " ".join(line.split())


@pytest.mark.full
@pytest.mark.parametrize(
    "command", re.findall(r"^\$ (batchbench (?:sweep|estimate) .*?)(?: +#.*)?$", README, re.MULTILINE)
)
def test_other_commands_of_the_readme_work(batchbench: Run, tmp_path: Path, home: Path, command: str) -> None:
    words = shlex.split(command)[1:]
    if ">" in words:
        words = words[: words.index(">")]
    (tmp_path / "sweep.toml").write_text(batchbench("sweep", "--example").stdout)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/data").symlink_to(home / "cache/data")
    try:
        ran = batchbench(*words, cwd=tmp_path)
    finally:
        Home(tmp_path).close()
    assert ran.returncode in ((0, 6) if "--detach" in words else (0,)), ran.stderr


def test_every_command_of_the_readme_exists() -> None:
    for words in re.findall(r"^\$ batchbench (.*?)(?: +#.*)?$", README, re.MULTILINE):
        assert callable(cli.parse(shlex.split(words.partition(" > ")[0])).run)


def test_the_python_example_runs(tmp_path: Path) -> None:
    (program,) = [text for text in PROGRAMS if text.startswith("import batchbench as bb")]
    try:
        ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    finally:
        Home(tmp_path).close()
    assert "stereotype_rate" in ran.stdout
    assert "male" in ran.stdout


def test_the_probe_of_the_readme_compiles_and_is_analyzed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = [text for text in PROGRAMS if text.startswith('"""promotion')]
    (tmp_path / "promotion.py").write_text(text + "\n")
    monkeypatch.setattr(probes, "__path__", [*probes.__path__, str(tmp_path)])
    words = ["promotion", "--set", "data=sample", "--home", str(tmp_path), "--json"]
    assert cli.main(["compile", *words]) == 0
    (compiled,) = json.loads(capsys.readouterr().out)
    lines = [{"id": row, "rep": 0, "text": "Yes!" if row % 4 else "no"} for row in range(compiled["items"])]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli.main(["analyze", *words, "--answers", str(tmp_path / "answers.jsonl"), "--quiet"]) == 0
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["headline"] == ["diff_promotion_rate"]
    assert analysis["metrics"]["male_promotion_rate"]["estimate"] is not None
    assert analysis["coverage"]["detected"] == compiled["items"]


def test_every_probe_is_in_the_table() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == probe_names()
