"""Groups of completions: what may be generated together, and what a job is told that asks for the
impossible."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.batch import divisors, generation_batches, generation_problem
from autotune.space.batch_checks import batch_problems
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_shape import JobShape
from autotune.space.knobs import GENERATION_BATCH, GROUP, MICRO_BATCH
from autotune.space.trl_config import settings
from tests.unit.builders import make_facts, make_job
from tests.unit.loading import load, problems

REWARD = "reward_funcs: [get_soft_overlong_punishment]\n"
PINNED = {"optim": "adamw_torch_fused", "attn_implementation": "sdpa", "max_completion_length": 16}


def grpo(**changes):
    return make_job(
        method="grpo", max_length=None, reward_funcs=["get_soft_overlong_punishment"], **changes
    )


def grpo_facts(rows=5000):
    return make_facts(rows=rows)


@given(st.integers(1, 60), st.integers(2, 8))
def test_what_is_generated_within_a_step_is_whole_groups_that_divide_it(batch, group):
    batches = generation_batches(batch, group)
    assert batches == sorted((n for n in divisors(batch) if n % group == 0), reverse=True)


@given(st.integers(1, 48), st.integers(1, 96), st.integers(1, 12), st.integers(2, 8))
def test_a_generation_is_whole_groups_micro_batches_and_steps(batch, generation, per_step, group):
    divides = generation % group == 0 and generation % per_step == 0
    fits = batch % generation == 0 or generation % batch == 0
    problem = generation_problem(generation, global_batch=batch, per_step=per_step, group=group)
    assert (problem is None) == (divides and fits)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_space_holds_every_exact_way_of_making_up_the_batch(devices):
    job = grpo(global_batch_size=24, fixed={**PINNED, GROUP: 4})
    several_devices = job.devices.model_copy(update={"count": devices})
    job = job.model_copy(update={"devices": several_devices})
    space = bind(load_definition("grpo"), job, grpo_facts())
    ways = {(c.micro_batch, c[GENERATION_BATCH]) for c in space.candidates}
    assert ways == {
        (micro, generation)
        for micro, generation in product(range(1, 25), range(1, 25))
        if 24 % (micro * devices) == 0
        and 24 % generation == 0
        and generation % 4 == 0
        and generation % (micro * devices) == 0
    }
    assert space.default()[GENERATION_BATCH] == 24


def test_fewer_prompts_than_a_generation_wants_are_no_data_for_it():
    job = grpo(global_batch_size=24, fixed={**PINNED, GROUP: 4})
    space = bind(load_definition("grpo"), job, grpo_facts(rows=3))
    assert {c[GENERATION_BATCH] for c in space.candidates} == {12, 8, 4}


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("global_batch_size: 1\n", "global_batch_size", "the nearest possible batches: 8"),
        ("global_batch_size: 20\n", "global_batch_size", "16 or 24"),
        ("global_batch_size: 20\n", "global_batch_size", "nearest num_generations: 5 or 10"),
        ("fixed: {num_generations: 3}\n", "fixed", "nearest num_generations: 2 or 4"),
        ("fixed: {num_generations: 1}\n", "fixed", "at least 2"),
        ("recipe: {num_generations: [4, 5]}\n", "recipe", "15 or 20"),
        ("fixed: {generation_batch_size: 12}\n", "fixed", "8 or 16"),
        ("fixed: {generation_batch_size: 24}\n", "fixed", "16 or 32"),
        (
            "fixed: {per_device_train_batch_size: 16, generation_batch_size: 8}\n",
            "fixed",
            "possible values: 16",
        ),
    ],
)
def test_an_impossible_batch_names_the_nearest_possible_ones(folder, text, where, hint):
    reported = problems(folder, "method: grpo\n" + REWARD + text)
    assert len(reported) == 1
    assert hint in reported[0][2] and not reported[0][2].endswith(": ")


def test_a_generation_may_be_larger_than_the_batch_by_request(folder):
    text = "method: grpo\n" + REWARD + "fixed: {generation_batch_size: 32}\n"
    assert load(folder, text).fixed == {GENERATION_BATCH: 32}
    job = grpo(fixed={**PINNED, GENERATION_BATCH: 32, GROUP: 8})
    space = bind(load_definition("grpo"), job, grpo_facts())
    assert {c.micro_batch for c in space.candidates} == {1, 2, 4, 8, 16}


def test_only_by_request_is_anything_trained_on_an_older_policy():
    job = grpo(recipe={"global_batch_size": [16, 64]}, fixed={**PINNED, GROUP: 8})
    space = bind(load_definition("grpo"), job, grpo_facts())
    assert all(c[GENERATION_BATCH] <= c.global_batch for c in space.candidates)
    default = space.default()
    assert (default.global_batch, default[GENERATION_BATCH]) == (16, 16)


def test_what_is_generated_keeps_the_length_that_the_knob_says(folder):
    text = (
        "method: grpo\n" + REWARD + "training: {generation_kwargs: {max_new_tokens: 3, top_k: 5}}\n"
    )
    (problem,) = problems(folder, text)
    assert "max_new_tokens" in problem[1] and "max_completion_length" in problem[2]
    text = "method: grpo\n" + REWARD + "training: {generation_kwargs: {top_k: 5}}\n"
    assert load(folder, text).training == {"generation_kwargs": {"top_k": 5}}


def test_a_reward_model_is_looked_for_beside_the_job(folder):
    (folder / "judge").mkdir()
    job = load(folder, "method: grpo\nreward_model_path: ./judge\n")
    assert job.reward_model_path == str(folder / "judge")
    (problem,) = problems(folder, "method: grpo\nreward_model_path: ./nowhere\n")
    assert "there is no" in problem[1]


def test_groups_do_not_concern_who_generates_nothing():
    assert batch_problems(JobShape.of(make_job()), [1024], [1]) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (REWARD + "max_length: 512\n", "does not truncate"),
        (REWARD + "global_batch_size: 4096 tokens\n", "no fixed number of tokens"),
        (REWARD + "training: {steps_per_generation: 4}\n", "steps_per_generation"),
        (REWARD + "training: {vllm_tensor_parallel_size: 2}\n", "vllm_tensor_parallel_size"),
    ],
)
def test_what_online_trainers_cannot_do_is_refused(folder, text, what):
    (problem,) = problems(folder, "method: rloo\n" + text)
    assert what in problem[1]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("reward_funcs: [by_length]\n", "unknown reward function `by_length`"),
        (REWARD + "training: {reward_weights: [1.0, 0.5]}\n", "2 reward weights for 1 reward"),
        (REWARD + "fixed: {num_iterations: 0}\n", "must be a whole number above 0"),
        (REWARD + "fixed: {max_completion_length: 2.5}\n", "must be a whole number above 0"),
    ],
)
def test_what_can_be_known_beforehand_is_said_beforehand(folder, text, what):
    (problem,) = problems(folder, "method: grpo\n" + text)
    assert what in problem[1]


@pytest.mark.parametrize("text", [REWARD, "reward_model_path: some/model\n"])
def test_rewards_belong_to_online_trainers(folder, text):
    (problem,) = problems(folder, text)
    assert "`grpo`, `rloo`" in problem[1]
    assert load(folder, "method: grpo\n" + text).max_length is None


def test_the_configuration_names_the_rewards_and_no_length_of_rows():
    job = grpo(fixed={**PINNED, GROUP: 8}, reward_model_path="/models/reward")
    candidate = bind(load_definition("grpo"), job, grpo_facts()).candidates[0]
    config = settings(job, grpo_facts(), candidate, "out").config
    assert config["reward_funcs"] == ["get_soft_overlong_punishment"]
    assert config["reward_model_name_or_path"] == "/models/reward"
    assert "max_length" not in config
    assert config["generation_batch_size"] == candidate[GENERATION_BATCH]


@pytest.mark.parametrize(("micro", "rows"), [(2, 8), (8, 8), (16, 16)])
def test_an_evaluation_has_whole_groups(micro, rows):
    job = grpo(fixed={**PINNED, GROUP: 8, MICRO_BATCH: micro})
    candidate = bind(load_definition("grpo"), job, grpo_facts()).candidates[0]
    config = settings(job, grpo_facts(), candidate, "out").config
    assert config["per_device_eval_batch_size"] == rows
    other_job = job.model_copy(update={"training": {"num_generations_eval": 16}})
    config = settings(other_job, grpo_facts(), candidate, "out").config
    assert config["per_device_eval_batch_size"] == 16
