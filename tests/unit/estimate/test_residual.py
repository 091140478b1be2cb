"""The memory of a device from a record, and what measurements say of such estimates."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from autotune.estimate.allocator.replay import Replay, on_cpu, replayed
from autotune.estimate.records.events import ALLOCATE, FREE, PHASE, live_bytes
from autotune.estimate.residual import Residual, refined

PAGE = 20 << 20  # of a segment that grows
MIB = 2**20
SIZES = st.one_of(st.integers(1, 4096), st.integers(MIB, 70 * MIB), st.sampled_from([512, MIB]))


@st.composite
def records(draw):
    """Storages that come and go, of two parts and in two phases."""
    events, live = [(PHASE, "micro-step", 0)], []
    for key in range(draw(st.integers(1, 25))):
        if key == 12:
            events.append((PHASE, "step", 0))
        part = draw(st.sampled_from(["weights", "activations"]))
        events.append((ALLOCATE, key, draw(SIZES), part, f"mm {key}", 0))
        live.append(key)
        while live and draw(st.booleans()):
            events.append((FREE, live.pop(draw(st.integers(0, len(live) - 1))), 0))
    return events


# -- a replay


def test_a_cache_that_the_program_empties_is_not_kept_for_what_follows():
    big = [(ALLOCATE, 1, 40 * MIB, "activations", "mm", 0), (FREE, 1, 0)]
    second_step = [(ALLOCATE, 2, 50 * MIB, "activations", "mm", 0)]
    cached = replayed([*big, *second_step], None, expandable_segments=False)
    emptied = replayed([*big, (FREE, -1, 0), *second_step], None, expandable_segments=False)
    assert (cached.reserved_bytes, emptied.reserved_bytes) == (90 * MIB, 50 * MIB)
    assert cached.use == emptied.use


@given(records(), st.booleans())
def test_without_a_limit_everything_fits(events, expandable):
    replay = replayed(events, None, expandable_segments=expandable)
    assert (replay.missing_bytes, replay.retries) == (None, 0)
    assert replay.use == live_bytes(events, 512)
    assert replay.use.peak_bytes % 512 == 0
    assert replay.reserved_bytes >= replay.use.peak_bytes
    assert replay.reserved_bytes % (2 * MIB) == 0


@given(records(), st.booleans(), st.integers(0, 100 * MIB))
def test_a_limit_that_is_not_reached_changes_nothing(events, expandable, room):
    free = replayed(events, None, expandable_segments=expandable)
    # What a growing segment has free at its end counts against the limit all the same.
    limit = free.reserved_bytes * (2 if expandable else 1) + PAGE * expandable + room
    assert replayed(events, limit, expandable_segments=expandable) == free


@given(records(), st.booleans(), st.floats(0.01, 1.2))
def test_the_verdict_and_its_figures_agree(events, expandable, share):
    free = replayed(events, None, expandable_segments=expandable)
    limit = int(free.reserved_bytes * share)
    limited = replayed(events, limit, expandable_segments=expandable)
    assert limited.use == free.use
    if limited.missing_bytes is None:
        assert limited.use.peak_bytes <= limited.reserved_bytes <= limit + PAGE * expandable
        assert (limited.retries > 0) == (free.reserved_bytes > limit) or expandable
    else:
        assert limited.missing_bytes > 0
        # The free end of a growing segment counts against the limit, as above.
        assert limited.reserved_bytes == free.reserved_bytes
        assert free.reserved_bytes * (2 if expandable else 1) + PAGE * expandable > limit
    if (
        limit + PAGE * expandable < limited.use.peak_bytes
    ):  # torch maps whole pages, beyond a limit too
        assert limited.missing_bytes == limited.use.peak_bytes - limit


def make(key, mib, part="activations"):
    return (ALLOCATE, key, mib * MIB, part, "mm", 0)


CACHED = [make(1, 40), (FREE, 1, 0), make(2, 50), (FREE, 2, 0), make(3, 60)]
"""40, 50 and 60 MiB one after the other: cached, they are 150; given back, 60."""


@pytest.mark.parametrize(
    ("limit", "reserved", "retries", "missing"),
    [(150, 150, 0, None), (149, 90, 1, None), (60, 60, 2, None), (59, 150, 0, 1)],
)
def test_a_tight_limit_costs_retries_before_it_fails(limit, reserved, retries, missing):
    replay = replayed(CACHED, limit * MIB, expandable_segments=False)
    missing_mib = None if replay.missing_bytes is None else replay.missing_bytes // MIB
    assert (replay.reserved_bytes // MIB, replay.retries, missing_mib) == (
        reserved,
        retries,
        missing,
    )
    assert replay.use.peak_bytes == 60 * MIB


def test_expandable_segments_waste_less():
    assert replayed(CACHED, None, expandable_segments=True).reserved_bytes == 60 * MIB


def test_fragments_can_be_missed_where_live_bytes_would_fit():
    # Storages of 2 MiB share segments of 20 MiB; of each segment one storage stays.
    events = [make(key, 2) for key in range(40)]
    events += [(FREE, key, 0) for key in range(40) if key % 10]
    events.append(make(99, 60))
    assert live_bytes(events).peak_bytes == 80 * MIB
    fixed_replay = replayed(events, 100 * MIB, expandable_segments=False)
    assert fixed_replay.missing_bytes == (80 + 60 - 100) * MIB
    assert fixed_replay.reserved_bytes == 140 * MIB
    assert replayed(events, 140 * MIB, expandable_segments=False).missing_bytes is None


def test_the_peak_is_told_with_its_parts_operator_and_phase():
    events = [
        make(1, 30, "weights"),
        (PHASE, "micro-step", 0),
        (ALLOCATE, 2, 50, "activations", "aten::mm", 0),
        (FREE, 2, 0),
        (PHASE, "step", 0),
        (ALLOCATE, 3, 30, "temporaries", "aten::add", 0),
    ]
    use = replayed(events, None, expandable_segments=False).use
    assert use.parts == {"weights": 30 * MIB, "activations": 512}
    assert (use.operator, use.phase) == ("aten::mm", "micro-step")
    assert use.phases == {
        "": 30 * MIB,
        "micro-step": 30 * MIB + 512,
        "step": 30 * MIB + 512,
    }


@given(records(), st.floats(0.1, 2.0))
def test_the_cpu_holds_what_tensors_take_to_the_byte(events, share):
    free = on_cpu(events, None)
    peak = live_bytes(events).peak_bytes
    assert free == Replay(
        use=live_bytes(events), reserved_bytes=peak, retries=0, missing_bytes=None
    )
    limit = int(peak * share)
    limited = on_cpu(events, limit)
    assert limited.missing_bytes == (peak - limit if peak > limit else None)
    assert (limited.use, limited.reserved_bytes, limited.retries) == (free.use, peak, 0)


# -- what measurements say

GIB = 2**30
ESTIMATES = st.floats(MIB, 100 * GIB)
RESIDUALS = st.builds(
    Residual,
    bias=st.floats(-0.2, 0.2),
    offset_bytes=st.floats(-GIB, GIB),
    relative_sigma=st.floats(0.001, 0.3),
    sigma_bytes=st.floats(1, GIB),
)
PAIRS = st.lists(st.tuples(ESTIMATES, ESTIMATES), min_size=1, max_size=8)


def refined_by(prior, pairs):
    return refined(
        prior, [estimate for estimate, _ in pairs], [measured_peak for _, measured_peak in pairs]
    )


def offsets(prior, pairs):
    """The offset that each measurement alone speaks for."""
    return [measured_peak - (1 + prior.bias) * estimate for estimate, measured_peak in pairs]


@given(RESIDUALS, PAIRS)
def test_more_measurements_make_the_offset_more_certain(prior, pairs):
    residuals = [refined_by(prior, pairs[:count]) for count in range(len(pairs) + 1)]
    assert residuals[0] is prior
    rounded = 1 + 1e-9
    assert all(
        earlier.sigma_bytes <= rounded * later.sigma_bytes for later, earlier in pairwise(residuals)
    )
    assert [residual.measurements for residual in residuals] == list(range(len(pairs) + 1))
    assert all(residual.bias == prior.bias for residual in residuals)


@given(RESIDUALS, PAIRS)
@example(
    Residual(offset_bytes=1e-5, relative_sigma=0.001, sigma_bytes=85502699.0),
    [(16.0 * GIB, 16.0 * GIB)],
)
def test_the_offset_moves_towards_the_measurements_and_not_beyond(prior, pairs):
    line = offsets(prior, pairs)
    offset = refined_by(prior, pairs).offset_bytes
    slack = 1e-6 * max(map(abs, (prior.offset_bytes, *line, 1.0)))
    slack += math.ulp(max(map(max, pairs)))  # no difference of these is known better
    assert (
        min(prior.offset_bytes, *line) - slack <= offset <= max(prior.offset_bytes, *line) + slack
    )
    first_offset = refined_by(prior, pairs[:1]).offset_bytes
    assert abs(first_offset - line[0]) <= abs(prior.offset_bytes - line[0]) + slack


@given(RESIDUALS, ESTIMATES, st.floats(-GIB, GIB), st.integers(1, 8))
def test_agreeing_measurements_pull_the_offset_closer_each_time(prior, estimate, difference, times):
    measured_peak = (1 + prior.bias) * estimate + difference
    assume(measured_peak > 0)
    slack = 1e-6 * (abs(difference) + abs(prior.offset_bytes) + 1e-6 * estimate)
    gaps = [
        abs(refined_by(prior, [(estimate, measured_peak)] * count).offset_bytes - difference)
        for count in range(times + 1)
    ]
    assert all(later <= earlier + slack for earlier, later in pairwise(gaps))


@given(RESIDUALS, st.lists(st.tuples(ESTIMATES, ESTIMATES), min_size=2, max_size=2))
def test_two_measurements_count_alike_together_or_one_by_one(prior, pairs):
    together = refined_by(prior, pairs)
    one_by_one = refined_by(refined_by(prior, pairs[:1]), pairs[1:])
    largest = max(map(abs, (prior.offset_bytes, *offsets(prior, pairs))))
    assert one_by_one.offset_bytes == pytest.approx(
        together.offset_bytes, abs=1e-6 * largest + 1e-3
    )
    assert one_by_one.sigma_bytes == pytest.approx(together.sigma_bytes)


def test_a_certain_prior_stays_and_an_uncertain_one_gives_way():
    pairs = [(GIB, GIB + 300 * MIB)]
    certain = Residual(offset_bytes=100 * MIB, sigma_bytes=MIB, relative_sigma=0.1)
    assert refined_by(certain, pairs).offset_bytes == pytest.approx(100 * MIB, rel=0.01)
    open_minded = Residual(offset_bytes=100 * MIB, sigma_bytes=100 * GIB, relative_sigma=0.001)
    assert refined_by(open_minded, pairs).offset_bytes == pytest.approx(300 * MIB, rel=0.01)


@given(RESIDUALS, ESTIMATES, st.integers(3, 30))
def test_measurements_without_spread_lower_the_noise_but_never_to_nothing(prior, estimate, count):
    measured_peak = prior.corrected(estimate)
    assume(measured_peak > 0)
    residual = refined_by(prior, [(estimate, measured_peak)] * count)
    assert residual.relative_sigma < prior.relative_sigma
    floor = prior.relative_sigma * math.sqrt(2 / (count + 2))
    assert residual.relative_sigma == pytest.approx(floor, rel=1e-3)


def test_measurements_that_scatter_raise_the_noise():
    prior = Residual(offset_bytes=0.0, sigma_bytes=MIB, relative_sigma=0.02)
    pairs = [(GIB, GIB * factor) for factor in (0.8, 1.2, 0.7, 1.3)]
    assert refined_by(prior, pairs).relative_sigma > 0.1
    assert refined_by(prior, pairs[:2]).relative_sigma == 0.02  # two do not tell


def test_what_grows_with_the_estimate_is_told_from_what_does_not():
    prior = Residual(
        offset_bytes=500.0 * MIB, sigma_bytes=64.0 * MIB, bias_sigma=0.2, relative_sigma=0.02
    )
    pairs = [(size * MIB, 1.3 * size * MIB + 520 * MIB) for size in (100, 400, 900)]
    residual = refined_by(prior, pairs)
    assert residual.bias == pytest.approx(0.3, abs=0.02)
    assert residual.offset_bytes == pytest.approx(520 * MIB, rel=0.02)
    assert residual.covariance < 0
    # Between what was measured it is surer than beyond, and surer than before.
    assert residual.sigma(500 * MIB) < residual.sigma(5000 * MIB) < prior.sigma(5000 * MIB)


def test_without_doubt_of_the_bias_it_stays():
    prior = Residual(bias=0.1, offset_bytes=0.0, sigma_bytes=MIB)
    residual = refined_by(prior, [(GIB, 2 * GIB)])
    assert (residual.bias, residual.bias_sigma, residual.covariance) == (0.1, 0.0, 0.0)


# -- probabilities


@given(RESIDUALS, ESTIMATES, st.lists(ESTIMATES, min_size=2, max_size=5))
@example(Residual(relative_sigma=0.0), 1e9, [1e9 - 1, 1e9, 1e9 + 1])
def test_more_memory_never_makes_running_out_more_probable(residual, estimate, limits):
    odds = [residual.probability_above(estimate, limit) for limit in sorted(limits)]
    assert all(0 <= p <= 1 for p in odds)
    assert all(lower >= higher for lower, higher in pairwise(odds))


@given(RESIDUALS, ESTIMATES)
def test_a_limit_at_what_is_expected_is_even_odds(residual, estimate):
    expected = residual.corrected(estimate)
    assert residual.probability_above(estimate, expected) == 0.5
    sigma = residual.sigma(estimate)
    assert residual.probability_above(estimate, expected + sigma) == pytest.approx(0.158655, 1e-3)
    assert residual.probability_above(estimate, expected - sigma) == pytest.approx(0.841345, 1e-3)


def test_figures_do_not_fall_out_of_step_with_mistakes_in_length():
    with pytest.raises(ValueError):
        refined(Residual(), [1.0, 2.0], [1.0])
