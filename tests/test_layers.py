"""Imports point one way: cli -> stages -> IO -> pure modules, and nothing opens anything on import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import batchbench

ROOT = Path(batchbench.__file__).parent
LAYERS = [  # each may import those above it, and its own package
    {"errors", "crash", "clock", "mounts", "pace", "plain", "keys"},
    {"cells", "marks"},
    {"schema", "money", "targets"},
    {"columns", "events", "prices", "words", "attempts", "predictions"},
    {"journal", "masked", "stereotype", "providers", "given", "examples", "missing"},
    {"probes"},
    {"fetch", "store", "replies"},
    {"datasets", "runs", "api", "callbook"},
    {"results", "spool"},
    {"ingest"},
    {"mlm"},
    {"compile", "dispatch", "analyze", "audit", "emulator"},
    {"report"},
    {"cli"},
    {"library"},
    {"__init__", "__main__"},
]
HEAVY = {"polars", "numpy", "aiohttp", "anyio", "rich", "tenacity"}


def level(module: str) -> int:
    return next(place for place, layer in enumerate(LAYERS) if module in layer)


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The top-level parts of batchbench that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = {name.split(".")[1] for name in found if name.startswith("batchbench.")}
    return {part for part in parts if (ROOT / part).is_dir() or (ROOT / f"{part}.py").exists()}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imports(path) - {own}:
        assert level(other) < level(own), f"{own} may not import {other}"


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, batchbench.cli; print({HEAVY!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
