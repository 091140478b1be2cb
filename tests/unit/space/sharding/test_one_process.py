"""One process for which DeepSpeed offloads: asked for, planned, emitted and proposed."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.plan.exchange import NOT_MOVED, exchanged, with_exchange
from autotune.plan.host_memory import kept_on_host
from autotune.plan.questions.changes import offloading, single_changes
from autotune.plan.variants import variant_tasks
from autotune.probe.measure import probe_request
from autotune.report.words import describe
from autotune.search.rules.dominance import saves_more
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.memory_order import expected_leanness
from autotune.space.sharding.sharding import KNOBS, Sharding, engine_name, sharding_of
from autotune.space.trl_config import settings
from tests.unit.builders import GIB, make_candidate, make_estimate, make_facts, make_job, make_space

TWO = {"distributed_type": "DEEPSPEED", "zero_stage": 2, "offload_optimizer_device": "cpu"}
NAME = "ZeRO-2, optimizer on cpu"
THREE = {**TWO, "zero_stage": 3, "offload_param_device": "cpu"}


def space(kind="cuda", **fields):
    return make_space(make_job(devices={"kind": kind}, **fields), make_facts(kind))


def ways(space_of_job):
    return {engine_name(sharding_of(candidate.values, 1)) for candidate in space_of_job.candidates}


def refusal(**fields):
    with pytest.raises(UserError) as caught:
        space(**fields)
    (problem,) = caught.value.problems
    return problem.what


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "fixed",
    [{}, {"num_processes": 1}, {"overlap_comm": False}],
)
def test_nobody_who_does_not_ask_has_a_larger_space(kind, fixed):
    bound_space = space(kind, fixed=fixed)
    assert not {knob.name for knob in bound_space.knobs} & set(KNOBS)
    assert ways(bound_space) == {"a plain copy"}


@pytest.mark.parametrize("method", ["sft", "dpo", "kto", "reward", "grpo", "rloo"])
def test_a_job_of_one_device_may_ask_for_it(method):
    rewards = {"reward_funcs": ["get_soft_overlong_punishment"], "max_length": None}
    online = rewards if method in ("grpo", "rloo") else {}
    job = make_job(method=method, devices={"kind": "cuda"}, fixed=TWO, **online)
    bound_space = bind(load_definition(method), job, make_facts("cuda"))
    assert ways(bound_space) == {NAME}
    assert {candidate["num_processes"] for candidate in bound_space.candidates} == {1}


def test_with_and_without_are_compared_where_both_are_listed():
    bound_space = space(recipe={"distributed_type": ["NO", "DEEPSPEED"]}, fixed={"zero_stage": 2})
    assert ways(bound_space) == {NAME}
    bound_space = space(recipe={"offload_optimizer_device": ["none", "cpu"], "zero_stage": [0, 2]})
    assert ways(bound_space) == {"a plain copy", NAME}
    free = [knob.name for knob in bound_space.free_knobs]
    texts = [describe(candidate, free) for candidate in bound_space.candidates]
    assert all(("a plain copy" in text) != (NAME in text) for text in texts)
    assert "distributed_type" in free and "num_processes" not in free


def test_all_ways_to_offload_are_tried_where_only_the_place_is_named():
    names = ways(space(fixed={"offload_optimizer_device": "cpu"}))
    assert names == {
        *(f"ZeRO-{stage}, optimizer on cpu" for stage in (1, 2, 3)),
        "ZeRO-3, optimizer on cpu, weights on cpu",
    }


def test_what_divides_nothing_is_refused_and_says_why():
    nothing = {**TWO, "offload_optimizer_device": "none"}
    assert "ZeRO divides nothing where one process trains" in refusal(fixed=nothing)
    for kind in ("FSDP", "MULTI_GPU"):
        assert "One process shares nothing" in refusal(fixed={"distributed_type": kind})
    assert "ZeRO-1 and 2 divide the adapter alone" in refusal(tuning="qlora", fixed=TWO)


def test_a_refusal_names_what_decides_and_which_pins_to_let_go_of():
    """Not what else was taken out on the way, such as kernels that are not installed."""
    quantised = "Of a quantised base ZeRO-1 and 2 divide the adapter alone, which is small"
    assert refusal(tuning="qlora", fixed=TWO) == f"no configuration is possible: {quantised}"
    with pytest.raises(UserError) as caught:
        space(fixed={**TWO, "offload_param_device": "cpu"})
    assert str(caught.value) == (
        "job: no configuration is possible: Only ZeRO-3 offloads weights\n"
        "  hint: remove `zero_stage` or `offload_param_device` from the job"
    )


def test_one_process_of_several_devices_may_offload_too():
    job = make_job(devices={"kind": "cuda", "count": 4}, fixed={"num_processes": 1, **TWO})
    shardings = {
        sharding_of(candidate.values, 4)
        for candidate in make_space(job, make_facts("cuda")).candidates
    }
    assert {(sharding.num_processes, engine_name(sharding)) for sharding in shardings} == {
        (1, NAME)
    }


def test_the_probe_and_the_estimate_are_told_of_a_group_of_one(tmp_path):
    job = make_job(devices={"kind": "cpu"}, fixed=TWO)
    facts = make_facts()
    candidate = make_space(job, facts).candidates[0]
    request = probe_request(settings(job, facts, candidate), rows=tmp_path, limit=None)
    assert request.parsed_sharding.in_group and engine_name(request.parsed_sharding) == NAME
    assert request.deepspeed["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert request.config["use_cpu"] is False and request.global_batch == 16
    (task,) = variant_tasks([settings(job, facts, candidate)], rows=tmp_path, limit=GIB, cache=None)
    assert task.request.sharding == request.sharding and task.request.devices == 1


def test_a_step_is_longer_by_what_is_moved_to_the_host():
    estimate = replace(make_estimate(GIB), step_time_s=1.0, tokens_per_s=800.0)
    job, facts = make_job(precision="bf16"), make_facts("cuda")
    steps = {}
    for name, knobs in (("two", TWO), ("three", THREE)):
        candidate = make_candidate(num_processes=1, **knobs)
        estimate_with_exchange = with_exchange(estimate, settings(job, facts, candidate))
        steps[name] = estimate_with_exchange.step_time_s
        assert estimate_with_exchange.notes[-1].startswith("what is offloaded: ")
        assert "at 20 GB/s" in estimate_with_exchange.notes[-1]
        assert exchanged(settings(job, facts, candidate)).weights == 2 * facts.model.parameters
        host_bytes = kept_on_host(settings(job, facts, candidate), None)
        assert host_bytes >= (4 + 4 + 8) * facts.model.parameters
    assert 1.0 < steps["two"] < steps["three"]
    on_cpu = with_exchange(
        estimate, settings(job, make_facts(), make_candidate(num_processes=1, **TWO))
    )
    assert on_cpu.step_time_s == 1.0 and on_cpu.notes[-1] == NOT_MOVED


def test_a_plain_copy_that_fits_makes_offloading_pointless():
    plain, two, three = Sharding(), Sharding(**TWO), Sharding(**THREE)
    assert saves_more(two, plain) and saves_more(three, two)
    assert not saves_more(plain, two) and not saves_more(plain, plain)


def test_what_offloads_is_proposed_for_a_single_gpu():
    job = make_job(devices={"kind": "cuda"}, recipe={"zero_stage": [0, 3]})
    two, three = offloading(job, "cuda")
    assert (two.job.fixed, three.job.fixed) == (TWO, THREE)
    assert two.kind == three.kind == "speed" and two.field == three.field
    assert "`fixed: {distributed_type: DEEPSPEED, zero_stage: 2, offload_opt" in two.text
    assert not two.job.recipe and job.recipe
    facts = make_facts("cuda")
    lean = min(make_space(two.job, facts).candidates, key=expected_leanness)
    assert engine_name(sharding_of(lean.values, 1)) == NAME
    (change,) = offloading(two.job, "cuda")
    assert change.job.fixed == THREE
    assert not list(offloading(three.job, "cuda")), "it is there already"


def test_it_is_proposed_to_nobody_else():
    assert not list(offloading(make_job(), "cpu"))
    two_devices = make_job(devices={"kind": "cuda", "count": 2})
    assert not list(offloading(two_devices, "cuda")), "there it is searched"
    ppo = make_job(method="ppo", max_length=None, devices={"kind": "cuda"})
    assert not list(offloading(ppo, "cuda"))
    assert not any(
        "offload" in change.text for change in single_changes(make_job(), make_candidate())
    )
