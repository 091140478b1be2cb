import pytest

from autotune.job.job import Budget
from autotune.search.record import Record
from autotune.search.rules.stopping import Outlook, same_crash, stop_reason
from tests.unit.builders import bad, make_candidate, ok

BUDGET = Budget(minutes=2, probes=10)


@pytest.mark.parametrize(
    ("probes", "seconds", "candidates_left"), [(0, 0.0, 1), (9, 119.9, 1), (0, 119.9, 500)]
)
def test_the_search_goes_on_within_the_budget(probes, seconds, candidates_left):
    assert (
        stop_reason(BUDGET, probes=probes, seconds=seconds, candidates_left=candidates_left) is None
    )


@pytest.mark.parametrize(
    ("probes", "seconds", "candidates_left", "reason"),
    [
        (10, 0.0, 5, "the budget of 10 probes is used"),
        (11, 0.0, 5, "the budget of 10 probes is used"),
        (1, 120.0, 5, "the budget of 2 minutes is used"),
        (1, 0.0, 0, "every candidate of the space has been probed or ruled out"),
        (10, 500.0, 0, "every candidate of the space has been probed or ruled out"),
    ],
)
def test_the_search_ends_with_its_reason(probes, seconds, candidates_left, reason):
    assert (
        stop_reason(BUDGET, probes=probes, seconds=seconds, candidates_left=candidates_left)
        == reason
    )


def reason_to_stop(outlook, probes=3):
    return stop_reason(BUDGET, probes=probes, seconds=9.0, candidates_left=5, outlook=outlook)


def test_it_ends_when_the_next_probe_costs_more_than_it_is_expected_to_save():
    assert reason_to_stop(Outlook(gain=0.02, job_s=3600.0, cost_s=10.0)) is None
    assert reason_to_stop(Outlook(gain=0.002, job_s=3600.0, cost_s=10.0)) == (
        "another probe costs about 10.0 s and is expected to save 7.2 s of a job of 60 min 0 s"
    )


def test_three_probes_are_made_in_any_case():
    hopeless = Outlook(gain=0.0, job_s=10.0, cost_s=10.0)
    assert [reason_to_stop(hopeless, probes) is None for probes in range(5)] == [True] * 3 + [
        False
    ] * 2


def test_where_nobody_knows_how_long_the_job_is_one_percent_is_worth_a_probe():
    assert reason_to_stop(Outlook(gain=0.02, job_s=None, cost_s=10.0)) is None
    assert reason_to_stop(Outlook(gain=0.005, job_s=None, cost_s=10.0)) == (
        "no candidate is expected to be more than 1% faster"
    )


SPACE = [make_candidate(n, dtype=dtype) for n in (1, 2) for dtype in ("float32", "bfloat16")]
(ONE, HALF_ALIKE, OTHER_SIZE, UNLIKE) = SPACE


def crash(message="cut", **fields):
    failure = {"type": "SafetensorError", "message": message, "stage": "build", "knobs": []}
    return bad("crash", failure={**failure, **fields})


def crashed(*pairs):
    records = [Record(number=n, candidate=c, measurement=m) for n, (c, m) in enumerate(pairs)]
    return same_crash(records, SPACE)


def test_two_unlike_candidates_that_crash_alike_end_the_search():
    assert crashed((ONE, crash()), (UNLIKE, crash())) == (
        "2 candidates without a setting in common crashed alike in stage build: "
        "SafetensorError: cut"
    )
    assert crashed((ONE, crash()), (OTHER_SIZE, crash())) is None, "the type may be the reason"
    assert crashed((ONE, crash()), (OTHER_SIZE, crash()), (HALF_ALIKE, crash())) is not None


@pytest.mark.parametrize(
    "second", [crash("else"), crash(stage="train"), crash(knobs=["dtype"]), bad("crash"), ok(9.0)]
)
def test_crashes_that_differ_or_have_a_reason_do_not(second):
    assert crashed((ONE, crash()), (UNLIKE, second)) is None
    assert crashed((UNLIKE, second), (ONE, crash())) is None
