"""Sequences that are longer than the model has positions for: which candidates go, what is said."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_facts, make_job, shipped


def facts_of(positions, *, fixed=True, **changes):
    facts = make_facts(**changes)
    model = replace(facts.model, max_positions=positions, fixed_positions=fixed)
    return replace(facts, model=model)


def space_of(job, facts):
    return bind(load_definition(job.method), job, facts)


def lengths_left(knob, job, facts):
    return {candidate[knob] for candidate in space_of(job, facts).candidates}


@pytest.mark.parametrize(
    ("method", "knob"),
    [("grpo", "max_completion_length"), ("ppo", "response_length")],
)
def test_only_completions_that_the_model_has_positions_for_are_left(method, knob):
    job = make_job(method=method, max_length=None, recipe={knob: [100, 124, 125]})
    facts = facts_of(1024, longest=900)
    assert lengths_left(knob, job, facts) == {100, 124}
    reasons = [exclusion.reason for exclusion in space_of(job, facts).exclusions]
    expected = "prompts of up to 900 and 125 new tokens are 1025, more than the 1024 positions"
    assert any(expected in reason for reason in reasons)
    assert lengths_left(knob, job, facts_of(1024, fixed=False, longest=900)) == {100, 124, 125}


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({"longest": 1100}, {512, 1024}),
        ({"longest": 900}, {512, 1024, 1500, None}),
        ({"longest": 900, "sampled": True}, {512, 1024, None}),
    ],
)
def test_rows_are_as_long_as_the_data_has_them_and_max_length_allows(changes, lengths):
    job = make_job(recipe={"max_length": [512, 1024, 1500, None]})
    assert lengths_left("max_length", job, facts_of(1024, **changes)) == lengths


def test_rows_that_are_wrapped_are_full_whatever_the_data():
    wrapping = {"packing_strategy": "wrapped"}
    for training, lengths in (({}, {512, 1500}), (wrapping, {512})):
        job = make_job(
            recipe={"max_length": [512, 1500]}, fixed={"packing": True}, training=training
        )
        assert lengths_left("max_length", job, facts_of(1024, longest=900)) == lengths


@pytest.mark.parametrize(
    ("job", "longest", "message"),
    [
        (
            make_job(max_length=2048),
            1500,
            "max_length: rows have up to 1500 tokens, more than the 1024 positions that some/model "
            "has\n  hint: the largest possible: 1024",
        ),
        (
            make_job(method="grpo", max_length=None),
            600,
            "max_completion_length: prompts of up to 600 and 512 new tokens are 1112, more than "
            "the 1024 positions that some/model has\n  hint: the largest possible: 424",
        ),
        (
            make_job(method="ppo", max_length=None),
            1024,
            "dataset: the longest prompt has 1024 tokens, which leaves none of the 1024 positions "
            "of some/model for a completion\n  hint: leave out prompts of more than 1023 tokens",
        ),
    ],
)
def test_where_no_length_is_left_the_largest_possible_is_named(job, longest, message):
    with pytest.raises(UserError) as error:
        space_of(job, facts_of(1024, longest=longest))
    assert message in str(error.value)


def test_a_model_without_a_table_goes_on_and_that_is_said_once():
    facts = facts_of(512, fixed=False, longest=900)
    (note,) = bind(shipped(), make_job(), facts).notes
    assert note.startswith("rows have up to 900 tokens, more than the 512 positions that some/")
    assert bind(shipped(), make_job(max_length=512), facts).notes == ()
    assert bind(shipped(), make_job(), facts_of(None, fixed=False)).notes == ()
