"""Pure: the cost of tokens in integer micro-dollars, upper bounds of it, and how prices and budgets are written.

Prices are micro-dollars per million tokens, so that 0.075 dollars per million is exactly 75,000. An answer's cost is
rounded up to the next micro-dollar. A reservation is never below what the answer can cost.
"""

import math
from decimal import Decimal, InvalidOperation
from typing import Annotated, Literal

import msgspec

from batchbench.errors import UsageError

MILLION = 1_000_000
BYTES_PER_TOKEN = 4.8  # measured on the probes' own prompts
FORMAT_TOKENS = 7  # what a chat format usually adds to one prompt
MAX_FORMAT_TOKENS = 32  # what a chat format adds to one prompt at most
LEARNT_MARGIN, LEARNT_TOKENS = 1.05, 8  # what is added to the input tokens that this run teaches
MAX_RATE = 10_000 * MILLION  # micro-dollars per million tokens; keeps sums below MAX_AMOUNT
MAX_AMOUNT = 2**62  # micro-dollars; fits into a 64-bit integer on disk
Limit = int | Literal["none"]  # micro-dollars that may be spent; none: no limit
Rate = Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE)]  # micro-dollars per million tokens


FREE_SERVER = "a server on this machine"  # the source of a price of 0 that no one has stated


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What one model charges, and where that was read."""

    input: Rate
    output: Rate
    source: str  # for messages: where and when it was read

    @property
    def priced(self) -> bool:
        """Whether the price is known. A server on this machine counts as free, but it may be a gateway that charges."""
        return bool(self.input or self.output) or self.source != FREE_SERVER

    def cost(self, input_tokens: int, output_tokens: int) -> int:
        """Micro-dollars for one answer; capped, because a provider may report any number of tokens."""
        return min(MAX_AMOUNT, -(-(input_tokens * self.input + output_tokens * self.output) // MILLION))

    def doubled(self) -> "Price":
        """The price of single calls where batches cost half of it."""
        return Price(input=2 * self.input, output=2 * self.output, source=self.source)

    def bound(self, prompt_bytes: int, max_tokens: int, tokens_per_byte: float | None = None) -> int:
        """The maximum cost of one answer: no answer has more than `max_tokens`, no input more than it can have."""
        return self.cost(max_input_tokens(prompt_bytes, tokens_per_byte), max_tokens)


def max_input_tokens(prompt_bytes: int, tokens_per_byte: float | None) -> int:
    """The most input tokens of a request: a token is at least a byte.

    With `tokens_per_byte`, which no request so far has exceeded, it is an expectation with a margin, and no proof.
    """
    proved = prompt_bytes + MAX_FORMAT_TOKENS
    if tokens_per_byte is None:
        return proved
    return min(proved, math.ceil(prompt_bytes * tokens_per_byte * LEARNT_MARGIN) + LEARNT_TOKENS)


def parse_price(text: str) -> Price:
    """`IN,OUT` in dollars per million tokens."""
    try:
        amounts = [Decimal(part) * MILLION for part in text.split(",")]
        if len(amounts) != 2 or any(
            not amount.is_finite() or not 0 <= amount <= MAX_RATE or amount != int(amount) for amount in amounts
        ):
            raise InvalidOperation
    except (ArithmeticError, ValueError):  # ArithmeticError: not a number, or one with too many digits
        raise UsageError(f"price {text!r} is not IN,OUT in dollars per million tokens, such as 0.075,0.30") from None
    return Price(input=int(amounts[0]), output=int(amounts[1]), source="--price")


def parse_budget(text: str) -> Limit:
    """Dollars, as micro-dollars; `none` is no limit."""
    if text == "none":
        return "none"
    try:
        amount = Decimal(text.removeprefix("$")) * MILLION
        if not amount.is_finite() or not 0 <= amount <= MAX_AMOUNT:
            raise InvalidOperation
        return int(amount)
    except (ArithmeticError, ValueError):
        raise UsageError(f"budget {text!r} is not an amount in dollars, such as 12.50, or none") from None


def likely_input_tokens(prompts: int, mean_bytes: float) -> int:
    """Estimated tokens of prompts of this mean length; not a bound."""
    return round(prompts * (mean_bytes / BYTES_PER_TOKEN + FORMAT_TOKENS))


def dollars(micro: int) -> str:
    """An amount for messages; below $0.10 with all six decimals."""
    return f"${micro / MILLION:,.2f}" if micro >= 100 * MILLION // 1000 else f"${micro / MILLION:,.6f}"


def shown(micro: int, *, priced: bool) -> str:
    """An amount for messages, unless it is 0 because the server has no price."""
    return dollars(micro) if priced or micro else "not priced"
