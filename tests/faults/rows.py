"""The rows of the table of faults, as README.md lists them."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (\d+) \| (.+?) \|", re.MULTILINE)
UNTRIED = "## Not tried"


def row(*numbers: int) -> pytest.MarkDecorator:
    """Mark a test with the rows that it covers."""
    return pytest.mark.row(*numbers)


def rows() -> dict[int, str]:
    """Number and text of every fault that README.md lists as tested."""
    return _listed(HERE.joinpath("README.md").read_text().partition(UNTRIED)[0])


def untried() -> dict[int, str]:
    """Number and text of every fault that README.md lists as not tested."""
    return _listed(HERE.joinpath("README.md").read_text().partition(UNTRIED)[2])


def _listed(text: str) -> dict[int, str]:
    return {int(number): fault for number, fault in ROW.findall(text)}
