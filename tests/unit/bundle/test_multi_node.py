"""Several machines: planned with all their devices, over the slower of the links, not probed."""

import dataclasses

import pytest

from autotune.errors import UserError
from autotune.facts.device_kinds import device_kinds, facts_of, find_kind
from autotune.plan.exchange import UNKNOWN_NETWORK, exchanged, with_exchange
from autotune.probe.survey import refuse_untried
from autotune.space.sharding.sharding import sharding_of
from autotune.space.trl_config import settings
from tests.unit.builders import make_estimate, make_facts, make_job, make_space

PINS = {"distributed_type": "DEEPSPEED", "zero_stage": 3, "offload_optimizer_device": "none"}


def facts(kind="h100"):
    return dataclasses.replace(make_facts("cuda"), device=facts_of(find_kind(kind), cores=8))


def job_of(count, nodes, **changes):
    fields = {"global_batch_size": 32, "fixed": PINS, **changes}
    return make_job(devices={"count": count, "nodes": nodes}, **fields)


def link(count, nodes, kind="h100"):
    job, facts_here = job_of(count, nodes), facts(kind)
    return exchanged(
        settings(job, facts_here, make_space(job, facts_here).candidates[0])
    ).link_bytes_per_s


def test_every_device_of_every_machine_has_a_process():
    job = job_of(4, 2)
    for candidate in make_space(job, facts()).candidates:
        assert sharding_of(candidate.values, job.devices.total).num_processes == 8
        assert candidate["num_processes"] == 8
        assert candidate.global_batch * 8 == 32


def test_the_slower_of_the_links_counts():
    inside = find_kind("h100").interconnect.nvlink_bytes_per_s
    assert link(8, 1) == inside
    # Each GPU has a network card of its own; all of a machine's rings use them together.
    assert link(8, 2) == 8 * 50e9 < inside
    assert link(2, 2) == 2 * 50e9
    # Of two PCIe cards with a bridge nothing is known of their network: Ethernet.
    assert link(2, 2, "h100-pcie") == UNKNOWN_NETWORK


def test_a_plan_says_on_how_many_machines_and_is_slower_there():
    def lines_of_plan(count, nodes):
        job = job_of(count, nodes)
        candidate = make_space(job, facts()).candidates[0]
        estimate = make_estimate(500, tokens_per_s=100.0)
        estimate = dataclasses.replace(estimate, step_time_s=1.0)
        return with_exchange(estimate, settings(job, facts(), candidate))

    single_machine, two_machines = lines_of_plan(8, 1), lines_of_plan(4, 2)
    assert (
        two_machines.step_time_s > single_machine.step_time_s
        and two_machines.tokens_per_s < single_machine.tokens_per_s
    )
    assert two_machines.notes[-1].startswith("8 devices on 2 machines: ")
    assert "machines" not in single_machine.notes[-1]


def test_processes_are_spread_evenly_over_the_machines():
    with pytest.raises(UserError) as caught:
        make_space(job_of(4, 2, fixed={**PINS, "num_processes": 5}), facts())
    (problem,) = caught.value.problems
    assert problem.what == "5 processes cannot be spread evenly over 2 machines"
    assert problem.hint == "choose 4 or 6"
    job = job_of(4, 2, fixed={**PINS, "num_processes": 4})
    assert {candidate["num_processes"] for candidate in make_space(job, facts()).candidates} == {4}


def test_a_server_of_vllm_is_planned_on_one_machine():
    job = job_of(8, 2, method="grpo", max_length=None, fixed={"use_vllm": True})
    with pytest.raises(UserError, match="vLLM is planned on one machine"):
        make_space(job, facts())


def test_a_run_on_several_machines_is_refused_with_what_can_be_done():
    with pytest.raises(UserError, match="probes run on one machine; devices.nodes is 2") as caught:
        refuse_untried(job_of(1, 2))
    assert "--nodes 2" in caught.value.problems[0].hint
    refuse_untried(job_of(2, 1))


def test_every_figure_of_a_network_is_slower_than_the_links_inside():
    kinds = [kind for kind in device_kinds() if kind.interconnect.network_bytes_per_s]
    assert len(kinds) >= 5
    for kind in kinds:
        assert kind.interconnect.network_bytes_per_s < kind.interconnect.nvlink_bytes_per_s
        assert any("network" in source for source in kind.source), kind.name
