"""PPO's updates: how their completions may be divided, and what a job is told that cannot be."""

import itertools
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bundle.launch_script import missing_fields
from autotune.space.batch import divisors, quarters, update_problem
from autotune.space.batch_checks import batch_problems
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_shape import JobShape
from autotune.space.knobs import GLOBAL_BATCH, MICRO_BATCH, MINI_BATCHES, ROLLOUT_CHUNK
from autotune.space.trl_config import settings
from autotune.training.rollout_plan import rollout_of, rollout_plan
from tests.unit.builders import make_facts, make_job
from tests.unit.loading import load, problems

PINNED = {"optim": "adamw_torch_fused", "attn_implementation": "sdpa", "response_length": 16}


def ppo(**changes):
    return make_job(method="ppo", max_length=None, **changes)


def space_of(job, rows=5000):
    return bind(load_definition("ppo"), job, make_facts(rows=rows))


@given(st.integers(1, 600))
def test_quarters_divide_and_shrink_to_a_quarter(number):
    halves = quarters(number)
    assert halves[0] == number
    assert all(number % part == 0 for part in halves)
    assert all(
        small in (1, 64) or 4 * small <= large
        for large, small in zip(halves, halves[1:], strict=False)
    )
    assert len(halves) == 2 or halves == [1]


@given(st.integers(1, 64), st.data())
def test_an_update_is_divided_into_whole_parts(batch, data):
    micro = data.draw(st.sampled_from(divisors(batch)))
    chunk, parts = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 12))
    count = batch // micro
    problem = update_problem(batch, count, chunk=chunk, mini_batches=parts, whitened=False)
    assert (problem is None) == ((chunk > batch or batch % chunk == 0) and count % parts == 0)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_space_holds_every_exact_way_of_making_up_an_update(devices):
    job = ppo(global_batch_size=24, fixed={**PINNED, MINI_BATCHES: 3})
    several_devices = job.devices.model_copy(update={"count": devices})
    space = space_of(job.model_copy(update={"devices": several_devices}))
    local = 24 // devices
    assert {(c.micro_batch, c[ROLLOUT_CHUNK]) for c in space.candidates} == {
        (micro, chunk)
        for micro, chunk in product(divisors(local), quarters(local))
        if local // micro % 3 == 0
    }
    assert space.default()[ROLLOUT_CHUNK] == local


def test_whitened_rewards_need_mini_batches_of_eight():
    job = ppo(global_batch_size=16, recipe={MINI_BATCHES: [1, 2, 4]}, fixed=PINNED)
    job = job.model_copy(update={"training": {"whiten_rewards": True}})
    assert {c[MINI_BATCHES] for c in space_of(job).candidates} == {1, 2}


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (
            "global_batch_size: 4\n",
            "4 completions in 1 part(s) make 4",
            "possible global_batch_size: 8; or",
        ),
        (
            "global_batch_size: 16\nfixed: {num_mini_batches: 4}\n",
            "16 completions in 4 part(s) make 4",
            "possible global_batch_size: 32; the nearest num_mini_batches: 2; or",
        ),
        (
            "global_batch_size: 12\n"
            "fixed: {per_device_train_batch_size: 3, local_rollout_forward_batch_size: 4, "
            "num_mini_batches: 2}\n",
            "12 completions in 2 part(s) make 6",
            "possible global_batch_size: 24; the nearest num_mini_batches: 1; or",
        ),
    ],
)
def test_too_few_to_whiten_names_the_nearest_that_are_enough(folder, text, what, hint):
    whitened = "method: ppo\ntraining: {whiten_rewards: true}\n"
    ((_, message, way),) = problems(folder, whitened + text)
    assert what in message and "at least 8 completions" in message
    assert hint in way and "leave whiten_rewards out" in way


@given(st.data())
def test_the_batch_that_is_named_for_whitening_is_the_least_that_does(data):
    micro, parts = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    chunk = data.draw(st.integers(1, 40))
    fixed = {MICRO_BATCH: micro, MINI_BATCHES: parts, ROLLOUT_CHUNK: chunk}
    job = ppo(fixed=fixed, training={"whiten_rewards": True})

    def message_of(batch):
        return batch_problems(JobShape.of(job.with_batch(batch)), [None], [1])

    part_rows = micro * parts
    enough = next(n for n in itertools.count(part_rows, part_rows) if not message_of(n))
    for batch in range(part_rows, enough, part_rows):
        (problem,) = message_of(batch)
        if problem.where == "training.whiten_rewards":
            assert f"possible {GLOBAL_BATCH}: {enough};" in problem.hint


def test_data_that_make_no_update_are_refused_before_they_hang():
    with pytest.raises(Exception, match="fewer prompts than an update"):
        space_of(ppo(global_batch_size=16, fixed=PINNED), rows=15)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("fixed: {num_mini_batches: 3}\n", "possible values: 2 or 4"),
        ("fixed: {per_device_train_batch_size: 8, num_mini_batches: 4}\n", "possible values: 2"),
        ("recipe: {num_mini_batches: [1, 5]}\n", "possible values: 4 or 8"),
        ("fixed: {local_rollout_forward_batch_size: 6}\n", "possible values: 4 or 8"),
    ],
)
def test_an_impossible_update_names_the_nearest_possible_ones(folder, text, hint):
    (problem,) = problems(folder, "method: ppo\n" + text)
    assert hint in problem[2]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("reward_funcs: [accuracy_reward]\n", "`reward_funcs` is for `grpo`"),
        ("max_length: 512\n", "does not truncate"),
        ("training: {max_grad_norm: 0.5}\n", "max_grad_norm"),
        ("training: {total_episodes: 1000}\n", "total_episodes"),
        ("training: {reward_model_path: mine}\n", "reward_model_path"),
        ("fixed: {response_length: 0}\n", "must be a whole number above 0"),
        ("fixed: {num_ppo_epochs: 1.5}\n", "must be a whole number above 0"),
        ("fixed: {copy_reference: true}\ntuning: full\n", "copy_reference"),
    ],
)
def test_what_ppo_cannot_do_is_refused(folder, text, what):
    (problem,) = problems(folder, "method: ppo\n" + text)
    assert what in problem[1]


def test_all_that_its_script_reads_may_be_given(folder):
    text = "method: ppo\ntraining: {trust_remote_code: true, kl_coef: 0.1, max_steps: 50}\n"
    assert load(folder, text).training["kl_coef"] == 0.1


def test_the_configuration_names_its_models_and_what_is_missing():
    job, facts = ppo(fixed={**PINNED, MICRO_BATCH: 4}), make_facts(rows=5000)
    candidate = space_of(job).candidates[0]
    assert missing_fields(settings(job, facts, candidate, "out")) == ("reward_model_path",)
    job_with_model = job.model_copy(update={"reward_model_path": "/models/judge"})
    chosen = settings(job_with_model, facts, candidate, "out")
    assert chosen.config["reward_model_path"] == "/models/judge"
    assert missing_fields(chosen) == ()


@pytest.mark.parametrize("tuning", ["full", "lora", "qlora"])
def test_the_value_model_is_trained_whole_which_fp16_weights_cannot_be(tuning):
    job = ppo(tuning=tuning, recipe={"dtype": ["float16", "float32"]}, fixed=PINNED)
    space = bind(load_definition("ppo"), job, make_facts("cuda", capability=(7, 5)))
    assert {candidate["dtype"] for candidate in space.candidates} == {"float32"}


def test_a_step_is_an_update_with_all_its_epochs():
    config = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    config |= {"num_ppo_epochs": 3, "response_length": 10, ROLLOUT_CHUNK: 4}
    rollout = rollout_of(config, devices=1, seed=0)
    assert (rollout.rounds, rollout.steps, rollout.micro_steps) == (1, 1, 12)
    assert (rollout.prompts, rollout.generations) == (8, 2)
    plan = rollout_plan([5] * 20, rollout, rows_total=20)
    assert plan.tokens == 8 * 15
    assert plan.tokens_per_epoch == 20 * 15
