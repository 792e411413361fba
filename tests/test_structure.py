"""The shape of the package: sizes, who may import what, the map in ARCHITECTURE.md, and plain words in comments."""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

from tests.conftest import QUICK, TESTS
from tests.test_layers import MODULES, ROOT, imports

MODULE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 7
FOLDER_MODULES = 15
# Their modules all have the same shape; `app` has one module per command.
CATALOGUES = {"probes", "providers", "cli/commands", "emulator/personas", "app"}
WORDS = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|in\s+vain|there\s+is\s+none|thrice)\b", re.IGNORECASE)
MOST_WORDS = 15
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in MODULES.values()}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def in_command_line(module: str) -> bool:
    return module == "cli" or module.startswith("cli.")


def functions(source: str) -> list[Function]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


def test_only_the_command_line_imports_argparse() -> None:
    found = [
        name for name, source in SOURCES.items() if re.search(r"^\s*(import|from) argparse\b", source, re.MULTILINE)
    ]
    assert [name for name in found if not name.startswith("cli/")] == []


def test_only_the_command_line_and_main_import_the_command_line() -> None:
    others = [module for module in MODULES if not in_command_line(module) and module != "__main__"]
    assert [module for module in others if any(map(in_command_line, imports(MODULES[module])))] == []


def test_no_module_is_too_long() -> None:
    lengths = {name: source.count("\n") for name, source in SOURCES.items()}
    assert {name: length for name, length in lengths.items() if length > MODULE_LINES} == {}


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{name}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for name, source in SOURCES.items()
        for function in functions(source)
    }
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES} == {}


def test_no_function_has_too_many_parameters() -> None:
    counts = {
        f"{name}:{function.name}": parameters(function)
        for name, source in SOURCES.items()
        for function in functions(source)
    }
    assert {name: count for name, count in counts.items() if count > PARAMETERS} == {}


def parameters(function: Function) -> int:
    """How many parameters a function has, without self and cls."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if one]
    return len([name for name in names if name not in ("self", "cls")])


def test_no_folder_has_too_many_modules() -> None:
    sizes = Counter(str(Path(name).parent) for name in SOURCES if not name.endswith("__init__.py"))
    found = {folder: size for folder, size in sizes.items() if folder not in CATALOGUES and size > FOLDER_MODULES}
    assert found == {}


def test_the_map_names_every_module_and_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert [name for name in SOURCES if name.removesuffix("__init__.py") not in text] == []


def test_the_quick_suite_names_files_that_exist() -> None:
    assert [name for name in QUICK if not (TESTS / name).is_file()] == []


def test_comments_say_who_does_what() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, source in SOURCES.items()
        for text in [*comments(source), *docstrings(source)]
        for match in WORDS.finditer(text)
    ]
    assert len(found) < MOST_WORDS, found


def comments(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def docstrings(source: str) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return [text for node in nodes if (text := ast.get_docstring(node))]
