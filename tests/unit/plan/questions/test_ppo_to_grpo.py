"""A job of PPO by the methods that need no value model."""

import pytest

from autotune.facts import stack
from autotune.plan.questions.changes import single_changes
from autotune.plan.questions.ppo_to_grpo import WITHOUT_A_VALUE_MODEL, in_place_of_ppo
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_candidate, make_facts, make_job


def ppo(**changes):
    return make_job(method="ppo", max_length=None, **changes)


@pytest.mark.parametrize("method", WITHOUT_A_VALUE_MODEL)
def test_it_generates_as_many_tokens_and_has_a_space(method):
    job = ppo(
        global_batch_size=12,
        fixed={"response_length": 100, "num_mini_batches": 2, "dtype": "bfloat16"},
        training={"kl_coef": 0.1, "learning_rate": 1e-6, "whiten_rewards": True},
        reward_model_path="/models/judge",
    )
    other = in_place_of_ppo(job, method)
    assert other is not None
    assert other.fixed == {
        "max_completion_length": 100,
        "num_generations": 4,
        "dtype": "bfloat16",
        "beta": 0.1,
    }
    assert other.training == {"learning_rate": 1e-6}
    assert other.reward_model_path == "/models/judge"
    assert bind(load_definition(method), other, make_facts()).candidates


def test_what_the_job_leaves_open_is_what_ppo_would_do():
    other = in_place_of_ppo(ppo(global_batch_size=16), "rloo")
    assert other is not None
    assert other.fixed == {"max_completion_length": 53, "num_generations": 8, "beta": 0.05}
    assert other.reward_model_path == ppo().model
    listed = ppo(global_batch_size=16, recipe={"response_length": [32, 64]})
    other = in_place_of_ppo(listed, "rloo")
    assert other is not None
    assert other.recipe == {"max_completion_length": [32, 64]}
    assert other.fixed == {"num_generations": 8, "beta": 0.05}


def test_an_odd_batch_makes_up_no_groups():
    assert in_place_of_ppo(ppo(global_batch_size=9), "grpo") is None


def test_ppo_is_advised_to_do_with_fewer_models_or_fewer_rows():
    job = ppo(global_batch_size=16)
    candidate = make_candidate(response_length=64)
    texts = [change.text for change in single_changes(job, candidate)]
    assert "`response_length: 32`" in texts
    assert "`global_batch_size: 8`" in texts
    assert "`method: rloo` in place of `ppo`, with groups of 8" in texts
    assert "`method: grpo` in place of `ppo`, with groups of 8" in texts


def test_every_method_is_in_the_trl_that_this_project_pins():
    assert all(stack.missing(method) is None for method in stack.METHODS)
