"""Packages that are not here, in plans for a device that is elsewhere."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.estimate.variant import traced_config
from autotune.plan.device import device_facts
from autotune.plan.narrowing import narrowed
from autotune.space.attention import is_downloaded
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


SERVED = replace(HERE.stack, hub_attention=FLASHES, kernels_range=">=0.18.2,<0.19.0")
WITHOUT_KERNELS = tuple(name for name in SERVED.absent if name != "kernels")


def test_kernels_of_the_hub_take_the_place_of_packages_that_are_compiled():
    elsewhere = replace(HERE, stack=replace(SERVED, assumed=True))
    for kernel in FLASHES:
        chosen = make_candidate(attn_implementation=kernel)
        assert packages_to_install(make_job(), elsewhere, chosen) == ["kernels>=0.18.2,<0.19.0"]
        assert is_downloaded(kernel, elsewhere)
    here = replace(HERE, stack=replace(SERVED, absent=WITHOUT_KERNELS))
    assert kernels(make_space(make_job(), here)) == {"sdpa", *FLASHES, "eager"}
    with pytest.raises(UserError, match=r"\(package kernels or flash-attn\) is not installed"):
        make_space(make_job(fixed=FLASH), replace(HERE, stack=SERVED))
    wheel = tuple(name for name in SERVED.absent if name != "flash-attn")
    with_wheel = replace(HERE, stack=replace(SERVED, absent=wheel))
    assert kernels(make_space(make_job(), with_wheel)) == {"sdpa", "flash_attention_2", "eager"}
    assert not is_downloaded("flash_attention_2", with_wheel)


@pytest.mark.parametrize(
    ("capability", "runs"), [((8, 0), "23"), ((9, 0), "234"), ((10, 0), "24"), ((12, 0), "24")]
)
def test_each_flash_attention_runs_where_its_kernels_do(capability, runs):
    device = replace(HERE.device, capability=capability)
    facts = replace(HERE, device=device, stack=replace(SERVED, assumed=True))
    found = {str(kernel)[-1] for kernel in kernels(make_space(make_job(), facts)) if "_" in kernel}
    assert found == set(runs)


def test_a_kernel_of_the_hub_is_passed_on_and_traced_as_what_its_name_tells():
    name = "kernels-community/flash-attn3@v1"
    facts = replace(HERE, stack=replace(SERVED, absent=WITHOUT_KERNELS))
    space = make_space(make_job(fixed={"attn_implementation": name}), facts)
    config = space.settings(space.candidates[0]).config
    assert config["attn_implementation"] == name
    traced = traced_config(config)
    assert traced.config["attn_implementation"] == "flash_attention_3"
    assert traced.replaced == ("attn_implementation",)
    knob = shipped().knob("attn_implementation")
    assert knob.allows(name) and not knob.allows("someone/attention")
    with pytest.raises(UserError, match="runs on GPUs only"):
        make_space(make_job(fixed={"attn_implementation": name}), make_facts())


def test_an_architecture_with_sinks_has_the_kernels_that_compute_them():
    lists = ("kernels-community/vllm-flash-attn3", "flash_attention_4")
    model = replace(HERE.model, sdpa=False, flash_kernels=lists)
    facts = replace(HERE, model=model, stack=replace(SERVED, assumed=True))
    assert kernels(make_space(make_job(), facts)) == {"eager"}  # which gives sinks a gradient
    job = make_job(tuning="lora")
    both = {"flash_attention_3", "flash_attention_4", "eager"}
    assert kernels(make_space(job, facts)) == both
    newer = replace(facts, device=replace(facts.device, capability=(12, 0)))
    assert kernels(make_space(job, newer)) == {"eager"}
    third = make_candidate(attn_implementation="flash_attention_3")
    assert packages_to_install(job, facts, third) == ["kernels>=0.18.2,<0.19.0"]
    packed = replace(facts, model=replace(model, dequantized_from="mxfp4"))
    assert kernels(make_space(job, packed)) == {"flash_attention_4", "eager"}
    fourth = make_candidate(attn_implementation="flash_attention_4")
    assert packages_to_install(job, packed, fourth) == ["flash-attn-4"]
    there = replace(packed, stack=replace(SERVED, absent=WITHOUT_KERNELS))
    with pytest.raises(UserError, match="pip uninstall kernels"):
        make_space(make_job(), there)
