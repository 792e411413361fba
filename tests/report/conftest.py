"""A home in which simulated models have answered every probe, and reports about it."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import polars as pl
import pytest

from batchbench import emulator
from batchbench.analyze.analysis import Analysis, write_analysis
from batchbench.analyze.labelled_answers import Example
from batchbench.core.store import Store
from batchbench.probes import load_probe, probe_names
from batchbench.report import build_report, gather
from batchbench.runs.folder import read_run
from tests.conftest import Run

PROBES = probe_names()
MODELS = ("sim:unbiased", "sim:stereotyping", "sim:planted/0.2", "sim:anthropic/random", "sim:refusing")
ANALYZE = ("--replicates", "60")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '=cmd|"/C calc"!A0',
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "\" onmouseover='alert(3)' x=`",
    "\\input{/etc/passwd} & 100% $x_1$ | **bold** [a](javascript:alert(4))",
)


def with_sample_data(*words: str) -> list[str]:
    return [*words, "--set", "data=sample"]


@pytest.fixture(scope="session")
def runs_home(tmp_path_factory: pytest.TempPathFactory, batchbench: Run) -> Iterator[Path]:
    """Five models by all probes, and for hiring_an a sixth model whose budget was too small."""
    home = tmp_path_factory.mktemp("reported")

    def run(*words: str, code: int = 0) -> None:
        ran = batchbench(*with_sample_data(*words), "--home", home)
        assert ran.returncode == code, ran.stderr

    models = [word for model in MODELS for word in ("--model", model)]
    large = [name for name in PROBES if load_probe(name).sample_k]  # a run asks only a part of these by default
    run("run", *large, *models, "--sample-k", "600", "--quiet", "--anyway")  # one model refuses everything
    run("run", *(name for name in PROBES if name not in large), *models, "--quiet", "--anyway")
    early = ["--model", "sim:random", "--budget", "0.008", "--batch-size", "50", "--sample-k", "600"]
    run("run", "hiring_an", *early, "--quiet", code=3)
    run("analyze", *PROBES, *models, *ANALYZE, "--json")
    run("analyze", "hiring_an", "--model", "sim:random", *ANALYZE, "--json")
    yield home
    if running := emulator.find(home / "cache" / "emulator"):
        os.kill(running.pid, signal.SIGTERM)


@pytest.fixture(scope="session")
def page(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report about all runs."""
    store = Store(runs_home)
    return build_report(store, gather.analysed(store), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def hostile_page(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with hostile text in the model's name, its answers and everything else that comes from outside."""
    folder = tmp_path_factory.mktemp("hostile")
    found, cells = read(runs_home, "gest", "sim:stereotyping")
    bad = [Example(label="male", outcome="answered", prompt=text, answer=text) for text in HOSTILE]
    changed = msgspec.structs.replace(
        found,
        origin=msgspec.structs.replace(found.origin, model=HOSTILE[0]),
        notes=[*HOSTILE],
        examples=bad,
        missing=[msgspec.structs.replace(group, group=HOSTILE[1], undetected=7) for group in found.missing[:1]],
        coverage=msgspec.structs.replace(found.coverage, detected=found.coverage.detected - 7),
    )
    write_analysis(changed, cells, folder / "one", Store(runs_home))
    for number, text in enumerate(HOSTILE[2:]):
        other = msgspec.structs.replace(found, origin=msgspec.structs.replace(found.origin, model=text))
        write_analysis(other, cells, folder / str(number), Store(runs_home))
    several = [folder / "one", *(folder / str(number) for number in range(len(HOSTILE) - 2))]
    return build_report(Store(runs_home), several, folder / "report.html", title=HOSTILE[0])


@pytest.fixture(scope="session")
def big_page(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve models by all probes: analyses of the same runs under other names."""
    home = tmp_path_factory.mktemp("big")
    shutil.copytree(runs_home / "manifests", home / "manifests")
    names = [f"openai:gpt-{number}-mini-2026-0{number % 9 + 1}-01" for number in range(12)]
    folders = []
    for number, name in enumerate(names):
        for probe in PROBES:
            source = folder_of(runs_home, probe, MODELS[number % 4])
            target = home / "cache" / source.parent.name / str(number)
            target.mkdir(parents=True)
            for file in ("run.json", "journal", "cells.parquet"):
                shutil.copy(source / file, target / file)
            found = gather.read_analysis(source / "metrics.json")
            found = msgspec.structs.replace(found, origin=msgspec.structs.replace(found.origin, model=name))
            (target / "metrics.json").write_bytes(msgspec.json.encode(found))
            folders.append(target)
    return build_report(Store(home), folders, home / "report.html")


def folder_of(home: Path, probe: str, model: str) -> Path:
    found = [
        folder
        for folder in gather.analysed(Store(home))
        if folder.parent.name.startswith(f"{probe}-") and read_run(folder / "run.json").target.name == model
    ]
    assert len(found) == 1
    return found[0]


def read(home: Path, probe: str, model: str) -> tuple[Analysis, pl.DataFrame]:
    folder = folder_of(home, probe, model)
    return gather.read_analysis(folder / "metrics.json"), pl.read_parquet(folder / "cells.parquet")
