"""Pure: tokens to integer micro-dollars, upper bounds, and what a budget still allows.

Prices are micro-dollars per million tokens, so that 0.075 dollars per million is exactly 75,000. An answer's cost is
rounded up to the next micro-dollar; a reservation is never below what the answer can cost.
"""

from decimal import Decimal, InvalidOperation
from typing import Annotated

import msgspec

from batchbench.errors import UsageError

MILLION = 1_000_000
BYTES_PER_TOKEN = 4.8  # measured on the probes' own prompts
FORMAT_TOKENS = 7  # what a chat format usually adds to one prompt
OVERHEAD = 32  # tokens a provider's chat format may add to one prompt
DEAREST = 10_000 * MILLION  # that a million tokens may cost; sums of more would not fit into a journal
MAX_AMOUNT = 2**62  # micro-dollars that can be written down
Rate = Annotated[int, msgspec.Meta(ge=0, le=DEAREST)]  # micro-dollars per million tokens


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What one model charges, and who says so."""

    input: Rate
    output: Rate
    source: str  # for people: where it was read, and when

    def cost(self, input_tokens: int, output_tokens: int) -> int:
        """Micro-dollars for one answer; what a provider says it used may be any number at all."""
        return min(MAX_AMOUNT, -(-(input_tokens * self.input + output_tokens * self.output) // MILLION))

    def doubled(self) -> "Price":
        """What single calls cost, as far as every provider of batches goes: they are half the price."""
        return Price(input=2 * self.input, output=2 * self.output, source=self.source)

    def bound(self, prompt_bytes: int, max_tokens: int) -> int:
        """The most one answer can cost: a token is at least a byte, and no answer is longer than allowed."""
        return self.cost(prompt_bytes + OVERHEAD, max_tokens)


def parse_price(text: str) -> Price:
    """`IN,OUT` in dollars per million tokens."""
    try:
        amounts = [Decimal(part) * MILLION for part in text.split(",")]
        if len(amounts) != 2 or any(
            not amount.is_finite() or not 0 <= amount <= DEAREST or amount != int(amount) for amount in amounts
        ):
            raise InvalidOperation
    except (ArithmeticError, ValueError):  # not a number, or one of more digits than anybody has money
        raise UsageError(f"price {text!r} is not IN,OUT in dollars per million tokens, such as 0.075,0.30") from None
    return Price(input=int(amounts[0]), output=int(amounts[1]), source="--price")


def parse_budget(text: str) -> int:
    """Dollars, as micro-dollars."""
    try:
        amount = Decimal(text.removeprefix("$")) * MILLION
        if not amount.is_finite() or not 0 <= amount <= MAX_AMOUNT:
            raise InvalidOperation
        return int(amount)
    except (ArithmeticError, ValueError):
        raise UsageError(f"budget {text!r} is not an amount in dollars, such as 12.50") from None


def likely_input_tokens(prompts: int, mean_bytes: float) -> int:
    """About how many tokens prompts of this length are; an estimate, never a bound."""
    return round(prompts * (mean_bytes / BYTES_PER_TOKEN + FORMAT_TOKENS))


def dollars(micro: int) -> str:
    """For people: as many digits as a small sum needs."""
    return f"${micro / MILLION:,.2f}" if micro >= 100 * MILLION // 1000 else f"${micro / MILLION:,.6f}"
