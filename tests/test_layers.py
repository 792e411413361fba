"""The packages are layers: each imports only those below it, imports form no cycle, and help loads quickly."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import batchbench

ROOT = Path(batchbench.__file__).parent
LAYERS = (  # bottom first; a package imports only those before it
    "errors",
    "core",
    "stats",
    "probes",
    "providers",
    "compile",
    "runs",
    "transport",
    "analyze",
    "dispatch",
    "emulator",
    "report",
    "app",
    "library",
    "cli",
    "__init__",
    "__main__",
)
HEAVY = {"polars", "numpy", "aiohttp", "anyio", "rich", "tenacity"}


def modules() -> dict[str, Path]:
    """Every module's dotted name inside the package, and its file."""
    paths = sorted(ROOT.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


MODULES = modules()


def imports(path: Path) -> set[str]:
    """The modules of batchbench that a file imports: at its top, inside a function, or for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {_module(f"{node.module}.{alias.name}") for alias in node.names}
    return found - {""}


def _module(name: str) -> str:
    """The module of batchbench that a dotted name is or is defined in; empty for other packages."""
    inside = name.removeprefix("batchbench.") if name.startswith("batchbench.") else ""
    return inside if inside in MODULES else inside.rpartition(".")[0]


def layer(module: str) -> int:
    return LAYERS.index(module.split(".")[0])


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_own_package_and_those_below(module: str) -> None:
    above = [other for other in imports(MODULES[module]) if layer(other) > layer(module)]
    assert not above


def test_imports_form_no_cycle() -> None:
    graph = {module: imports(path) - {module} for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, batchbench.cli; print({HEAVY!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
