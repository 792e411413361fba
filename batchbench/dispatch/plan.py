"""The plan and the progress of one run."""

import msgspec

from batchbench.core.money import Price


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for in one run."""

    items: int  # ask this many items, from the start of the manifest
    rows: int  # the prompts of these items
    repetitions: int
    price: Price
    weight: float = 1.0  # this run's share of the budget, relative to the other runs
    max_row_cost: int = 0  # micro-dollars, an upper bound for one row
    rebuy_missing: bool = False
    adopt: bool = False  # buy even if the folder is a copy
    trial: bool = False  # ask one harmless question before the first batch is bought
    detach: bool = False  # do not wait for running batches


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run."""

    rows: int
    done: int  # answered, refused or failed
    in_flight: int
    done_at_provider: int  # requests in flight that the provider reports as done
    missing: int
    batches: dict[str, int]  # by state
    spent: int  # micro-dollars
    reserved: int  # micro-dollars
    waiting: str = ""  # what the run waits for, and until when; empty while it works
