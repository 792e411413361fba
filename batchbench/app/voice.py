"""How the application reports what it does. The command line and Python programs implement `Voice`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from batchbench.dispatch import Progress

Report = Callable[[int, int], None]  # done so far, and in all


class Monitor(Protocol):
    """Follows several runs while their models are asked. A run's number is its place in the list of names."""

    def show(self, number: int, progress: Progress) -> None:
        """A run has got so far."""

    def end(self, number: int) -> None:
        """A run has ended."""

    def tick(self) -> None:
        """The event loop is alive; called several times a second."""


class Voice(Protocol):
    """Where messages go."""

    def note(self, message: str) -> None:
        """Say what is going on."""

    def progress(self, what: str, unit: str = "") -> AbstractContextManager[Report]:
        """Show how far a stage is, for as long as the context lasts."""

    def monitor(self, names: Sequence[str], budget: int | None) -> AbstractContextManager[Monitor]:
        """Show how far several runs are, for as long as the context lasts. The budget is in micro-dollars."""


class Silent:
    """A voice, and a monitor, that say nothing."""

    def note(self, message: str) -> None:
        """Ignore the message."""

    @contextmanager
    def progress(self, what: str, unit: str = "") -> Iterator[Report]:  # noqa: ARG002 - part of the protocol
        """Show nothing."""
        yield lambda _done, _total: None

    @contextmanager
    def monitor(self, names: Sequence[str], budget: int | None) -> Iterator["Silent"]:  # noqa: ARG002 - as above
        """Show nothing."""
        yield self

    def show(self, number: int, progress: Progress) -> None:
        """Ignore it."""

    def end(self, number: int) -> None:
        """Ignore it."""

    def tick(self) -> None:
        """Ignore it."""
