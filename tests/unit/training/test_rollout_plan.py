"""Rounds of generation: which prompts, how many steps until all begins again, what they come to."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.probe.throughput import CycleTime, rollout_speed
from autotune.training.rollout_plan import Rollout, padded_tokens, rollout_of, rollout_plan


def rollout(**changes):
    fields = {
        "micro_batch": 2,
        "accumulation": 4,
        "completions": 8,
        "group": 4,
        "length": 10,
        "iterations": 1,
        "seed": 0,
    }
    return Rollout(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "rounds", "steps"),
    [
        ({}, 1, 1),
        ({"completions": 4}, 2, 1),
        ({"completions": 16}, 1, 2),
        ({"completions": 8, "iterations": 3}, 1, 3),
        ({"completions": 4, "iterations": 2}, 1, 1),
        ({"completions": 4, "iterations": 4}, 1, 2),
    ],
)
def test_a_cycle_ends_where_generation_and_steps_meet(changes, rounds, steps):
    cycle = rollout(**changes)
    assert (cycle.rounds, cycle.steps) == (rounds, steps)
    assert cycle.rounds * cycle.micro_steps == cycle.steps * cycle.accumulation


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.sampled_from([4, 8, 16]))
def test_a_plan_counts_every_token_of_a_cycle(lengths, completions):
    cycle = rollout(completions=completions)
    plan = rollout_plan(lengths, cycle, rows_total=100)
    assert len(plan.timed) == cycle.prompts * cycle.rounds
    assert plan.tokens == sum(4 * (lengths[i] + 10) for i in plan.timed)
    assert sorted((lengths[i] for i in plan.longest), reverse=True)[0] == max(lengths)
    mean = sum(lengths) / len(lengths)
    assert math.isclose(plan.tokens_per_epoch, 100 * 4 * (mean + 10))
    assert plan.tokens <= padded_tokens(plan, cycle, lengths)


def test_a_group_may_be_divided_among_devices():
    cycle = rollout(completions=2, micro_batch=1, accumulation=2)
    plan = rollout_plan([5, 9], cycle, rows_total=2)
    assert (cycle.prompts, len(plan.longest)) == (1, 1)
    assert plan.tokens == 2 * (9 + 10)


def test_the_longest_prompts_are_the_longest():
    plan = rollout_plan([3, 9, 1, 7], rollout(), rows_total=4)
    assert plan.longest == [1, 3]


def test_a_rollout_follows_from_the_configuration():
    config = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "generation_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 10,
    }
    assert rollout_of(config, devices=2, seed=0) == rollout()


def test_speed_is_what_a_step_takes_from_end_to_end():
    cycles = [
        CycleTime(seconds=s, generation_s=1.0, scoring_s=0.5, update_s=0.25, optimizer_s=s - 1.75)
        for s in (2.0, 2.2, 1.8)
    ]
    speed = rollout_speed(cycles, steps=2, tokens=120, completions=12)
    assert speed.tokens_per_s == pytest.approx(60)
    assert speed.completions_per_s == pytest.approx(6)
    assert speed.step_time_s == pytest.approx(1.0)
    parts = (speed.generation_s, speed.scoring_s, speed.update_s, speed.optimizer_step_time_s)
    assert sum(parts) == pytest.approx(speed.step_time_s)
    # Student's t of two degrees of freedom, a standard deviation of 10%, three cycles.
    assert speed.relative_uncertainty == pytest.approx(4.30 * 0.1 / math.sqrt(3))
    assert speed.optimistic_tokens_per_s > speed.tokens_per_s


def test_one_cycle_alone_tells_no_uncertainty():
    cycle = CycleTime(seconds=1, generation_s=1, scoring_s=0, update_s=0, optimizer_s=0)
    speed = rollout_speed([cycle], steps=1, tokens=10, completions=1)
    assert speed.relative_uncertainty is None
    assert speed.optimistic_tokens_per_s == 2 * speed.tokens_per_s
