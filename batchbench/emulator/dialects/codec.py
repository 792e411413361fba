"""Pure: what the codecs of all dialects share."""

from abc import ABC, abstractmethod
from hashlib import blake2b

from batchbench.emulator.jobs.answers import ErrorInfo, LineResult
from batchbench.emulator.personas.interface import FindPersona, Persona


class BatchCodec(ABC):
    """Turns the input lines of one batch into result lines."""

    def __init__(self, batch: str, prefix_bytes: int, seed: int, find_persona: FindPersona) -> None:
        self._id_prefix = blake2b(batch.encode(), digest_size=prefix_bytes).hexdigest()
        self._count = 0
        self._seed = seed
        self._find_persona = find_persona
        self._personas: dict[str, Persona | None] = {}

    @abstractmethod
    def answer(self, raw: bytes, reply_fault: str = "") -> LineResult:
        """The line of a request that the model has answered, or that the provider refuses."""

    @abstractmethod
    def unanswered(self, raw: bytes, reason: str) -> LineResult:
        """The line of a request that got no answer: expired, cancelled or timeout."""

    @abstractmethod
    def error(self, raw: bytes, info: ErrorInfo) -> LineResult:
        """The line of a request that the provider refused or failed to process."""

    def _next_id(self) -> str:
        # The order of the lines is fixed, so a second run of the batch gives every line the same id.
        self._count += 1
        return f"{self._id_prefix}{self._count:010x}"

    def _persona(self, model: str) -> Persona | None:
        if model not in self._personas:
            self._personas[model] = self._find_persona(model)
        return self._personas[model]
