"""The Python API: the same requests, checks and folders as the command line."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import batchbench as bb
from batchbench import emulator, library
from batchbench.app.requests import Options, Purchase
from batchbench.app.run import RunResult
from batchbench.errors import UsageError

SAMPLE = {"data": "sample"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if running := emulator.find(tmp_path / "cache/emulator"):
        os.kill(running.pid, signal.SIGTERM)


def test_dir_lists_the_public_names() -> None:
    assert set(bb.__all__) <= set(dir(bb))
    assert "importlib" not in dir(bb)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, batchbench; dir(batchbench); print('polars' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_help_of_run_names_every_option_and_every_column() -> None:
    text = bb.run.__doc__ or ""
    hidden = {"settle"}  # for tests only
    for name in {*Options.__struct_fields__, *Purchase.__struct_fields__} - hidden:
        assert f"\n    {name} " in text, name
    columns = text.partition("Columns: ")[2]
    for name in RunResult.__struct_fields__:
        assert name in columns, name


def test_the_typed_options_are_those_of_the_command_line() -> None:
    asked = set(Options.__struct_fields__) - {"settle"}
    bought = set(Purchase.__struct_fields__) - {"budget"}  # a parameter of its own
    assert set(library.AskOptions.__annotations__) == asked
    assert set(library.RunOptions.__annotations__) - asked == bought


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 3}, "temperature 3 is not a number from 0 to 2"),
        ({"sample_k": "some"}, "sample_k 'some' is not a number of items above 0, or `all`"),
        ({"repetitions": 0}, "repetitions 0 is not a whole number from 1 to 65,535"),
        ({"price": "cheap"}, "dollars per million tokens"),
        ({"base_url": "example.org"}, "is not an http or https address"),
        ({"resolve": ["x"]}, "resolve 'x' is not NONCE=void or NONCE=BATCH_ID"),
        ({"pilot": "maybe"}, "pilot=maybe: invalid enum value 'maybe'"),
        ({"budget": "a lot"}, "not an amount in dollars"),
        ({"temperatur": 1}, "did you mean 'temperature'?"),
    ],
)
def test_a_wrong_option_raises_one_line_that_names_it(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        bb.run("gest", "sim:random", params=SAMPLE, home=tmp_path, **options)  # type: ignore[arg-type]
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_every_stage_works_on_the_same_folders(home: Path) -> None:
    assert bb.prompts("gest", params=SAMPLE, home=home).collect().height > 0
    (cost,) = bb.estimate("gest", "sim:random", params=SAMPLE, home=home, sample_k=5).rows(named=True)
    (ran,) = bb.run("gest", "sim:random", params=SAMPLE, home=home, sample_k=5, budget=1).rows(named=True)
    assert (ran["asked"], ran["answered"], ran["error"]) == (cost["requests"], cost["requests"], None)
    answers = bb.answers("gest", "sim:random", params=SAMPLE, home=home)
    assert answers.height == ran["answered"]
    assert {"id", "rep", "outcome", "text", "prompt", "label", "careful", "reasoning"} <= set(answers.columns)
    assert [name for name in answers.columns if name.startswith("careful_")] == []
    metrics = bb.metrics("gest", "sim:random", params=SAMPLE, home=home, replicates=10)
    assert metrics.columns[:4] == ["probe", "model", "metric", "estimate"]
    assert {"stereotype_rate", "careful_stereotype_rate"} <= set(metrics["metric"])
    (again,) = bb.estimate("gest", "sim:random", params=SAMPLE, home=home, sample_k=5).rows(named=True)
    assert again["requests"] == 0


def test_a_budget_stays_until_it_is_changed(home: Path) -> None:
    def run(budget: float | str | None = None) -> str:
        ran = bb.run("gest", "sim:unbiased", params=SAMPLE, home=home, sample_k=5, repetitions=2, budget=budget)
        return str(ran["error"][0])

    assert "of the budget of $0.000000 is spent" in run(0)
    assert "of the budget of $0.000000 is spent" in run()
    assert run("none") == "None"


def test_an_expensive_run_without_a_budget_needs_a_yes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    nowhere = "http://127.0.0.1:9/v1"
    with pytest.raises(UsageError, match=r"about \$.*: allow it with yes=True, or limit it with a budget"):
        bb.run("gest", "openai:x", params=SAMPLE, home=home, sample_k=5, price="10000,10000", base_url=nowhere)
    assert not list(home.glob("cache/*/*/run.json"))


def test_it_runs_inside_a_running_event_loop(home: Path) -> None:
    async def notebook() -> pl.DataFrame:
        return bb.run("gest", "sim:random", params=SAMPLE, home=home, sample_k=2)

    assert asyncio.run(notebook())["missing"].to_list() == [0]


def test_a_sweep_returns_its_report_and_a_row_for_each_run(home: Path) -> None:
    file = home / "sweep.toml"
    file.write_text('sample_k = 2\nmodels = ["sim:random"]\nprobes = [{ name = "gest", data = "sample" }]\n')
    swept = bb.sweep(file, home=home)
    assert swept.report == home / "sweep.html"
    assert swept.report.is_file()
    assert swept.runs["model"].to_list() == ["sim:random"]


def test_a_sweep_that_costs_money_needs_a_yes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    file = home / "sweep.toml"
    file.write_text('sample_k = 2\nmodels = ["openai:gpt-4.1-mini"]\nprobes = [{ name = "gest", data = "sample" }]\n')
    with pytest.raises(UsageError, match=r"this may cost up to \$\d+\.\d\d: allow it with yes=True"):
        bb.sweep(file, home=home)
