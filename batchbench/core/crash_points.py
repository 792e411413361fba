"""Named places where the program can be told to die, so that dying there can be tested.

`BATCHBENCH_CRASH=name:n` kills the process, as kill -9 would, the n-th time it passes that place; with `name:n:TERM` it
gets that signal instead.
`BATCHBENCH_CRASH=list:FILE` writes the name of every place passed to FILE instead. Otherwise nothing happens.
"""

import os
import signal

_name, _, _argument = os.environ.get("BATCHBENCH_CRASH", "").partition(":")
_count, _, _signal = _argument.partition(":")
_passed = 0


def point(name: str) -> None:
    """Die here, if this is the place and the time."""
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
