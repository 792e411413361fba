"""The command line: parse, call one stage, print, exit code.

One module per command, each exporting `add(commands)`. Nothing heavy is imported before a command runs, so
that help is instant. Results go to stdout, everything else to stderr.
"""

import argparse
import os
import resource
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from batchbench import __version__
from batchbench.cli.commands import analyze, compile, data, emulate, export, prices, probes, report, run, status, sweep
from batchbench.cli.output import abandon, fail, open_streams
from batchbench.errors import BatchbenchError, InterruptedRun, UsageError, unforeseen, unknown

COMMANDS = (sweep, compile, run, status, analyze, report, export, probes, data, prices, emulate)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback for anything a user can cause."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    os.umask(0o077)  # what is compiled, fetched and paid for belongs to the user alone
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it would hold the key
    try:
        args = parse(words)
        act: Callable[[argparse.Namespace], int] = args.run
        return act(args)
    except BatchbenchError as error:
        return fail(error, json="--json" in words)
    except KeyboardInterrupt:
        return fail(InterruptedRun("interrupted: the same command goes on from here"), json="--json" in words)
    except BrokenPipeError:
        abandon(sys.stdout)
        return 0
    except (OSError, MemoryError) as error:
        return fail(unforeseen(error), json="--json" in words)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, or a UsageError."""
    parser = Parser(prog="batchbench", description=__doc_for_users__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--version", action="version", version=f"batchbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for command in COMMANDS:
        command.add(commands)
    if broken := [word for word in words if any("\ud800" <= letter <= "\udfff" for letter in word)]:
        raise UsageError(f"{broken[0]!r} is not UTF-8: check the word, or the locale (LC_ALL, PYTHONUTF8)")
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        raise unknown("command", words[0], commands.choices)
    return parser.parse_args(words)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line and an exception like any other."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")


__doc_for_users__ = """\
Ask language models millions of bias-probe questions through batch APIs, and measure the answers.

Files are the state: the same command again finds what is there and does what is missing.
--home DIR or BATCHBENCH_HOME says where manifests/ and cache/ live; the current folder otherwise."""
