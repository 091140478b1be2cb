from dataclasses import replace

import pytest

from autotune.search.recommend import NothingFits, Recommendation, recommend
from autotune.search.record import counts_as_probe, excess_bytes
from tests.unit.builders import GIB, bad, make_record, ok


def recommended(*measurements, allowed_bytes=None, **options) -> Recommendation:
    records = [make_record(number, measurement) for number, measurement in enumerate(measurements)]
    answer = recommend(records, allowed_bytes, **options)
    assert isinstance(answer, Recommendation)
    return answer


def nothing(*measurements, allowed_bytes=None, **options) -> NothingFits:
    records = [make_record(number, measurement) for number, measurement in enumerate(measurements)]
    answer = recommend(records, allowed_bytes, **options)
    assert isinstance(answer, NothingFits)
    return answer


def numbers(ranked):
    return [candidate.number for candidate in ranked]


def test_the_fastest_wins_and_the_others_follow_in_order():
    answer = recommended(ok(100), ok(300), bad("oom"), ok(200), None)
    assert answer.chosen.number == 1
    assert numbers(answer.runners_up) == [3, 0]
    assert answer.ties == ()
    assert answer.reasons[0] == "fastest stable candidate: 300 tokens/s (+-0.0%)"
    assert "50% faster than the next best (probe 3)" in answer.reasons


def test_among_ties_within_the_noise_the_least_memory_wins():
    answer = recommended(
        ok(100, 3 * GIB, noise=0.02), ok(98, GIB, noise=0.02), ok(97.5, 2 * GIB, noise=0.02), ok(90)
    )
    assert answer.chosen.number == 1
    assert numbers(answer.ties) == [0, 2]
    assert numbers(answer.runners_up) == [3]
    assert "within the noise of the fastest, 100 tokens/s (probe 0)" in answer.reasons[0]
    assert "takes 2 GiB less memory" in answer.reasons[0]


def test_noise_adds_up_as_independent_errors_do():
    assert recommended(ok(100, 2, noise=0.03), ok(95.8, 1, noise=0.03)).chosen.number == 1
    assert recommended(ok(100, 2, noise=0.03), ok(95.7, 1, noise=0.03)).chosen.number == 0
    assert recommended(ok(100, 2, noise=None), ok(99.9, 1, noise=None)).chosen.number == 0


def test_however_noisy_no_tie_is_wider_than_five_percent():
    assert recommended(ok(100, 2, noise=0.5), ok(95.1, 1, noise=0.5)).chosen.number == 1
    assert recommended(ok(100, 2, noise=0.5), ok(94.9, 1, noise=0.5)).chosen.number == 0


def test_a_noisy_candidate_does_not_win_over_one_that_is_known_to_be_faster():
    answer = recommended(ok(100, 3, noise=0.001), ok(99, 2, noise=0.001), ok(96, 1, noise=0.05))
    assert answer.chosen.number == 0
    assert numbers(answer.runners_up) == [1, 2]


def test_equal_candidates_are_decided_by_their_number():
    assert recommended(ok(100, 2), ok(100, 2), ok(100, 2)).chosen.number == 0


def test_what_leaves_too_little_memory_is_rejected():
    answer = recommended(ok(300, 9), ok(200, 8), ok(100, 7), allowed_bytes=8)
    assert answer.chosen.number == 1
    assert answer.rejected == {"it leaves less memory free than the headroom asks for": (0,)}
    assert answer.allowed_bytes == 8
    assert any("within the 8 B that the headroom leaves" in reason for reason in answer.reasons)


def test_every_failed_probe_is_rejected_by_its_outcome():
    answer = recommended(ok(1), bad("oom"), bad("crash"), bad("oom"), bad("stopped"), bad("busy"))
    assert answer.rejected == {"oom": (1, 3), "crash": (2,), "stopped": (4,), "busy": (5,)}


def test_a_bundle_that_failed_verification_is_passed_over():
    answer = recommended(ok(300), ok(200), ok(100), passed_over={0: "it hung"})
    assert answer.chosen.number == 1
    assert answer.passed_over == {0: "it hung"}
    assert answer.rejected == {"its bundle failed verification: it hung": (0,)}
    assert nothing(ok(300), passed_over={0: "it hung"}).nearest is None


def test_a_pinned_probe_is_taken_and_what_it_costs_is_said():
    answer = recommended(ok(200), ok(150), ok(100), pinned=2)
    assert answer.chosen.number == 2
    assert numbers(answer.runners_up) == [0, 1]
    assert "-50% tokens/s against probe 0" in answer.reasons[0]
    assert recommended(ok(200), ok(150), pinned=0).reasons[0].startswith("fastest")
    assert nothing(ok(200), bad("oom"), pinned=1).nearest is None


def test_when_nothing_fits_a_probe_that_ran_is_nearest_and_its_excess_exact():
    answer = nothing(ok(100, 12), bad("oom", missing_bytes=1), ok(50, 11), allowed_bytes=10)
    assert answer.nearest is not None
    assert answer.nearest.number == 2
    assert (answer.short_bytes, answer.short_is_lower_bound) == (1, False)


def test_when_nothing_even_ran_the_leanest_is_nearest_and_its_excess_a_lower_bound():
    lean = make_record(0, bad("oom", missing_bytes=50), micro_batch=1)
    large = make_record(1, bad("oom", missing_bytes=7), micro_batch=8)
    answer = recommend([large, lean], None)
    assert isinstance(answer, NothingFits)
    assert answer.nearest is lean
    assert (answer.short_bytes, answer.short_is_lower_bound) == (50, True)
    assert answer.rejected == {"oom": (1, 0)}


def test_when_no_probe_tells_of_memory_nothing_is_nearest():
    answer = nothing(bad("crash"), bad("timeout"), None)
    assert (answer.nearest, answer.short_bytes) == (None, None)
    assert nothing().rejected == {}


@pytest.mark.parametrize(
    ("measurement", "allowed_bytes", "excess"),
    [
        (ok(1, 12), 10, 2.0),
        (ok(1, 9), 10, -1.0),
        (ok(1, 9), None, None),
        (bad("oom", missing_bytes=5), None, 5.0),
        (bad("oom", missing_bytes=5, memory_limit_bytes=100), 90, 15.0),
        (bad("oom", memory_limit_bytes=100), 90, 11.0),
        (bad("oom"), 90, 1.0),
        (bad("crash"), 90, None),
        (replace(ok(1), peak_memory_bytes=None), 90, None),
    ],
)
def test_the_excess_is_what_a_candidate_takes_beyond_what_it_may(
    measurement, allowed_bytes, excess
):
    assert excess_bytes(measurement, allowed_bytes) == excess


def test_only_probes_that_ended_of_themselves_count():
    counts = [
        o
        for o in ("ok", "oom", "crash", "busy", "interrupted", "stopped")
        if counts_as_probe(make_record(0, bad(o)))
    ]
    assert counts == ["ok", "oom", "crash", "stopped"]
    assert not counts_as_probe(make_record(0, None))
