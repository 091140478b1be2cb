"""Groups of processes that hold ZeRO-3's weights once more: searched where machines meet."""

import dataclasses

import pytest

from autotune.errors import UserError
from autotune.plan.exchange import exchanged, with_exchange
from autotune.report.candidate_lines import describe
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.settings import settings
from autotune.space.sharding.deepspeed import deepspeed_of
from autotune.space.sharding.sharding import HPZ, sharding_of
from tests.unit.builders import make_estimate, make_facts, make_job, make_space
from tests.unit.bundle.test_multi_node import facts, job_of

THREE = {"distributed_type": "DEEPSPEED", "zero_stage": 3, "offload_optimizer_device": "none"}
ZERO = {**THREE, "offload_param_device": "none"}
FLAT = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0}


def sizes(count, nodes, **fixed):
    space = make_space(job_of(count, nodes, fixed=fixed), facts())
    return {candidate[HPZ] for candidate in space.candidates}


def refusals(words, count=8, nodes=1, **changes):
    with pytest.raises(UserError, match=words) as caught:
        make_space(job_of(count, nodes, **changes), facts())
    return caught.value.problems


def test_a_machine_is_a_group_where_there_are_several():
    assert sizes(8, 2, **ZERO) == {1, 8}
    assert sizes(4, 2, **ZERO, num_processes=4) == {1, 2}
    assert sizes(8, 1, **ZERO) == {1}
    assert sizes(1, 2, **ZERO) == {1}


def test_only_stage_3_with_its_weights_on_the_device_has_groups():
    job = job_of(2, 2, fixed={"optim": "adamw_torch"})
    space = make_space(job, facts())
    ways = {
        (candidate["zero_stage"], candidate["offload_param_device"])
        for candidate in space.candidates
    }
    assert {(0, "none"), (2, "none"), (3, "none"), (3, "cpu")} <= ways
    grouped_candidates = [candidate for candidate in space.candidates if candidate[HPZ] == 2]
    grouped = {
        (candidate["zero_stage"], candidate["offload_param_device"])
        for candidate in grouped_candidates
    }
    assert grouped == {(3, "none")}
    free = [knob.name for knob in space.free_knobs]
    for candidate in grouped_candidates:
        assert "in groups of 2" in describe(candidate, free)


def test_other_sizes_are_asked_for():
    assert sizes(8, 1, **{**ZERO, HPZ: 4}) == {4}
    space = make_space(job_of(8, 2, fixed=ZERO, recipe={HPZ: [1, 2, 4]}), facts())
    assert {candidate[HPZ] for candidate in space.candidates} == {1, 2, 4}


@pytest.mark.parametrize("size", [3, 8, 16])
def test_a_size_that_makes_no_groups_is_refused_with_those_that_do(size):
    (problem,) = refusals("do not divide", fixed={**ZERO, HPZ: size})
    assert problem.what == f"groups of {size} do not divide 8 processes into several"
    assert problem.hint == "choose 1 or 2 or 4"


def test_one_process_is_no_group_of_several():
    for count, fixed in ((1, {}), (4, {"num_processes": 1})):
        (problem,) = refusals("do not divide 1 process", count=count, fixed={**fixed, HPZ: 2})
        assert problem.hint == "choose 1"


def test_a_group_without_stage_3_or_beside_offloaded_weights_is_refused():
    refusals("Only ZeRO-3 divides weights", fixed={**ZERO, "zero_stage": 2, HPZ: 4})
    offloaded_values = {**THREE, "offload_param_device": "cpu", HPZ: 4}
    refusals("the second copy of weights where it offloads", fixed=offloaded_values)


def test_a_second_model_is_refused_as_deepspeed_refuses_it():
    def problem(tuning, **fixed):
        job = job_of(8, 1, method="dpo", tuning=tuning, fixed={**ZERO, HPZ: 4, **fixed})
        try:
            bind(load_definition("dpo"), job, facts())
        except UserError as error:
            return error.problems[0].what

    assert "fails at a second one" in problem("full", precompute_ref_log_probs=False)
    assert problem("full", precompute_ref_log_probs=True) is None  # then no reference is kept
    assert problem("lora") is None


def test_deepspeed_is_told_the_size():
    sharding = sharding_of({**ZERO, HPZ: 4}, 8)
    assert deepspeed_of(sharding, FLAT, make_facts("cuda"))["zero_optimization"][HPZ] == 4
    two = sharding_of({**ZERO, "zero_stage": 2}, 8)
    assert HPZ not in deepspeed_of(two, FLAT, make_facts("cuda"))["zero_optimization"]


def estimates_by_size(job, facts_here):
    first = {
        candidate[HPZ]: candidate for candidate in reversed(make_space(job, facts_here).candidates)
    }
    estimate = dataclasses.replace(make_estimate(500, tokens_per_s=100.0), step_time_s=1.0)
    return {
        size: with_exchange(estimate, settings(job, facts_here, candidate))
        for size, candidate in first.items()
    }


def test_a_group_gathers_over_the_links_of_its_machine():
    job, facts_here = job_of(2, 2, fixed=ZERO), facts("h100-pcie")
    job = job.model_copy(update={"recipe": {HPZ: [1, 2]}})
    large = dataclasses.replace(facts_here.model, parameters=7 * 10**9)
    facts_here = dataclasses.replace(facts_here, model=large)
    candidate = next(c for c in make_space(job, facts_here).candidates if c[HPZ] == 2)
    what = exchanged(settings(job, facts_here, candidate))
    assert what.link_bytes_per_s < what.group_bytes_per_s
    estimates = estimates_by_size(job, facts_here)
    assert estimates[2].step_time_s < estimates[1].step_time_s
    assert "in groups of 2 at" in estimates[2].notes[-1] and "groups" not in estimates[1].notes[-1]


def test_a_group_over_several_machines_gathers_over_the_network():
    job, facts_here = job_of(2, 4, fixed={**ZERO, HPZ: 4}), facts()
    what = exchanged(settings(job, facts_here, make_space(job, facts_here).candidates[0]))
    assert what.group_bytes_per_s == what.link_bytes_per_s


def test_a_small_model_stays_gathered_and_gains_nothing_but_between_micro_steps():
    """Adapters with checkpointing are the exception: there weights are gathered again."""
    facts_here = facts()
    small = dataclasses.replace(facts_here.model, parameters=10**8)
    facts_here = dataclasses.replace(facts_here, model=small)

    def kept_bytes(tuning, checkpointing):
        fixed = {**ZERO, "gradient_checkpointing": checkpointing}
        job = make_job(
            devices={"count": 8}, global_batch_size=32, tuning=tuning, fixed=fixed, precision="bf16"
        )
        return exchanged(
            settings(job, facts_here, make_space(job, facts_here).candidates[0])
        ).still_gathered

    assert (
        kept_bytes("full", True)
        == kept_bytes("full", False)
        == kept_bytes("lora", False)
        == 2 * 10**8
    )
    assert kept_bytes("lora", True) == 0
