import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.probe.throughput import LEAST_DOUBT, MicroStep, throughput

SIZES = st.lists(st.integers(16, 4096), min_size=1, max_size=12)
SECONDS = st.floats(1e-4, 10.0)


def steps_of(sizes, seconds, repeats=1):
    return [
        MicroStep(position=n, tokens=size // 2, padded_tokens=size, seconds=time)
        for _ in range(repeats)
        for n, (size, time) in enumerate(zip(sizes, seconds, strict=True))
    ]


def sample_of(sizes):
    return [(size // 2, size) for size in sizes]


@given(SIZES, SIZES, st.floats(0, 0.1), st.floats(1e-6, 1e-3), st.integers(1, 64))
def test_a_linear_cost_is_recovered_over_the_whole_sample(timed, sample, a, b, accumulation):
    if len(set(timed)) < 2:
        timed = [64, 512]
    steps = steps_of(timed, [a + b * size for size in timed])
    result = throughput(steps, [0.5], [0.25], sample_of(sample), accumulation)
    expected = sum(a + b * size for size in sample) / len(sample)
    assert result.micro_step_time_s == pytest.approx(expected, rel=1e-6)


@given(SIZES.filter(lambda sizes: len(sizes) > 1), st.data())
def test_where_the_whole_sample_was_timed_its_total_is_the_measured_one(sizes, data):
    seconds = data.draw(st.lists(SECONDS, min_size=len(sizes), max_size=len(sizes)))
    result = throughput(steps_of(sizes, seconds), [0.1], [0.0], sample_of(sizes), 1)
    assert result.micro_step_time_s == pytest.approx(sum(seconds) / len(seconds))


def test_micro_batches_of_one_size_are_scaled_by_their_tokens():
    result = throughput(steps_of([100, 100], [2.0, 2.0]), [1.0], [0.0], [(50, 100), (150, 300)], 1)
    assert result.micro_step_time_s == pytest.approx(4.0)


def test_time_never_falls_with_size():
    falling = steps_of([100, 200, 300], [3.0, 2.0, 1.0])
    result = throughput(falling, [1.0], [0.0], sample_of([1000]), 1)
    assert result.micro_step_time_s == pytest.approx(2.0)
    # A line through these would be negative below 80 tokens: it goes through the origin instead.
    through_zero = steps_of([100, 200], [0.5, 3.0])
    result = throughput(through_zero, [1.0], [0.0], sample_of([30]), 1)
    assert result.micro_step_time_s == pytest.approx(3.5 * 30 / 300)


@given(SIZES, st.integers(1, 64), st.floats(0, 1), st.floats(0, 1))
def test_the_documented_formula_holds_for_any_accumulation(sizes, accumulation, wait, optimizer):
    steps = steps_of(sizes, [0.01 + size / 1000 for size in sizes])
    sample = sample_of(sizes)
    result = throughput(steps, [optimizer], [wait], sample, accumulation)
    assert result.step_time_s == pytest.approx(
        accumulation * (result.micro_step_time_s + result.data_wait_s)
        + result.optimizer_step_time_s
    )
    mean_tokens = sum(tokens for tokens, _ in sample) / len(sample)
    assert result.tokens_per_step == pytest.approx(accumulation * mean_tokens)
    assert result.tokens_per_s == pytest.approx(result.tokens_per_step / result.step_time_s)


@given(SIZES, st.floats(0.1, 10))
def test_a_machine_that_is_slower_by_a_factor_makes_fewer_tokens_by_it(sizes, factor):
    seconds = [0.02 + size / 1000 for size in sizes]
    first = throughput(steps_of(sizes, seconds), [0.3], [0.1], sample_of(sizes), 4)
    slow = [factor * time for time in seconds]
    second = throughput(steps_of(sizes, slow), [0.3 * factor], [0.1 * factor], sample_of(sizes), 4)
    assert second.tokens_per_s * factor == pytest.approx(first.tokens_per_s)


def test_an_outlier_does_not_move_the_result():
    steady = steps_of([100, 200], [1.0, 2.0], repeats=3)
    jolted = [*steady, *steps_of([100, 200], [50.0, 2.0])]
    waits = [0.1, 0.1, 9.0]
    for steps in (steady, jolted):
        result = throughput(steps, [0.5, 0.5, 7.0], waits, sample_of([150]), 2)
        assert result.step_time_s == pytest.approx(2 * (1.5 + 0.1) + 0.5)


def test_one_reading_has_no_uncertainty():
    result = throughput(steps_of([100, 200], [1.0, 2.0]), [0.5], [0.0], sample_of([150]), 1)
    assert result.relative_uncertainty is None
    assert result.optimistic_tokens_per_s == 2 * result.tokens_per_s


def scattered(repeats: int, scatter: float):
    steps = []
    for _ in range(repeats):
        steps += steps_of([100, 200], [1 - scatter, 2 * (1 - scatter)])
        steps += steps_of([100, 200], [1 + scatter, 2 * (1 + scatter)])
    return throughput(steps, [0.5], [0.0], sample_of([150]), 1)


def test_uncertainty_shrinks_with_repeats_and_grows_with_scatter():
    widths = [scattered(repeats, 0.1).relative_uncertainty for repeats in (1, 2, 4, 16)]
    assert widths == sorted(widths, reverse=True)
    assert widths[3] < widths[0] / 3
    assert scattered(2, 0.2).relative_uncertainty > 1.9 * scattered(2, 0.1).relative_uncertainty
    assert scattered(4, 0.0).relative_uncertainty == 0


def test_uncertainty_is_students_t_times_the_standard_error_of_the_sum():
    # Four readings of one micro-batch at 1 -+ 0.1: sigma is 0.1 * sqrt(4/3), its mean's half of it.
    steps = [*steps_of([100], [0.9], 2), *steps_of([100], [1.1], 2)]
    result = throughput(steps, [0.5], [0.0], sample_of([100]), 1)
    assert result.relative_uncertainty == pytest.approx(3.18 * 0.05 * (4 / 3) ** 0.5)


def test_optimism_is_the_upper_end_of_the_interval_and_never_less_than_the_least_doubt():
    sure, unsure = scattered(4, 0.0), scattered(2, 0.2)
    assert sure.optimistic_tokens_per_s == pytest.approx(sure.tokens_per_s * (1 + LEAST_DOUBT))
    assert unsure.optimistic_tokens_per_s == pytest.approx(
        unsure.tokens_per_s * (1 + unsure.relative_uncertainty)
    )


def test_the_padding_share_is_that_of_the_whole_sample():
    result = throughput(steps_of([100], [1.0]), [0.5], [0.0], [(60, 100), (240, 300)], 1)
    assert result.padding_share == pytest.approx(0.25)
