"""Everything that can go wrong in a way a user can act on; each class owns its exit code.

BatchbenchError            1   something failed; the message says what to do
├── UsageError             2   a word on the command line or in a file is wrong
├── BudgetReached          3   the budget allows no more; raise it and run the same command
├── UnresolvedError        4   nobody can tell whether a batch was bought; a person decides
├── MissingAnswers         6   some answers could not be had
├── LockedError           11   another process works in this folder
├── DataError             65   a file is not what it should be
├── KeyRefusedError       77   the provider refuses the key, the billing or the model
└── InterruptedRun       130   stopped by the user; the same command goes on

Messages are one line: what happened, where, and what to do about it.
"""

import difflib
from collections.abc import Iterable


class BatchbenchError(Exception):
    """A failure that the message explains; the program ends with `exit_code` and no traceback."""

    exit_code = 1


class UsageError(BatchbenchError):
    """The user asked for something that does not exist or does not fit."""

    exit_code = 2


class BudgetReached(BatchbenchError):  # noqa: N818 - the user's wish, fulfilled
    """Asking more could cost more than the user allows."""

    exit_code = 3


class UnresolvedError(BatchbenchError):
    """A batch may or may not have been bought, and no listing can tell."""

    exit_code = 4


class MissingAnswers(BatchbenchError):  # noqa: N818 - a state of the run
    """Everything was tried, and some rows have no answer."""

    exit_code = 6


class LockedError(BatchbenchError):
    """Another process holds the folder that this one needs to write to."""

    exit_code = 11


class DataError(BatchbenchError):
    """A file is missing, damaged, of another format, or not the file it claims to be."""

    exit_code = 65


class KeyRefusedError(BatchbenchError):
    """The provider takes no call from us: the key, the billing, the model, or its absence."""

    exit_code = 77


class InterruptedRun(BatchbenchError):  # noqa: N818 - an interruption is not an error of anybody's
    """The user stopped the program; everything done so far is kept."""

    exit_code = 130


def unforeseen(error: OSError | MemoryError) -> BatchbenchError:
    """The error for a machine that failed where nobody expected it to."""
    if isinstance(error, MemoryError):
        return BatchbenchError("no memory is left: end other programs or lower --batch-size, and run the same command")
    where = f" ({error.filename})" if error.filename else ""
    return BatchbenchError(f"{error.strerror or error}{where}: mend this and run the same command again")


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a misspelt name: it suggests the nearest known one, or lists them all."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
    return UsageError(f"unknown {kind} {name!r}: {hint}")
