"""Named points at which tests can kill the program.

`BATCHBENCH_CRASH=name:n` kills the process, as kill -9 does, the n-th time it passes that point. With `name:n:TERM` the
process sends itself that signal instead. `BATCHBENCH_CRASH=list:FILE` appends the name of every point passed to FILE.
Without the variable, points do nothing.
"""

import os
import signal

_name, _, _argument = os.environ.get("BATCHBENCH_CRASH", "").partition(":")
_count, _, _signal = _argument.partition(":")
_passed = 0


def point(name: str) -> None:
    """Kill the process here if BATCHBENCH_CRASH says so."""
    global _passed
    if not _name:
        return
    if _name == "list":
        with open(_argument, "a") as file:
            file.write(f"{name}\n")
    elif name == _name:
        _passed += 1
        if _passed == int(_count or 1):
            os.kill(os.getpid(), signal.Signals[f"SIG{_signal or 'KILL'}"])
