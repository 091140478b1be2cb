"""A draft while its traces run: what is looked at first is shown, and kept where the user stops."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from autotune.plan.draft import Draft, next_wave
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.process.child_server import ChildServer
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import GIB, make_estimate, make_facts, make_job


class Heard(Progress):
    def __init__(self) -> None:
        self.shown: list[int] = []

    def improved(self, best: Any, space: Any, devices: int) -> None:
        self.shown.append(best.candidate.micro_batch)


@dataclass(frozen=True, kw_only=True)
class Stopped(Estimator):
    """An estimator whose user presses Ctrl-C while the variants are traced, or earlier."""

    early: bool = False

    def estimates(self, candidates):
        if self.early:
            raise KeyboardInterrupt
        return {one.key: replace(make_estimate(GIB), tokens_per_s=10.0) for one in candidates}

    def replies(self, tasks, report=None):
        raise KeyboardInterrupt


def stopped(tmp_path, job, *, early=False):
    facts, heard = make_facts("cuda"), Heard()
    facts = replace(facts, model=replace(facts.model, path=str(tmp_path)))
    estimator = Stopped(
        job=job,
        facts=facts,
        limit=40 * GIB,
        server=ChildServer(tmp_path / "log"),
        folder=tmp_path,
        rows=tmp_path,
        progress=heard,
        early=early,
    )
    space = bind(load_definition(job.method), job, facts)
    return Draft(space, estimator), heard


def generating():
    return make_job(method="grpo", reward_funcs=["rewards.short"], global_batch_size=16)


def test_what_was_looked_at_first_is_kept_where_the_user_stops(tmp_path):
    draft, heard = stopped(tmp_path, generating())
    draft.trace()
    assert heard.shown == [1]
    assert draft.stopped and draft.left_out > 0
    checkpointing = {one["gradient_checkpointing"] for one in draft.space.candidates}
    assert checkpointing == {False, True} and len(draft.estimates) == 2


@pytest.mark.parametrize("early", [False, True])
def test_where_nothing_is_known_the_user_has_stopped_the_plan(tmp_path, early):
    job = generating() if early else make_job(global_batch_size=16)
    draft, heard = stopped(tmp_path, job, early=early)
    with pytest.raises(KeyboardInterrupt):
        draft.trace()
    assert not heard.shown


# -- what is generated at once: the most first, less of it only where that is not safe

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
