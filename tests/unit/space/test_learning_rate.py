"""A global batch that moves, and what is said of the learning rate."""

import pytest

from autotune.errors import UserError
from autotune.space.bind import bind
from autotune.space.job_file.load import load_job
from autotune.space.learning_rate import scaling
from autotune.space.trl_config import settings
from tests.unit.builders import make_facts, make_job, make_space, shipped

BATCHES = {"global_batch_size": [8, 16, 64]}


def of_batch(space, batch):
    return next(
        candidate
        for candidate in space.candidates
        if candidate.values["global_batch_size"] == batch
    )


def space_of(job):
    return bind(shipped(), job, make_facts())


def test_only_the_batches_that_the_job_lists_are_searched_and_each_is_exact():
    assert {candidate.global_batch for candidate in make_space(make_job()).candidates} == {16}
    space = space_of(make_job(recipe=BATCHES))
    assert {candidate.global_batch for candidate in space.candidates} == {8, 16, 64}
    for candidate in space.candidates:
        assert candidate.global_batch == candidate.values["global_batch_size"]
        assert candidate.values["global_batch_size"] % candidate.micro_batch == 0


def test_a_moved_batch_is_told_of_and_changes_nothing():
    job = make_job(recipe=BATCHES, training={"learning_rate": 1e-4})
    space = space_of(job)
    assert scaling(job, of_batch(space, 16)) is None
    rate = scaling(job, of_batch(space, 64))
    assert (rate.reference_batch, rate.batch, rate.reference) == (16, 64, 1e-4)
    assert rate.proposed == pytest.approx(2e-4)
    assert rate.alternative == pytest.approx(4e-4)
    assert not rate.applied
    assert "Nothing was changed" in rate.lines()[1]
    assert settings(job, make_facts(), of_batch(space, 64), "out").config["learning_rate"] == 1e-4


def test_a_scaled_rate_is_in_the_configuration_where_the_job_asks():
    job = make_job(
        recipe=BATCHES, training={"learning_rate": 1e-4}, learning_rate_scaling="by_batch"
    )
    space = space_of(job)
    rates = {
        batch: settings(job, make_facts(), of_batch(space, batch), "out").config["learning_rate"]
        for batch in (8, 16, 64)
    }
    assert rates == pytest.approx({8: 1e-4 / 2**0.5, 16: 1e-4, 64: 2e-4})


def test_sgd_goes_by_the_linear_rule():
    job = make_job(recipe={**BATCHES, "optim": ["sgd"]}, training={"learning_rate": 1.0})
    rate = scaling(job, of_batch(space_of(job), 8))
    assert (rate.proposed, rate.alternative) == (0.5, pytest.approx(0.5**0.5))


def test_a_batch_in_tokens_is_held_against_rows_of_the_same_length():
    recipe = {"global_batch_size": ["8192 tokens", "16384 tokens"], "max_length": [512, 1024]}
    job = make_job(global_batch_size="8192 tokens", recipe=recipe)
    space = space_of(job)
    rates = {
        (candidate.values["max_length"], candidate.global_batch): scaling(job, candidate)
        for candidate in space.candidates
    }
    assert rates.keys() == {(512, 16), (512, 32), (1024, 8), (1024, 16)}
    assert rates[512, 16] is None and rates[1024, 8] is None
    assert rates[1024, 16].reference_batch == 8


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["recipe.global_batch_size=[8, 0]"], "must be positive"),
        (["recipe.global_batch_size=[8, many]"], "neither a whole number"),
        (["fixed.global_batch_size=8"], "a field of the job itself"),
        (
            ["recipe.global_batch_size=[8, '100 tokens']", "max_length=64"],
            "100 tokens is not a multiple of max_length",
        ),
    ],
)
def test_a_batch_that_cannot_be_is_refused(sets, words):
    base = ["model=some/model", "dataset={lengths: {max: 64}}"]
    with pytest.raises(UserError) as caught:
        load_job(None, [*base, *sets])
    assert words in str([problem.what for problem in caught.value.problems])
