"""Says so when the program does not get on: a thread, because a blocked event loop cannot speak for itself."""

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

STILL = 30  # looks, a second apart, for which nothing may move
DEPTH = 6  # calls that are told, the innermost first


class Vigil:
    """A watch over the thread that enters it, which is to call `tick` every now and then."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._watched = threading.get_ident()
        # Looks are counted, not seconds: a machine that was asleep has not been looked at meanwhile.
        self._looks = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Vigil":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def tick(self) -> None:
        """Something has moved."""
        self._looks = 0

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            self._looks += 1
            if self._looks % STILL == 0:
                self._say(f"nothing has moved for {self._looks} s, in {self._where()}: if this goes on, report it")

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)
        calls = traceback.extract_stack(frame)[-DEPTH:] if frame else []
        return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in reversed(calls))
