"""Reports when the event loop is blocked. It is a thread, because a blocked event loop cannot report it itself."""

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

LIMIT = 30  # checks without a tick, one per second, until a message
DEPTH = 6  # innermost calls in the message


class Watchdog:
    """Watches the thread that creates it, which has to call `tick` several times a second."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._watched = threading.get_ident()
        # Checks are counted, not seconds: a machine in standby makes no checks.
        self._checks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def tick(self) -> None:
        """The watched thread is alive."""
        self._checks = 0

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self._checks += 1
            if self._checks % LIMIT == 0:
                self._note(f"blocked for {self._checks} s, in {self._stack()}: if this continues, report it")

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched)
        calls = traceback.extract_stack(frame)[-DEPTH:] if frame else []
        return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in reversed(calls))
