import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.records.events import Work
from autotune.estimate.speed.calibration import calibrated
from autotune.estimate.speed.ceilings import (
    AttentionRate,
    Bandwidth,
    Ceilings,
    MatmulRate,
    OperatorRate,
)
from autotune.estimate.speed.shapes import ShapeTimes, nonnegative_fit
from autotune.estimate.speed.step_time import (
    FORWARD_SHARE,
    TERMS,
    TimeParts,
    in_sequence,
    step_parts,
    tokens_per_s,
    with_offloading,
    work_time,
)
from autotune.probe.throughput import MicroStep, throughput
from benchmarks.ranking import rank_correlation, top_k_regret

CEILINGS = Ceilings(
    device="some device",
    kind="cpu",
    measured=True,
    matmul=(MatmulRate("float32", 64, 64, 64, 1e9),),
    attention=tuple(
        AttentionRate("float32", 64, backward, masked, rate)
        for (backward, masked), rate in {
            (False, False): 1e9,
            (False, True): 2e9,
            (True, False): 4e9,
            (True, True): 8e9,
        }.items()
    ),
    bandwidth=(Bandwidth(1000, 1e9),),
    overhead_s_per_operator=1e-5,
)
SECONDS = st.floats(1e-6, 10.0)
PARTS = st.builds(
    TimeParts,
    matmul_s=SECONDS,
    attention_s=SECONDS,
    memory_s=SECONDS,
    overhead_s=SECONDS,
    transfer_s=SECONDS,
    overlapped=st.booleans(),
)


def work(kind="memory", **changes):
    fields = {
        "operator": "aten::some",
        "kind": kind,
        "dtype": "float32",
        "dims": (),
        "flops": 0,
        "moved_bytes": 0,
        "region": 0,
    }
    return Work(**{**fields, **changes})


# -- parts


def test_on_a_cpu_the_parts_add():
    parts = TimeParts(matmul_s=1, attention_s=2, memory_s=3, overhead_s=4)
    assert parts.total == 10
    assert parts.exposed() == parts


@pytest.mark.parametrize(
    "overhead, transfer, total", [(1, 1, 6), (9, 1, 9), (1, 8, 8), (9, 12, 12), (12, 9, 12)]
)
def test_on_cuda_the_longest_of_host_device_and_copies_counts(overhead, transfer, total):
    parts = TimeParts(
        matmul_s=1,
        attention_s=2,
        memory_s=3,
        overhead_s=overhead,
        transfer_s=transfer,
        overlapped=True,
    )
    assert parts.total == total


def test_what_is_offloaded_hides_behind_the_forward_pass_alone():
    busy = TimeParts(matmul_s=8, overhead_s=2, overlapped=True)
    assert with_offloading(busy, 1).total == 8 + 1  # out: hidden; back: waited for
    assert with_offloading(busy, 5).total == 8 + 2 * 5 - FORWARD_SHARE * 8
    assert with_offloading(busy, 5).device_s == 8
    assert not with_offloading(busy, 5).overlapped


@given(PARTS)
def test_exposed_parts_add_up_to_the_same_total(parts):
    exposed = parts.exposed()
    assert not exposed.overlapped
    assert exposed.total == pytest.approx(parts.total)
    assert exposed.device_s == parts.device_s


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_what_comes_one_after_the_other_does_not_overlap(parts):
    assert in_sequence(parts).total == pytest.approx(sum(part.total for part in parts))


# -- of work


def test_a_matmul_takes_its_operations_over_the_rate_and_its_dispatch():
    parts = work_time([(work("matmul", dims=(2, 8, 8, 8), flops=2_000_000), 3)], CEILINGS)
    assert parts.matmul_s == pytest.approx(3 * 2e6 / 1e9)
    assert parts.overhead_s == pytest.approx(3e-5)
    assert parts.memory_s == parts.attention_s == 0


@pytest.mark.parametrize(
    "kind, masked, seconds",
    [
        ("attention", False, 0.5 / 1e9),
        ("attention", True, 1 / 2e9),
        ("attention_backward", False, 2.5 * 0.5 / 4e9),
        ("attention_backward", True, 2.5 / 8e9),
    ],
)
def test_attention_computes_half_of_it_without_a_mask(kind, masked, seconds):
    flops = 4 * 2 * 4 * 64 * 64 * 16
    flops_of_half = int(flops * (2.5 if "backward" in kind else 1) * (1 if masked else 0.5))
    work_of_half = work(kind, dims=(2, 4, 64, 64, 16), flops=flops_of_half)
    for masked_argument in (masked, None):
        parts = work_time([(work_of_half, 1)], CEILINGS, masked=masked_argument)
        assert parts.attention_s == pytest.approx(flops * seconds)


def test_attention_of_cudnn_is_known_by_the_name_of_its_operator():
    fast = AttentionRate("float32", 64, False, True, 4e9, cudnn=True)
    ceilings = dataclasses.replace(CEILINGS, attention=(*CEILINGS.attention, fast))
    flops = 4 * 2 * 4 * 64 * 64 * 16
    name = "aten::_scaled_dot_product_cudnn_attention"
    masked = work("attention", dims=(2, 4, 64, 64, 16), flops=flops, operator=name)
    assert work_time([(masked, 1)], ceilings).attention_s == pytest.approx(flops / 4e9)


def test_other_operators_take_their_bytes_over_the_bandwidth_and_views_only_their_dispatch():
    parts = work_time([(work(moved_bytes=5000), 2), (work("view"), 10)], CEILINGS)
    assert parts.memory_s == pytest.approx(1e-5)
    assert parts.overhead_s == pytest.approx(12e-5)


def test_what_makes_indices_is_as_fast_as_logits_of_their_dtype_can_be_read():
    rates = {"bfloat16": 1e6, "float32": 1e7}
    rows = tuple(OperatorRate("aten::argmax", dtype, rate) for dtype, rate in rates.items())
    ceilings = dataclasses.replace(CEILINGS, operators=rows)
    argmax = work(operator="aten::argmax", dtype="int64", moved_bytes=1000)
    matmul = work("matmul", dtype="bfloat16", dims=(1, 8, 8, 8), flops=2000)
    loss = work(operator="aten::_log_softmax", moved_bytes=1)
    without = work_time([(argmax, 1), (matmul, 1)], ceilings)
    assert without.memory_s == pytest.approx(1e-3)
    assert work_time([(argmax, 1), (matmul, 1), (loss, 1)], ceilings).memory_s < 1.1e-4


def test_what_only_fake_tensors_dispatch_takes_no_time():
    assert work_time([(work("view", operator="prim::device"), 1000)], CEILINGS).total == 0


def test_times_overlap_where_the_device_is_not_the_host():
    on_cuda = dataclasses.replace(CEILINGS, kind="cuda")
    assert work_time([(work(moved_bytes=5000), 1)], on_cuda).overlapped


# -- over shapes

SHAPES = [(1, 48), (1, 512), (4, 128), (8, 256), (16, 384)]


def curve(rows, length, a, b, c):
    return a + b * rows * length + c * rows * length * length


@given(st.floats(0, 1e-2), st.floats(0, 1e-5), st.floats(0, 1e-8), st.sampled_from(TERMS))
def test_a_cost_of_the_known_form_is_recovered_at_every_shape(a, b, c, term):
    points = {shape: TimeParts(**{term: curve(*shape, a, b, c)}) for shape in SHAPES}
    times = ShapeTimes.fit(points)
    for shape in [(2, 64), (32, 512), (1, 2048)]:
        seconds = getattr(times.at(*shape), term)
        assert seconds == pytest.approx(curve(*shape, a, b, c), rel=1e-3, abs=1e-12)


@given(st.lists(SECONDS, min_size=5, max_size=5), st.booleans())
def test_at_the_traced_shapes_times_are_exact_and_nowhere_negative(seconds, overlapped):
    points = {
        shape: TimeParts(memory_s=time, overlapped=overlapped)
        for shape, time in zip(SHAPES, seconds, strict=True)
    }
    times = ShapeTimes.fit(points)
    assert all(times.at(*shape) == parts for shape, parts in points.items())
    for rows, length in itertools.product((1, 3, 64), (1, 100, 4096)):
        assert times.at(rows, length).memory_s >= 0
        assert times.at(rows, length).overlapped is overlapped


def test_what_grows_with_tokens_alone_is_not_taken_to_grow_with_the_length():
    """Traced are a short shape and long ones, and rates rise with the size, as a device's do."""

    def seconds(rows, length):
        return 5e-4 + 1.8e-4 * (rows * length) ** 0.95

    shapes = [(2, 256), (2, 1024), (4, 1024), (8, 1024), (16, 1024)]
    points = {shape: TimeParts(matmul_s=seconds(*shape)) for shape in shapes}
    times = ShapeTimes.fit(points, frozenset({"attention_s"}))
    for shape in [(16, 79), (16, 249), (16, 512), (1, 4000)]:
        assert times.at(*shape).matmul_s == pytest.approx(seconds(*shape), rel=0.03)


def test_a_curve_between_two_sizes_is_theirs_whatever_else_was_traced():
    near = {(4, 1024): TimeParts(memory_s=0.5), (8, 1024): TimeParts(memory_s=0.7)}
    far = {(1, 64): TimeParts(memory_s=0.4), (64, 1024): TimeParts(memory_s=9.0)}
    few, many = (ShapeTimes.fit(points, frozenset()) for points in (near, near | far))
    assert many.at(6, 1024).memory_s == pytest.approx(few.at(6, 1024).memory_s, rel=0.05)


def test_near_a_traced_shape_times_are_near_its_own():
    points = {shape: TimeParts(memory_s=1e-6 * n**1.3) for n, shape in enumerate(SHAPES, 1)}
    near = ShapeTimes.fit(points).at(8, 257).memory_s
    assert near == pytest.approx(points[8, 256].memory_s, rel=0.02)


def test_one_traced_shape_is_enough():
    times = ShapeTimes.fit({(2, 100): TimeParts(matmul_s=2.0, overhead_s=1.0)})
    assert times.at(2, 100) == TimeParts(matmul_s=2.0, overhead_s=1.0)
    # Twice the tokens are twice the work, but dispatched as often.
    assert times.at(4, 100) == TimeParts(matmul_s=4.0, overhead_s=1.0)
    assert times.at(1, 100) == TimeParts(matmul_s=1.0, overhead_s=1.0)


def test_no_traced_shape_is_refused():
    with pytest.raises(ValueError, match="no shape was traced"):
        ShapeTimes.fit({})


def test_a_fit_never_takes_a_negative_coefficient():
    falling = [((1.0, float(n)), 10.0 - n) for n in range(1, 6)]
    assert min(nonnegative_fit(falling)) >= 0


# -- of a step


@given(
    st.lists(st.tuples(st.integers(8, 512), SECONDS), min_size=1, max_size=10),
    SECONDS,
    st.integers(1, 16),
)
def test_a_step_is_what_a_probe_that_timed_the_whole_sample_would_say(micro, optimizer, steps):
    sample = [(size // 2, size) for size, _ in micro]
    timed = [
        MicroStep(position=n, tokens=size // 2, padded_tokens=size, seconds=seconds)
        for n, (size, seconds) in enumerate(micro)
    ]
    probed = throughput(timed, [optimizer], [0.0], sample, steps)
    parts = [TimeParts(memory_s=seconds) for _, seconds in micro]
    step = step_parts(parts, TimeParts(overhead_s=optimizer), steps).total
    assert step == pytest.approx(probed.step_time_s)
    rate = tokens_per_s(step, [tokens for tokens, _ in sample], steps)
    assert rate == pytest.approx(probed.tokens_per_s)


def test_on_cuda_each_micro_step_overlaps_on_its_own():
    host_bound = TimeParts(matmul_s=1, overhead_s=3, overlapped=True)
    device_bound = TimeParts(matmul_s=5, overhead_s=3, overlapped=True)
    step = step_parts([host_bound, device_bound], TimeParts(memory_s=1), 2)
    assert step.total == pytest.approx(3 + 5 + 1)
    assert step.overhead_s == pytest.approx(2)


# -- calibrated


def random_parts(count, seed=0):
    draw = random.Random(seed)
    names = ("matmul_s", "attention_s", "memory_s", "overhead_s")
    return [TimeParts(**{n: draw.uniform(0.05, 1.0) for n in names}) for _ in range(count)]


def test_nothing_measured_changes_nothing_and_leaves_wide_doubt():
    (parts,) = random_parts(1)
    coefficients = calibrated([], [])
    assert coefficients.time_s(parts) == pytest.approx(parts.total)
    assert coefficients.relative_uncertainty(parts) > 1
    assert set(coefficients.factors) == set(TERMS)


@given(st.floats(0.2, 5.0))
def test_one_measurement_moves_all_terms_about_alike(factor):
    first, second = random_parts(2)
    coefficients = calibrated([first], [factor * first.total])
    assert coefficients.time_s(first) == pytest.approx(factor * first.total, rel=0.05)
    assert coefficients.time_s(second) == pytest.approx(factor * second.total, rel=0.35)
    assert coefficients.relative_uncertainty(first) < 0.3


def test_many_measurements_tell_the_terms_apart():
    estimates = random_parts(40)
    truth = {"matmul_s": 1.5, "attention_s": 0.7, "memory_s": 2.0, "overhead_s": 1.0}
    measured_s = [sum(f * getattr(part, n) for n, f in truth.items()) for part in estimates]
    coefficients = calibrated(estimates, measured_s)
    for name, factor in truth.items():
        assert coefficients.factors[name] == pytest.approx(factor, rel=0.1)
    assert coefficients.measurements == 40


def test_doubt_shrinks_with_measurements_and_grows_with_their_scatter():
    estimates = random_parts(30)
    quiet = calibrated(estimates, [part.total for part in estimates])
    two = calibrated(estimates[:2], [part.total for part in estimates[:2]])
    draw = random.Random(1)
    noisy = calibrated(estimates, [part.total * math.exp(draw.gauss(0, 0.3)) for part in estimates])
    doubts = [
        coefficients.relative_uncertainty(estimates[0]) for coefficients in (quiet, two, noisy)
    ]
    assert doubts[0] < doubts[1] < doubts[2]
    assert noisy.residual == pytest.approx(0.3, rel=0.3)


def test_estimates_on_cuda_are_calibrated_by_what_nothing_hides():
    hidden = TimeParts(matmul_s=2.0, overhead_s=1.0, overlapped=True)
    coefficients = calibrated([hidden] * 5, [3.0] * 5)
    assert coefficients.time_s(hidden) == pytest.approx(3.0, rel=0.02)


def test_each_estimate_needs_its_measured_time():
    with pytest.raises(ValueError, match="2 estimates, but 1 measured"):
        calibrated(random_parts(2), [1.0])


# -- how estimates rank


def test_the_same_order_correlates_fully_and_the_reverse_not_at_all():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 99]) == pytest.approx(1)
    assert rank_correlation([4, 3, 2, 1], [10, 20, 30, 99]) == pytest.approx(-1)


def test_ties_share_their_rank():
    # By hand: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=20))
def test_rank_correlation_knows_only_the_order(pairs):
    estimated, measured_values = zip(*pairs, strict=True)
    rank = rank_correlation(estimated, measured_values)
    assert -1 - 1e-9 <= rank <= 1 + 1e-9
    assert rank_correlation([7 * value for value in estimated], measured_values) == pytest.approx(
        rank
    )
    assert rank_correlation(measured_values, estimated) == pytest.approx(rank)


def test_regret_is_how_much_slower_the_best_of_the_first_k_is():
    measured_times = [2.0, 1.5, 1.0]
    estimated = [1.0, 2.0, 3.0]
    assert [top_k_regret(estimated, measured_times, k) for k in (1, 2, 3, 10)] == [
        1.0,
        0.5,
        0.0,
        0.0,
    ]
    with pytest.raises(ValueError, match="k >= 1"):
        top_k_regret(estimated, measured_times, 0)
