"""Packages that are not here, in plans for a device that is elsewhere."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from tests.unit.builders import make_facts, make_job, make_space

FLASH = {"attn_implementation": "flash_attention_2"}
ELSEWHERE = make_facts("cuda")
HERE = replace(ELSEWHERE, device=replace(ELSEWHERE.device, driver="570.1"))


@pytest.mark.parametrize(
    ("pins", "names"),
    [
        (FLASH, "flash-attn"),
        ({"attn_implementation": "flash_attention_3"}, "flash_attn_3"),
        ({"use_liger_kernel": True, "loss_type": "nll"}, "liger-kernel"),
        ({**FLASH, "use_liger_kernel": True}, "flash-attn and liger-kernel"),
    ],
)
def test_what_a_job_asks_for_is_taken_to_be_on_a_machine_that_is_elsewhere(pins, names):
    space = make_space(make_job(fixed=pins), ELSEWHERE)
    assert f"needs {names} on the training machine" in space.notes


def test_a_list_asks_for_each_of_its_values():
    job = make_job(recipe={"attn_implementation": ["sdpa", "flash_attention_2"]})
    kernels = {
        candidate["attn_implementation"] for candidate in make_space(job, ELSEWHERE).candidates
    }
    assert kernels == {"sdpa", "flash_attention_2"}


def test_what_nobody_asks_for_is_no_candidate_and_no_note():
    space = make_space(make_job(), ELSEWHERE)
    assert {candidate["attn_implementation"] for candidate in space.candidates} == {"sdpa", "eager"}
    assert not space.notes


@pytest.mark.parametrize("pins", [FLASH, {"use_liger_kernel": True}])
def test_on_this_machine_it_must_be_installed(pins):
    with pytest.raises(UserError, match="is not installed"):
        make_space(make_job(fixed=pins), HERE)
    installed = make_facts("cuda", installed=True)
    facts_there = replace(installed, device=HERE.device)
    assert make_space(make_job(fixed=pins), facts_there).notes == ()


def test_a_gpu_that_is_too_old_does_not_run_flash_attention():
    old = replace(ELSEWHERE, device=replace(ELSEWHERE.device, capability=(7, 5)))
    with pytest.raises(UserError, match="older than Ampere"):
        make_space(make_job(fixed=FLASH, precision="fp16"), old)
