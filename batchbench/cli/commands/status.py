"""`batchbench status`, `audit` and `explain`: looking at runs without touching them."""

import argparse

from batchbench.cli import output

STATUS = """\
How far every run is, read from its files; nothing is locked and nobody is asked, so it works beside a running
`batchbench run`.
"""
AUDIT = """\
Read every byte of the runs again and compare: digests, ids, counts, money. With --remote, also compare with what
the provider lists. Exit code 65 if anything is not as it should be.
"""
EXPLAIN = """\
Everything about one request: its prompt, the batch that carried it, every attempt, the provider's own line, its cost.
A custom id is what batches carry, such as 7c7ed463f1-42-0: nonce, row, repetition.
"""


def add(commands: output.Subparsers) -> None:
    """Declare the commands."""
    status = output.command(commands, "status", run_status, help="how far every run is", description=STATUS)
    status.add_argument("--watch", action="store_true", help="look again every two seconds, until Ctrl-C")
    audit = output.command(commands, "audit", run_audit, help="check runs byte for byte", description=AUDIT)
    audit.add_argument("--remote", action="store_true", help="also compare with what the provider lists")
    audit.add_argument("--base-url", metavar="URL", help="with --remote: where runs are that are not at the provider's")
    explain = output.command(commands, "explain", run_explain, help="all about one request", description=EXPLAIN)
    explain.add_argument("custom_id", metavar="CUSTOM_ID")


def run_status(args: argparse.Namespace) -> int:
    """Show a line per run."""
    from batchbench.app import status as looking

    return looking.status(args)


def run_audit(args: argparse.Namespace) -> int:
    """Check every run."""
    from batchbench.app import status as looking

    return looking.audit(args)


def run_explain(args: argparse.Namespace) -> int:
    """Tell all about one request."""
    from batchbench.app import status as looking

    return looking.explain(args)
