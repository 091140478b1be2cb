"""What is generated at once: the most first, less of it only where that is not safe."""

from dataclasses import replace

from autotune.plan.waves import next_wave
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import GIB, make_estimate, make_facts, make_job

SAFE, TIGHT = replace(make_estimate(GIB), p_oom=0.0), replace(make_estimate(GIB), p_oom=0.5)


def candidates_of(method, **changes):
    rewards = {"reward_funcs": ["rewards.short"]} if method == "grpo" else {}
    job = make_job(method=method, global_batch_size=32, **rewards, **changes)
    return bind(load_definition(method), job, make_facts("cuda")).candidates


def at_once(wave, knob="generation_batch_size"):
    return {one[knob] for one in wave}


def test_the_most_comes_first():
    assert at_once(next_wave(candidates_of("grpo"), {}, ())) == {32}


def test_less_of_it_is_looked_at_where_the_most_is_not_safe():
    candidates = candidates_of("grpo")
    first = next_wave(candidates, {}, ())
    tight = {one.key: TIGHT if one.micro_batch == 8 else SAFE for one in first}
    second = next_wave(candidates, tight, ())
    assert at_once(second) == {16} and {one.micro_batch for one in second} == {8}
    third = next_wave(candidates, tight | {one.key: SAFE for one in second}, ())
    assert third == []
    third = next_wave(candidates, tight | {one.key: TIGHT for one in second}, ())
    assert at_once(third) == {8}
    assert next_wave(candidates, tight | {one.key: TIGHT for one in (*second, *third)}, ()) == []


def test_of_ppo_it_is_the_chunk():
    wave = next_wave(candidates_of("ppo"), {}, ())
    assert at_once(wave, "local_rollout_forward_batch_size") == {32}


def test_values_that_the_job_names_are_all_looked_at():
    candidates = candidates_of("grpo")
    wave = next_wave(candidates, {}, {"generation_batch_size"})
    assert at_once(wave) == {8, 16, 32} and len(wave) == len(candidates)
