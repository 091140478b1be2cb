"""The largest micro-batch that is safe is found with few estimates."""

from dataclasses import replace

import pytest

from autotune.plan.questions.bisection import NEARLY_LEANEST, Bisection
from autotune.plan.questions.proposal import Proposal
from tests.unit.builders import GIB, make_candidate, make_estimate, make_facts, make_job, make_space

CANDIDATES = [make_candidate(2**n, 1) for n in range(10)]


def estimates_of(candidates, largest):
    estimate = make_estimate(GIB)
    return {
        one.key: replace(estimate, fits=ok, p_oom=0.0 if ok else 1.0)
        for one in candidates
        for ok in [one.micro_batch <= largest]
    }


def searched(largest, at_once):
    """(the largest that is known to be safe, rounds, estimates) of a search."""
    job = make_job()
    space = replace(make_space(job, make_facts()), candidates=tuple(CANDIDATES))
    proposal = Proposal(changes=(), job=job, bind=lambda: space)
    known = estimates_of(CANDIDATES[:1], largest)
    search, rounds = Bisection(proposal, known), 0
    while following := search.following(at_once):
        assert len(following) == len({one.key for one in following}) <= max(at_once, NEARLY_LEANEST)
        assert not any(one.key in known for one in following)
        search.hear(estimates_of(following, largest))
        rounds += 1
    safe = [one.micro_batch for one in CANDIDATES if one.key in known and known[one.key].fits]
    return max(safe, default=0), rounds, len(known) - 1


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("largest", [2**n for n in range(10)])
def test_every_largest_is_found(largest, at_once):
    found, rounds, estimates = searched(largest, at_once)
    assert found == largest
    assert rounds <= {1: 4, 2: 3, 3: 2}[at_once] and estimates < len(CANDIDATES) - 1


def test_where_the_leanest_is_not_safe_only_its_neighbours_are_estimated():
    assert searched(0, 2) == (0, 1, NEARLY_LEANEST - 1)
