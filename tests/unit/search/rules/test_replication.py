"""The fastest again, until their order is certain; several probes as one."""

import math
from dataclasses import replace

import pytest

from autotune.probe.outcome import disturbed
from autotune.search.recommend import Ranked, Recommendation, recommend
from autotune.search.record import Record
from autotune.search.repeats import PRIOR_SD, pooled, repeatability
from autotune.search.rules.replication import (
    MOST_READINGS,
    contenders,
    error_of_lag,
    gain_of_a_round,
    lag,
)
from tests.unit.builders import GIB, bad, make_candidate, make_record, ok


def record(number, measurement, candidate):
    return Record(number=number, candidate=candidate, measurement=measurement)


def known_to(readings):
    """The 95% half-width of a mean of probes that differ by 2%; a single one has its own."""
    return 1.96 * 0.02 / math.sqrt(readings) if readings > 1 else 0.0


def ranked(*speeds, readings=1):
    return [
        Ranked(
            number=n,
            candidate=make_candidate(),
            measurement=ok(speed, noise=known_to(readings)),
            numbers=tuple(range(readings)),
        )
        for n, speed in enumerate(speeds)
    ]


def test_a_clear_winner_is_not_measured_again():
    assert contenders(ranked(100, 90, 80), sd=0.02) == []
    assert contenders(ranked(100), sd=0.02) == []
    assert contenders([], sd=0.02) == []


def test_those_within_the_noise_are():
    group = contenders(ranked(100, 98, 97, 96, 90), sd=0.02)
    assert [candidate.number for candidate in group] == [0, 1, 2]


def test_more_readings_make_the_same_difference_certain():
    assert len(contenders(ranked(100, 96), sd=0.02)) == 2
    assert contenders(ranked(100, 96, readings=3), sd=0.02) == []


def test_it_is_a_tie_after_the_last_reading():
    assert contenders(ranked(100, 100, readings=MOST_READINGS), sd=0.02) == []


def test_the_error_of_a_difference_is_that_of_two_means():
    (first,), (second,) = ranked(100), ranked(90, readings=4)
    assert lag(first, second) == pytest.approx(math.log(100 / 90))
    assert error_of_lag(first, second, 0.02) == pytest.approx(0.02 * math.sqrt(1.25))


def test_a_probe_that_repeats_badly_inside_itself_is_measured_again():
    wide = [
        replace(candidate, measurement=ok(candidate.tokens_per_s, noise=0.25))
        for candidate in ranked(100, 93)
    ]
    assert len(contenders(wide, sd=0.02)) == 2
    assert contenders(ranked(100, 93), sd=0.02) == []


def test_a_round_can_win_less_the_further_they_are_apart():
    gains = [gain_of_a_round(ranked(100, speed_of_rival), 0.02) for speed_of_rival in (100, 98, 95)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx(0.02 * math.sqrt(2) / math.sqrt(2 * math.pi))


# -- several probes of one candidate


def test_without_repeats_the_noise_is_assumed_and_said_to_be():
    noise = repeatability([make_record(0, ok(100)), make_record(1, ok(50))])
    assert (noise.sd, noise.measured_sd, noise.repeats) == (PRIOR_SD, None, 0)


def test_repeats_tell_the_noise():
    candidate = make_candidate()
    noise = repeatability(
        [record(n, ok(100 * (1 + (-1) ** n * 0.1)), candidate) for n in range(40)]
    )
    assert noise.repeats == 39
    assert noise.measured_sd == pytest.approx(0.1, rel=0.03)
    assert noise.sd == pytest.approx(0.1, rel=0.06)
    small_sample = repeatability([record(n, ok(v), candidate) for n, v in enumerate((100, 110))])
    assert PRIOR_SD < small_sample.sd < small_sample.measured_sd


def test_several_probes_are_their_mean_speed_and_highest_peak():
    first = replace(ok(100, 3 * GIB), step_time_s=2.0, micro_step_fixed_s=0.5)
    mean = pooled([first, ok(81, 4 * GIB)], sd=0.02)
    assert mean.tokens_per_s == pytest.approx(90)
    assert mean.step_time_s == pytest.approx(2.0 * 100 / 90)
    assert mean.micro_step_fixed_s == pytest.approx(0.5 * 100 / 90)
    assert mean.peak_memory_bytes == 4 * GIB
    assert pooled([first], sd=0.5) is first


def test_the_mean_is_known_no_better_than_its_probes_and_their_distance_allow():
    alike = pooled([ok(100), ok(100)], sd=0.02)
    assert alike.relative_uncertainty == pytest.approx(1.96 * 0.02 / math.sqrt(2))
    wide = pooled([ok(100, noise=0.196), ok(100, noise=0.196)], sd=0.02)
    assert wide.relative_uncertainty == pytest.approx(1.96 * math.hypot(0.1, 0.02) / math.sqrt(2))
    distant = pooled([ok(100), ok(81)], sd=0.02)
    assert distant.relative_uncertainty == pytest.approx(1.96 * math.log(100 / 81) / 2)


@pytest.mark.usefixtures("quiet_counts")
def test_a_disturbed_probe_counts_nowhere():
    busy = disturbed(replace(ok(10), processor_wait_share=0.5))
    candidate = make_candidate()
    noise = repeatability([record(0, ok(100), candidate), record(1, busy, candidate)])
    assert noise.measured_sd is None


def test_however_noisy_the_machine_what_cannot_be_told_apart_is_a_tie():
    fast, slow = make_candidate(4, 4), make_candidate(2, 8)
    answer = recommended(record(0, ok(130, noise=0.8), fast), record(1, ok(100, noise=0.5), slow))
    assert answer.chosen.number == 0
    assert [candidate.number for candidate in answer.ties] == [1]
    assert "are within the noise of it" in answer.reasons[1]
    assert not [reason for reason in answer.reasons if "faster than the next best" in reason]


def recommended(*records, allowed_bytes=None) -> Recommendation:
    answer = recommend(records, allowed_bytes)
    assert isinstance(answer, Recommendation)
    return answer


def test_a_candidate_is_ranked_once_by_all_its_probes():
    fast, slow = make_candidate(4, 4), make_candidate(2, 8)
    answer = recommended(
        record(0, ok(110), fast), record(1, ok(100), slow), record(2, ok(80), fast)
    )
    assert answer.chosen.number == 1
    (second,) = (*answer.ties, *answer.runners_up)
    assert (second.number, second.readings) == (0, 2)


def test_a_candidate_that_fails_when_measured_again_is_not_recommended():
    fast, slow = make_candidate(4, 4), make_candidate(2, 8)
    answer = recommended(
        record(0, ok(110), fast),
        record(1, ok(100), slow),
        record(2, bad("oom"), fast),
        record(3, bad("busy"), slow),
        record(4, bad("stopped"), slow),
    )
    assert answer.chosen.number == 1
    assert answer.rejected["measured again, it was not as good: oom"] == (0,)
    assert answer.rejected["oom"] == (2,)


def speed(ranked_candidate):
    return -ranked_candidate.tokens_per_s


def test_a_stubbed_noisy_device_yields_a_tie_and_the_one_with_more_memory_left():
    """Two candidates of the same true speed, read with 3% noise, one of them leaner."""
    readings = [102, 104, 99, 98, 100, 103, 98, 101]
    lean, hungry = make_candidate(2, 8), make_candidate(4, 4)
    records = [
        record(n, ok(v, 2 * GIB if n % 2 else GIB, noise=0.01), lean if n % 2 == 0 else hungry)
        for n, v in enumerate(readings)
    ]
    answer = recommended(*records)
    assert answer.chosen.candidate == lean
    assert [candidate.candidate for candidate in answer.ties] == [hungry]
    assert "takes 1 GiB less memory" in answer.reasons[0]
    recommendation = recommended(*records[:4])
    to_measure_again = contenders(
        sorted(
            [recommendation.chosen, *recommendation.ties, *recommendation.runners_up], key=speed
        ),
        0.03,
    )
    keys = {candidate.candidate.key for candidate in to_measure_again}
    assert keys == {lean.key, hungry.key}  # two readings each do not tell
