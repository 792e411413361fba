"""`batchbench audit`"""

import argparse
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, show, show_json
from batchbench.errors import DataError

if TYPE_CHECKING:
    from batchbench.runs.audit import Audit

DESCRIPTION = """\
Read every byte of the runs again and compare: digests, ids, counts, money. With --remote, also compare with the
provider's list of batches. With --reread, also store the answers of lines that an older version read differently or not
at all; nothing is asked and nothing is paid. Exit code 65 if anything is wrong.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "audit", run, help="check runs byte for byte", description=DESCRIPTION)
    parser.add_argument("--remote", action="store_true", help="also compare with the provider's list of batches")
    parser.add_argument("--reread", action="store_true", help="store answers that an older version read differently")
    parser.add_argument(
        "--base-url", metavar="URL", help="with --remote: the address of runs that are not at the provider"
    )


def run(args: argparse.Namespace) -> int:
    from batchbench.app.audit import audit_runs

    terminal = Terminal(quiet=args.quiet)
    given = {"remote": args.remote, "base_url": args.base_url, "reread_lines": args.reread}
    audits = audit_runs(options.store(args), terminal, **given)
    if args.json:
        show_json(audits)
    elif not audits:
        show("no runs to check")
    else:
        for audit in audits:
            show(_text(audit))
    return DataError.exit_code if any(audit.findings for audit in audits) else 0


def _text(audit: "Audit") -> str:
    from batchbench.core.money import dollars

    if isinstance(audit.error, str):
        return f"BROKEN {audit.run}: {audit.error}"
    spent = f"{dollars(audit.spent)} spent" if audit.priced else "not priced"
    head = f"{audit.run}: {audit.batches} batches, {audit.rows:,} rows answered, {spent}"
    findings = [f"  {finding.where}: {finding.what}" for finding in audit.findings]
    notes = [f"  note: {note.where}: {note.what}" for note in audit.notes]
    recovered = [f"  {audit.recovered:,} rows recovered or read anew: analyze the run again"] if audit.recovered else []
    return "\n".join([head, *recovered, *(findings or ["  all is as it should be"]), *notes])
