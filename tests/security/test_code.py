"""What the code must never do, checked in its source."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import batchbench

ROOT = Path(batchbench.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "yaml", "tempfile", "tarfile", "code", "pty"}
NAMES = {"eval", "exec", "__import__", "breakpoint"}
CALLS = {
    "os.system",
    "os.popen",
    "yaml.load",
    "pl.from_repr",
    "np.load",
    "numpy.load",
    "ssl._create_unverified_context",
}
STARTERS = {"compile/fetch.py", "emulator/__init__.py"}  # may start another program
HTTP = {"transport/client.py", "transport/network_errors.py", "emulator", "compile/fetch.py"}  # may import a client


@cache
def trees() -> list[tuple[str, ast.AST]]:
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in SOURCES]


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found}


def test_nothing_evaluates_unpickles_or_unpacks_foreign_bytes() -> None:
    for name, tree in trees():
        assert not MODULES & imported(tree), name
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Name) and node.id in NAMES), f"{name}:{node.lineno}"
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in CALLS, f"{name}:{node.lineno}"


def test_no_shell_no_unverified_certificate_and_no_redirect() -> None:
    for name, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert "shell" not in given, f"{name}:{node.lineno}"
            assert not {"ssl", "verify", "verify_ssl"} & given.keys(), f"{name}:{node.lineno}"
            if ast.unparse(node.func) in ("session.request", "self._session.get", "self._session.post"):
                assert given["allow_redirects"] == "False", f"{name}:{node.lineno}"
            if ast.unparse(node.func) == "aiohttp.ClientSession":
                assert given["trust_env"] == "False", f"{name}:{node.lineno}"


def test_few_modules_start_programs_or_open_connections() -> None:
    for name, tree in trees():
        top = name if name in HTTP else name.partition("/")[0]
        if top not in HTTP:
            assert not {"aiohttp", "urllib3", "requests", "httpx", "http"} & imported(tree), name
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        starts = {call for call in calls if call.startswith(("subprocess.", "os.posix_spawn", "os.exec", "os.fork"))}
        assert not starts or name in STARTERS, (name, starts)


def test_tables_hold_plain_values_and_are_read_from_files_only() -> None:
    for name, tree in trees():
        for node in ast.walk(tree):
            assert ast.unparse(node) != "pl.Object" if isinstance(node, ast.Attribute) else True, name
            if isinstance(node, ast.Call) and re.fullmatch(r"pl\.(read|scan)_\w+", ast.unparse(node.func)):
                first = node.args[0] if node.args else None
                assert not isinstance(first, ast.Constant | ast.JoinedStr), f"{name}:{node.lineno}"
                if ast.unparse(node.func) == "pl.scan_parquet":  # otherwise a folder called [1] would be a pattern
                    assert "glob" in {word.arg for word in node.keywords}, f"{name}:{node.lineno}"


@pytest.mark.parametrize(("package", "least"), [("aiohttp", (3, 14, 5))])
def test_releases_with_known_vulnerabilities_are_excluded(package: str, least: tuple[int, ...]) -> None:
    wanted = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = [line.partition(">=")[2] for line in wanted if line.startswith(f"{package}>=")]
    assert tuple(map(int, bound.split("."))) >= least
