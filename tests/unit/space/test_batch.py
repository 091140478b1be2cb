from hypothesis import given
from hypothesis import strategies as st

from autotune.space.batch import (
    accumulation,
    divisors,
    micro_batches,
    nearest_token_batches,
    nearest_values,
)

SIZES = st.integers(1, 5000)
DEVICES = st.integers(1, 16)


@given(SIZES)
def test_all_divisors_are_there_in_order_and_nothing_else(number):
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


@given(SIZES, DEVICES)
def test_every_pair_makes_the_global_batch_exactly(global_batch, devices):
    for micro_batch in micro_batches(global_batch, devices):
        count = accumulation(global_batch, devices, micro_batch)
        assert count is not None
        assert micro_batch * count * devices == global_batch


@given(SIZES, DEVICES)
def test_no_exact_pair_is_missing(global_batch, devices):
    exact = [
        micro_batch
        for micro_batch in range(1, global_batch + 1)
        if accumulation(global_batch, devices, micro_batch) is not None
    ]
    assert exact == micro_batches(global_batch, devices)


def test_a_global_batch_that_the_devices_do_not_divide_has_no_micro_batch():
    assert micro_batches(10, 4) == []
    assert accumulation(10, 4, 1) is None


@given(st.integers(-5, 60), st.lists(st.integers(1, 50), unique=True).map(sorted))
def test_the_nearest_values_are_the_neighbours(value, valid):
    nearest = nearest_values(value, valid)
    assert set(nearest) <= set(valid) - {value}
    for second in set(valid) - {value}:
        same_side = [n for n in nearest if (n < value) == (second < value)]
        assert abs(same_side[0] - value) <= abs(second - value)


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_the_nearest_token_batches_are_whole_rows_around_the_wish(tokens, max_length):
    nearest = nearest_token_batches(tokens, max_length)
    assert nearest
    for count in nearest:
        assert count > 0
        assert count % max_length == 0
        assert abs(count - tokens) <= max_length
