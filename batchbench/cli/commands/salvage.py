"""`batchbench salvage RUN`"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, show, show_json
from batchbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from batchbench.app.requests import Options
    from batchbench.app.salvage import SalvagedRun
    from batchbench.core.store import Store
    from batchbench.providers.target import Target

DESCRIPTION = """\
Rebuild a damaged run: from the undamaged lines of its journal, from its result and answer files, and from the list of
batches that the provider has. Results that are damaged or gone are fetched again while the provider has them. Nothing
is bought, and no file is deleted: the journal is kept as journal.damaged, other damaged files move to quarantine/.

  batchbench salvage cache/gest-1a2b3c4d/openai-gpt-6-luna-5e6f7a8b     the folder, as `batchbench status` shows it
  batchbench salvage gest --model openai:gpt-6-luna                     or the options that the run was begun with

Requests that may have been bought in a part of the journal that is lost become an unresolved batch, and are not asked
again until you decide. If the key was missing, run `salvage` again with it: the provider's list shows what was bought.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "salvage", run, help="rebuild a damaged run", description=DESCRIPTION)
    parser.add_argument("--offline", action="store_true", help="do not ask the provider")
    options.add_models(parser, optional=True)


def run(args: argparse.Namespace) -> int:
    """Rebuild the named runs."""
    from batchbench.app.requests import Options
    from batchbench.app.salvage import salvage

    terminal, chosen = Terminal(quiet=args.quiet), options.struct(Options, args)
    done = [
        salvage(folder, target, chosen, store, terminal, offline=args.offline)
        for store, folder, target in _runs(args, chosen, terminal)
    ]
    if args.json:
        show_json(done)
    elif not args.quiet:
        for one in done:
            show(_text(one))
    return DataError.exit_code if any(one.findings for one in done) else 0


def _runs(args: argparse.Namespace, chosen: "Options", terminal: Terminal) -> "list[tuple[Store, Path, Target | None]]":
    """The runs that the command line names: each with its home, its folder and, if that is known, its target."""
    from batchbench.app.plan import plan, run_folder
    from batchbench.core.store import Store

    found: list[tuple[Store, Path, Target | None]] = []
    if args.models:
        store = options.store(args)
        planned = plan(options.selection(args), chosen, store, terminal)
        found += [(store, run_folder(one, store), one.target) for one in planned]
    for name in args.probes if not args.models else []:
        folder = Path(name).absolute()
        if len(folder.parents) > 3:
            found.append((Store(folder.parents[2]), folder, None))
    for _, folder, _ in found:
        if not any((folder / name).exists() for name in ("journal", "run.json", "raw")):
            raise UsageError(f"{folder} is not the folder of a run: `batchbench status` lists them")
    if not found:
        raise UsageError("name the folder of a run, or a probe with --model")
    return found


def _text(one: "SalvagedRun") -> str:
    if not one.needed:
        head = f"{one.run}: nothing is damaged, nothing was changed"
    else:
        head = (
            f"{one.run}: rebuilt, {one.answered:,} answers, {one.missing:,} missing, {one.lost_lines:,} lines of the "
            "journal lost; nothing was bought"
        )
    lines = [f"  note: {note}" for note in one.notes]
    if one.unknown:
        lines.append(
            f"  {one.unknown:,} requests may have been bought in the lost part: see `batchbench status`, and salvage "
            "again with the key, or decide with `batchbench run ... --resolve NONCE=void`"
        )
    lines += [f"  {finding.where}: {finding.what}" for finding in one.findings]
    return "\n".join([head, *lines, "  run the same command as before to go on"])
