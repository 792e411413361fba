"""The command line: parse, call the application, print, exit code.

commands/ has one module per command, each with `add(commands)`. Nothing heavy is imported before a command runs, so
that help is instant. Results go to stdout, everything else to stderr.
"""

import argparse
import io
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence

from batchbench import ALLOCATOR, __version__
from batchbench.cli.commands import (
    analyze,
    answers,
    audit,
    cancel,
    check,
    compile,
    data,
    emulate,
    estimate,
    explain,
    export,
    import_,
    prices,
    probes,
    read,
    report,
    run,
    salvage,
    status,
    sweep,
)
from batchbench.cli.options import Parser
from batchbench.cli.terminal import abandon, fail
from batchbench.errors import BatchbenchError, InterruptedRun, UsageError, unforeseen, unknown

COMMANDS = (
    *(sweep, check, compile, estimate, run, cancel, status, audit, salvage, explain, answers, analyze, read, report),
    *(export, import_),
    *(probes, data, prices, emulate),
)
DESCRIPTION = """\
Ask language models millions of bias-probe questions through batch APIs, and measure the answers.

Files are the state: the same command again does only what is missing.
--home DIR or BATCHBENCH_HOME is the folder of manifests/ and cache/; the current folder otherwise."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback for anything a user can cause."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    os.umask(0o077)  # only the user may read what is compiled, fetched and paid for
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it would hold the key
    os.environ.setdefault(*ALLOCATOR)
    logging.getLogger("asyncio").addFilter(_has_memory)
    try:
        args = parse(words)
        command: Callable[[argparse.Namespace], int] = args.run
        return command(args)
    except BatchbenchError as error:
        return fail(error, json="--json" in words)
    except KeyboardInterrupt:
        return fail(InterruptedRun("interrupted: run the same command to continue"), json="--json" in words)
    except BrokenPipeError:
        abandon(sys.stdout)
        return 0
    except (OSError, MemoryError) as error:
        return fail(unforeseen(error), json="--json" in words)


def _has_memory(record: logging.LogRecord) -> bool:
    """Whether a record is not about a lack of memory: `main` reports that in one line, without a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], MemoryError))


def open_streams() -> None:
    """Make sure that stdin, stdout and stderr are open and take any text.

    A file that gets the number of a closed stream, such as a journal, would receive what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin, sys.stdout, sys.stderr = (
        sys.stdin or os.fdopen(0, closefd=False),
        sys.stdout or os.fdopen(1, "w", closefd=False),
        sys.stderr or os.fdopen(2, "w", closefd=False),
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, or a UsageError."""
    parser = Parser(prog="batchbench", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--version", action="version", version=f"batchbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for command in COMMANDS:
        command.add(commands)
    if broken := [word for word in words if any("\ud800" <= letter <= "\udfff" for letter in word)]:
        raise UsageError(f"{broken[0]!r} is not UTF-8: check the word, or the locale (LC_ALL, PYTHONUTF8)")
    if broken := [word for word in words if "\x00" in word]:
        raise UsageError(f"{broken[0]!r} contains a null byte")
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        raise unknown("command", words[0], commands.choices)
    return parser.parse_args(words)
