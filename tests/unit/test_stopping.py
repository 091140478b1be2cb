import pytest

from autotune.job import Budget
from autotune.search.stopping import stop_reason

BUDGET = Budget(minutes=2, probes=10)


@pytest.mark.parametrize(
    ("probes", "seconds", "left"), [(0, 0.0, 1), (9, 119.9, 1), (0, 119.9, 500)]
)
def test_the_search_goes_on_within_the_budget(probes, seconds, left):
    assert stop_reason(BUDGET, probes=probes, seconds=seconds, candidates_left=left) is None


@pytest.mark.parametrize(
    ("probes", "seconds", "left", "reason"),
    [
        (10, 0.0, 5, "the budget of 10 probes is used"),
        (11, 0.0, 5, "the budget of 10 probes is used"),
        (1, 120.0, 5, "the budget of 2 minutes is used"),
        (1, 0.0, 0, "every candidate of the space has been probed"),
        (10, 500.0, 0, "every candidate of the space has been probed"),
    ],
)
def test_the_search_ends_with_its_reason(probes, seconds, left, reason):
    assert stop_reason(BUDGET, probes=probes, seconds=seconds, candidates_left=left) == reason
