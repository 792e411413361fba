"""Templates and the fixed shuffle."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.errors import UsageError
from batchbench.probes.kit.templates import check_template, fill, fill_each, hashed, pick


def splitmix64(index: int) -> int:
    mask = (1 << 64) - 1
    z = ((index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_shuffle_has_the_published_first_values_of_splitmix64() -> None:
    # of the generator with seed 0
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert pl.DataFrame({"i": [0, 1, 2]}).select(hashed(pl.col("i")))["i"].to_list() == expected


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_the_shuffle_is_the_same_in_polars_and_in_python(indices: list[int]) -> None:
    frame = pl.DataFrame({"i": indices}, {"i": pl.UInt32})
    assert frame.select(hashed(pl.col("i")))["i"].to_list() == [splitmix64(index) for index in indices]


@given(st.text(), st.text())
def test_braces_in_values_have_no_meaning(name: str, role: str) -> None:
    frame = pl.DataFrame({"name": [name], "role": [role]})
    text = frame.select(fill("<{name}> {{x}} {role}{name}", {"name": pl.col("name"), "role": pl.col("role")})).item()
    assert text == f"<{name}> {{x}} {role}{name}"


def test_each_row_is_filled_with_its_own_template() -> None:
    frame = pl.DataFrame({"choice": [0, 1, 2, 1], "who": [1, 0, 1, 1]}, {"choice": pl.UInt8, "who": pl.UInt16})
    slots = {"who": (pl.col("who"), ["Ann", "Bob"])}
    texts = frame.select(pl.concat_str(fill_each(pl.col("choice"), ["a {who}{{!}}", "{who}?", ""], slots)))
    assert texts.to_series().to_list() == ["a Bob{!}", "Ann?", "", "Bob?"]


def test_pick_looks_values_up_by_index() -> None:
    frame = pl.DataFrame({"i": [2, 0]}, {"i": pl.UInt8})
    assert frame.select(pick(pl.col("i"), ["x", "y", "z"])).to_series().to_list() == ["z", "x"]


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("no slot at all", "lacks the slot {event}"),
        ("{event} {gendre}", "unknown slot {gendre}"),
        ("{event} {}", "unknown slot {}"),
        ("{event", "expected '}'"),
        ("{event!r}", "takes no format"),
        ("{event:>10}", "takes no format"),
        ("{event.__class__}", "unknown slot {event.__class__}"),
        ("{event}\0", "NUL"),
    ],
)
def test_an_invalid_template_is_refused(template: str, complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        check_template(template, ["event"], ["gender"])
    assert complaint in str(error.value)
