"""Every fault that the emulator can play is played against the client, or somebody says why not."""

import ast

from batchbench.emulator.faults.catalogue import FAULTS
from tests.faults import test_life, test_lines, test_network
from tests.faults.rows import HERE

ELSEWHERE = {
    "413-too-large": "batches that are really too large get it",
    "413-html": "a proxy of ours gives it, to what is too large",
    "file-quota": "a store that is really full plays it",
}


def test_every_fault_is_part_of_a_story() -> None:
    told = [test_life.STORIES, test_lines.STORIES, test_network.STORIES]
    used = {rule["do"] for stories in told for story in stories.values() for rule in story.rules}
    for file in HERE.glob("test_*.py"):
        if file.name != "test_catalogue.py":
            nodes = ast.walk(ast.parse(file.read_text()))
            used |= {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in FAULTS}
    assert set(FAULTS) - used == set(ELSEWHERE)
