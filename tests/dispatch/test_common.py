"""One budget over several runs: pure arithmetic, for any wishes."""

from hypothesis import given
from hypothesis import strategies as st

from batchbench.dispatch.budget import allowances

WANTS = st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 10**9)), min_size=1, max_size=12)


@given(st.integers(0, 10**9), WANTS)
def test_nobody_gets_more_than_needed_and_all_together_no_more_than_there_is(
    budget: int, wants: list[tuple[float, int]]
) -> None:
    given = allowances(budget, wants)
    assert sum(given) <= budget
    assert all(0 <= part <= need for part, (_, need) in zip(given, wants, strict=True))
    if sum(need for _, need in wants) <= budget:
        assert given == [need for _, need in wants]
    elif sum(given) < budget - len(wants):
        raise AssertionError("money is left while somebody needs it")


def test_what_one_does_not_need_goes_to_the_others_by_their_weight() -> None:
    assert allowances(100, [(1, 10), (1, 500), (2, 500)]) == [10, 30, 60]
    assert allowances(100, [(3, 500), (1, 500)]) == [75, 25]
    assert allowances(0, [(1, 5)]) == [0]
