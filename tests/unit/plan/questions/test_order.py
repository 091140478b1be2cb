"""Which of several candidates, and which of several lists of changes, are traced first."""

from dataclasses import replace

from autotune.plan.questions.changes import Change
from autotune.plan.questions.leanest import leanest_of_each_kind
from autotune.plan.questions.proposal import Proposal, smallest_of_each_field
from tests.unit.builders import make_candidate, make_facts, make_job, make_space

SPACE = make_space(make_job(), make_facts())


def proposal(*changes, space=True):
    named = tuple(
        Change(field=field, text=f"{field} {n}", kind="recipe", job=make_job())
        for field, n in changes
    )
    return Proposal(changes=named, job=make_job(), bind=lambda: SPACE if space else None)


def test_each_micro_batch_is_traced_once_with_and_once_without_checkpointing():
    ordered = [
        make_candidate(1, gradient_checkpointing=True, loss_type="chunked_nll"),
        make_candidate(1, gradient_checkpointing=True, loss_type="nll"),
        make_candidate(2, gradient_checkpointing=True),
        make_candidate(1, gradient_checkpointing=False),
        make_candidate(2, gradient_checkpointing=True, padding_free=True),
    ]
    assert leanest_of_each_kind(ordered) == [ordered[0], ordered[2], ordered[3]]


def test_of_lists_that_change_one_field_more_and_more_the_first_is_looked_at():
    lists = [
        proposal(("length", 1)),
        proposal(("length", 2)),
        proposal(("tuning", 1), ("length", 1)),
        proposal(("tuning", 1), ("length", 2)),
        proposal(("length", 1), ("tuning", 1)),
    ]
    assert list(smallest_of_each_field(lists)) == [lists[0], lists[2], lists[4]]


def test_of_lists_that_cannot_be_the_next_is_looked_at():
    lists = [proposal(("length", 1), space=False), proposal(("length", 2))]
    assert list(smallest_of_each_field(lists)) == [lists[1]]


def test_a_space_is_bound_only_where_it_matters():
    bound = []
    lists = [
        replace(proposal(("devices", n)), bind=lambda n=n: bound.append(n) or SPACE)
        for n in (2, 4, 8)
    ]
    (first,) = list(smallest_of_each_field(lists))
    assert first.lean in SPACE.candidates and first.candidates[0] in SPACE.candidates
    assert bound == [2]
