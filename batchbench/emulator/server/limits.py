"""What the emulated providers allow, how long they take, and what they charge.

The defaults are the documented figures; tests shrink them. Times are virtual seconds.
"""

import msgspec

DAY = 86_400.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceilings; null means that none is enforced."""

    requests: int = 50_000  # lines of one OpenAI batch
    bytes: int = 209_715_200  # of one OpenAI batch input file; a larger one fails in validation
    upload_bytes: int = 536_870_912  # of any uploaded file; a larger one is refused at the door
    files: int | None = None  # files kept at once
    enqueued_tokens: int | None = None  # prompt tokens of unfinished OpenAI batches per model; depends on the tier
    creates_per_hour: int | None = 2_000  # OpenAI batch creations
    anthropic_requests: int = 100_000  # requests of one message batch
    anthropic_bytes: int = 268_435_456  # body of one message batch
    page: int = 1_000  # rows of a listing, however many are asked for
    queue_requests: int | None = 500_000  # requests in unfinished message batches
    sync_bytes: int = 33_554_432  # body of one synchronous call
    window: float = DAY  # a batch expires this long after its creation
    file_days: float = 30  # uploaded and result files
    results_days: float = 29  # message batch results, counted from the creation of the batch


class Delays(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a batch stays in each state; 0 means as long as the work itself takes."""

    validating: float = 0.0
    processing: float = 0.0
    finalizing: float = 0.0
    cancelling: float = 0.0
