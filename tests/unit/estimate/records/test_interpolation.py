"""Whole numbers between known ones."""

import pytest

from autotune.estimate.records.shapes import lagrange


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_a_line_and_a_parabola_are_met_exactly(size: int) -> None:
    assert lagrange([2, 4], size).interpolate([3 * 2 + 7, 3 * 4 + 7]) == 3 * size + 7
    squares = [5 * n * n + n + 1 for n in (2, 4, 6)]
    assert lagrange([2, 4, 6], size).interpolate(squares) == 5 * size * size + size + 1


def test_between_whole_numbers_is_rounded_to_the_nearest() -> None:
    thirds = lagrange([0, 3], 1)
    assert [thirds.interpolate([0, top]) for top in (1, 2, 4, 5)] == [0, 1, 1, 2]


def test_no_size_is_below_nothing() -> None:
    assert lagrange([2, 4], 1).interpolate([0, 100]) == 0


def test_large_numbers_lose_nothing() -> None:
    unit = 10**18 + 1
    assert lagrange([2, 4], 1024).interpolate([2 * unit, 4 * unit]) == 1024 * unit
