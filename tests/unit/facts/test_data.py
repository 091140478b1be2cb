import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.data import draw_lengths

ASKED = (
    st.lists(st.integers(1, 5000), min_size=3, max_size=3)
    .map(sorted)
    .map(lambda three: dict(zip(("p50", "p99", "max"), three, strict=True)))
)


@given(ASKED, st.integers(1, 300))
def test_lengths_are_ascending_and_within_bounds(lengths, count):
    rows = draw_lengths(lengths, count)
    assert len(rows) == count
    assert rows == sorted(rows)
    assert rows[0] >= 1
    assert rows[-1] == lengths["max"]


@given(ASKED)
def test_the_quantiles_are_as_asked(lengths):
    rows = draw_lengths(lengths, 201)
    assert rows[100] == lengths["p50"]
    assert rows[198] == lengths["p99"]


@pytest.mark.parametrize("p99", [None, 5])
def test_of_max_alone_every_row_is_max_long(p99):
    assert draw_lengths({"max": 7, "p50": None, "p99": p99}, 4) == [7, 7, 7, 7]


def test_a_missing_p99_lies_geometrically_between_median_and_max():
    rows = draw_lengths({"max": 1600, "p50": 100, "p99": None}, 201)
    assert rows[198] == 400


def test_short_rows_mirror_the_long_ones():
    rows = draw_lengths({"max": 1000, "p50": 100, "p99": 500}, 201)
    assert rows[2] == 20
    assert rows[0] == 10


def test_a_single_row_is_the_longest():
    assert draw_lengths({"max": 1000, "p50": 100, "p99": 500}, 1) == [1000]
