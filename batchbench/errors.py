"""Every error that a user can act on; each class has its own exit code.

BatchbenchError            1   something failed; the message says what to do
├── UsageError             2   an argument or a line of a file is wrong
├── BudgetReached          3   the next batch could exceed the budget; raise it and run the same command
├── UnresolvedError        4   it is unknown whether a batch was bought; the user decides
├── UnreadableAnswers      5   too few answers can be read, so no more are bought; --anyway continues
├── MissingAnswers         6   some rows have no answer
├── LockedError           11   another process uses this folder
├── DataError             65   a file is missing, damaged or of another format
├── KeyRefusedError       77   the provider refuses the key, the billing or the model
└── InterruptedRun       130   stopped by the user; the same command continues

Messages are one line: what happened, where, and what to do about it.
"""

import difflib
from collections.abc import Iterable


class BatchbenchError(Exception):
    """An error with a message for the user; the program ends with `exit_code` and no traceback."""

    exit_code = 1


class UsageError(BatchbenchError):
    """The user asked for something that does not exist or is not allowed."""

    exit_code = 2


class BudgetReached(BatchbenchError):  # noqa: N818 - the budget works as the user asked
    """The next batch could cost more than is left of the budget."""

    exit_code = 3


class UnresolvedError(BatchbenchError):
    """A batch may or may not have been bought, and the provider's listing does not show which."""

    exit_code = 4


class UnreadableAnswers(BatchbenchError):  # noqa: N818 - a state of the run
    """Too few answers can be read, or they cost much more than estimated."""

    exit_code = 5


class MissingAnswers(BatchbenchError):  # noqa: N818 - a state of the run
    """The run is finished, and some rows have no answer."""

    exit_code = 6


class LockedError(BatchbenchError):
    """Another process holds the lock of a folder that this process writes to."""

    exit_code = 11


class DataError(BatchbenchError):
    """A file is missing, damaged, of another format, or not the expected file."""

    exit_code = 65


class KeyRefusedError(BatchbenchError):
    """The key is missing, or the provider refuses every call because of the key, the billing or the model."""

    exit_code = 77


class InterruptedRun(BatchbenchError):  # noqa: N818 - an interruption is not an error
    """The user stopped the program; all answers so far are kept."""

    exit_code = 130


def unforeseen(error: OSError | MemoryError) -> BatchbenchError:
    """A BatchbenchError for a failure of the machine that no other code has handled."""
    if isinstance(error, MemoryError):
        return BatchbenchError("no memory is left: end other programs or lower --batch-size, and run the same command")
    where = f" ({error.filename})" if error.filename else ""
    return BatchbenchError(f"{error.strerror or error}{where}: repair this and run the same command again")


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name: suggests the most similar known name, or lists all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
    return UsageError(f"unknown {kind} {name!r}: {hint}")
