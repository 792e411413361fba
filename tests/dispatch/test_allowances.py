"""How one budget is divided between runs."""

from hypothesis import given
from hypothesis import strategies as st

from batchbench.dispatch.budget import allowances

NEEDS = st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 10**9)), min_size=1, max_size=12)


@given(st.integers(0, 10**9), NEEDS)
def test_no_run_gets_more_than_it_needs_and_all_get_no_more_than_the_budget(
    budget: int, needs: list[tuple[float, int]]
) -> None:
    granted = allowances(budget, needs)
    assert sum(granted) <= budget
    assert all(0 <= part <= need for part, (_, need) in zip(granted, needs, strict=True))
    if sum(need for _, need in needs) <= budget:
        assert granted == [need for _, need in needs]
    elif sum(granted) < budget - len(needs):
        raise AssertionError("money is left although a run needs it")


def test_money_that_one_run_does_not_need_goes_to_the_others_by_weight() -> None:
    assert allowances(100, [(1, 10), (1, 500), (2, 500)]) == [10, 30, 60]
    assert allowances(100, [(3, 500), (1, 500)]) == [75, 25]
    assert allowances(0, [(1, 5)]) == [0]
