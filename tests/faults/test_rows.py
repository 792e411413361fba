"""Every row of README.md has a test, and every test a row."""

import ast

from tests.faults.rows import HERE, rows, untried


def test_the_table_and_the_tests_name_the_same_rows() -> None:
    named = {
        argument.value
        for file in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "row"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert named == set(rows())


def test_no_number_is_used_twice_or_left_out() -> None:
    assert not set(rows()) & set(untried())
    everything = sorted({**rows(), **untried()})
    assert everything == list(range(1, len(everything) + 1))
