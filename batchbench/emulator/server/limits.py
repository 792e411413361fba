"""The limits of the emulated providers, and how long they take.

The defaults are the documented values; tests set smaller ones. Times are virtual seconds.
"""

import msgspec

DAY = 86_400.0


class EmulatorLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None means that the limit is not enforced."""

    requests: int = 50_000  # lines of one OpenAI batch
    bytes: int = 209_715_200  # of one OpenAI batch input file; a larger one fails in validation
    upload_bytes: int = 536_870_912  # of any uploaded file; a larger upload is refused
    files: int | None = None  # existing files
    enqueued_tokens: int | None = None  # prompt tokens of unfinished OpenAI batches per model
    creates_per_hour: int | None = 2_000  # OpenAI batch creations
    anthropic_requests: int = 100_000  # requests of one message batch
    anthropic_bytes: int = 268_435_456  # body of one message batch
    page: int = 1_000  # rows per page of a listing, also if the client asks for more
    queue_requests: int | None = 500_000  # requests in unfinished message batches
    sync_bytes: int = 33_554_432  # body of one synchronous call
    window: float = DAY  # a batch expires this long after its creation
    file_days: float = 30  # life of uploaded files and result files
    results_days: float = 29  # life of message batch results, from the creation of the batch


class Delays(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a batch stays in each state; 0 means only as long as the work takes."""

    validating: float = 0.0
    processing: float = 0.0
    finalizing: float = 0.0
    cancelling: float = 0.0
