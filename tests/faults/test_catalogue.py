"""Every fault of the emulator is played against the client, or a reason is given."""

import ast

from batchbench.emulator.faults.catalogue import FAULTS
from tests.faults import test_life, test_lines, test_network
from tests.faults.rows import HERE

ELSEWHERE = {
    "413-too-large": "the server gives it to a batch that is really too large",
    "413-html": "a test proxy gives it to a batch that is too large",
    "file-quota": "the server gives it when its file store is really full",
}

# Played in tests/emulator; the client's tests are to be written.
WITHOUT_CLIENT = {
    "400-batch-only",
    "402-retry-after",
    "403-flagged",
    "error-string",
    "error-flat",
    "error-int-code",
    "error-nested",
    "error-detail",
    "error-200",
    "event-stream-before",
    "event-stream-after",
    "status-201",
    "status-202",
    "gzip",
    "slow-reply",
    "redirect-download",
    "results-elsewhere",
    "errors-data-null",
    "list-oldest-first",
    "list-has-more-null",
    "token-limit-azure",
    "line-text-null",
    "line-thoughts-only",
    "line-reasoning-only",
    "line-finish-error",
    "line-error-200",
    "line-top-logprobs-null",
    "line-usage-null",
    "line-usage-nulls",
    "line-usage-optional-null",
}


def test_every_fault_is_part_of_a_story() -> None:
    modules = [test_life.STORIES, test_lines.STORIES, test_network.STORIES]
    used = {rule["do"] for stories in modules for story in stories.values() for rule in story.rules}
    for file in HERE.glob("test_*.py"):
        if file.name != "test_catalogue.py":
            nodes = ast.walk(ast.parse(file.read_text()))
            used |= {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in FAULTS}
    assert set(FAULTS) - used - WITHOUT_CLIENT == set(ELSEWHERE)
