"""Costs are whole micro-dollars, rounded up, and never exceed their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.core.money import Price, dollars, parse_budget, parse_price
from batchbench.errors import UsageError
from batchbench.providers import prices

small = st.integers(0, 10**9)


@given(small, small, st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_cost_is_the_exact_sum_rounded_up(price_in: int, price_out: int, used_in: int, used_out: int) -> None:
    exact = used_in * price_in + used_out * price_out
    cost = Price(input=price_in, output=price_out, source="test").cost(used_in, used_out)
    assert cost * 10**6 >= exact > (cost - 1) * 10**6


@given(small, small, st.text(max_size=200), st.integers(0, 10**4), st.integers(0, 10**4))
def test_an_answer_within_the_limits_costs_at_most_its_bound(
    price_in: int, price_out: int, prompt: str, used: int, limit: int
) -> None:
    price = Price(input=price_in, output=price_out, source="test")
    size = len(prompt.encode())
    assert price.cost(size, min(used, limit)) <= price.bound(size, limit)


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "a,b", "-1,2", "nan,1", "inf,1", "0.0000001,1"])
def test_an_invalid_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="dollars per million tokens"):
        parse_price(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1,5"])
def test_an_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="amount in dollars"):
        parse_budget(text)


def test_amounts_are_exact() -> None:
    assert parse_price("0.075,0.30") == Price(input=75_000, output=300_000, source="--price")
    assert parse_budget("$12.50") == 12_500_000
    assert (dollars(1234), dollars(12_500_000)) == ("$0.001234", "$12.50")


def test_the_price_table_has_batch_prices_and_an_error_for_unknown_ones() -> None:
    table = prices.snapshot()
    assert prices.batch_price(table, "openai", "gpt-4o-mini").cost(1_000_000, 0) == 75_000
    assert prices.batch_price(table, "openai", "gpt-4o-mini-2024-07-18") == prices.batch_price(
        table, "openai", "gpt-4o-mini"
    )
    assert prices.batch_price(table, "anthropic", "claude-haiku-4-5-20251001").output == 2_500_000
    with pytest.raises(UsageError, match="no price is known for openai:zzz: pass --price"):
        prices.batch_price(table, "openai", "zzz")
    with pytest.raises(UsageError, match=r"did you mean openai:gpt-4.1-mini\? If not, pass --price"):
        prices.batch_price(table, "openai", "gpt-41-mini")
    with pytest.raises(UsageError, match=r"did you mean openai:gpt-5\.5\?"):  # not gpt-5.5-pro, which cannot be asked
        prices.batch_price(table, "openai", "gpt-5.5-pr")
    with pytest.raises(UsageError, match="no price is known for chat:m: pass --price"):
        prices.batch_price(table, "chat", "m")
    with pytest.raises(UsageError, match="has no batch price"):
        prices.batch_price(table, "anthropic", "claude-3-haiku")


def test_prices_of_an_old_package_do_not_get_a_new_date() -> None:
    known = prices.Snapshot("genai-prices 0.2.10", "2026-11-16", {})
    assert prices.date_read("genai-prices 0.2.10", "2027-01-01", known) == "2026-11-16"
    assert prices.date_read("genai-prices 0.3.0", "2027-01-01", known) == "2027-01-01"
    with pytest.raises(
        UsageError, match=r"0\.2\.9 is older than the prices in use \(genai-prices 0\.2\.10\): pip install -U"
    ):
        prices.date_read("genai-prices 0.2.9", "2027-01-01", known)
