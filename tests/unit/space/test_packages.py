"""Packages that are not here, in plans for a device that is elsewhere."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.plan.device import device_facts
from autotune.plan.narrowing import narrowed
from autotune.space.bind import bind
from autotune.space.packages import NOT_ESTIMATED, packages_to_install
from tests.unit.builders import make_candidate, make_facts, make_job, make_space, shipped

FLASH = {"attn_implementation": "flash_attention_2"}
FLASHES = tuple(f"flash_attention_{number}" for number in (2, 3, 4))
HERE = make_facts("cuda")
ELSEWHERE = replace(HERE, stack=replace(HERE.stack, assumed=True))


def kernels(space):
    return {candidate["attn_implementation"] for candidate in space.candidates}


def test_elsewhere_every_package_is_taken_to_be_there_asked_for_or_not():
    space = make_space(make_job(), ELSEWHERE)
    assert kernels(space) == {"sdpa", *FLASHES, "eager"}
    assert {candidate["use_liger_kernel"] for candidate in space.candidates} == {False, True}


def test_a_plan_leaves_out_the_kernel_that_is_estimated_as_another():
    job = make_job()
    space = bind(narrowed(shipped(), job, ELSEWHERE), job, ELSEWHERE)
    assert kernels(space) == {"sdpa", "flash_attention_2"}
    job = make_job(recipe={"attn_implementation": ["sdpa", "flash_attention_3"]})
    space = bind(narrowed(shipped(), job, ELSEWHERE), job, ELSEWHERE)
    assert kernels(space) == {"sdpa", "flash_attention_3"}


@pytest.mark.parametrize("pins", [FLASH, {"use_liger_kernel": True}])
def test_on_this_machine_it_must_be_installed(pins):
    assert kernels(make_space(make_job(), HERE)) == {"sdpa", "eager"}
    with pytest.raises(UserError, match="is not installed"):
        make_space(make_job(fixed=pins), HERE)
    installed = make_facts("cuda", installed=True)
    assert make_space(make_job(fixed=pins), installed).candidates


def test_only_a_device_that_is_elsewhere_has_packages_that_are_not_here():
    from autotune.facts.device_kinds import find_kind

    kind = find_kind("h200")
    assert device_facts(HERE, kind).stack.assumed
    assert not device_facts(HERE, kind, assume=False).stack.assumed
    assert not device_facts(HERE, None).stack.assumed


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        (FLASH, ["flash-attn"]),
        ({"attn_implementation": "flash_attention_3"}, ["flash_attn_3"]),
        ({**FLASH, "use_liger_kernel": True}, ["flash-attn", "liger-kernel"]),
        ({"distributed_type": "MULTI_GPU", "use_liger_kernel": False}, []),
        ({"optim": "paged_adamw_8bit"}, ["bitsandbytes"]),
        ({"use_vllm": True}, ["vllm"]),
    ],
)
def test_what_has_to_be_installed_follows_from_the_candidate(knobs, names):
    assert packages_to_install(make_job(), ELSEWHERE, make_candidate(**knobs)) == names
    there = make_facts("cuda", installed=True)
    assert packages_to_install(make_job(), there, make_candidate(**knobs)) == []


def test_a_quantised_base_needs_its_package_once():
    candidate = make_candidate(optim="adamw_8bit")
    assert packages_to_install(make_job(tuning="qlora"), ELSEWHERE, candidate) == ["bitsandbytes"]


def test_what_no_trace_can_do_without_is_left_out_with_its_reason():
    job = make_job(recipe={"optim": ["adamw_torch_fused", "galore_adamw", "adamw_8bit"]})
    space = make_space(job, ELSEWHERE)
    assert {c["optim"] for c in space.candidates} == {"adamw_torch_fused", "adamw_8bit"}
    (reason,) = {exclusion.reason for exclusion in space.exclusions} & NOT_ESTIMATED
    assert "galore-torch" in reason
    here = make_space(job, HERE)
    assert {candidate["optim"] for candidate in here.candidates} == {"adamw_torch_fused"}
    assert "the package bitsandbytes is not installed" in {e.reason for e in here.exclusions}


def test_a_gpu_that_is_too_old_does_not_run_flash_attention():
    old = replace(ELSEWHERE, device=replace(ELSEWHERE.device, capability=(7, 5)))
    with pytest.raises(UserError, match="from Ampere on"):
        make_space(make_job(fixed=FLASH, precision="fp16"), old)


@pytest.mark.parametrize(("maker", "left"), [("AMD", {"flash_attention_2"}), ("Intel", set())])
def test_packages_that_do_not_exist_for_a_maker_are_not_assumed(maker, left):
    device = replace(ELSEWHERE.device, maker=maker, capability=None)
    space = make_space(make_job(), replace(ELSEWHERE, device=device))
    assert kernels(space) == {"sdpa", "eager"} | left
