"""Costs in time that are not counted: paged moments, an emptied cache."""

from dataclasses import replace

import pytest

from autotune.facts.device_kinds import facts_of, find_kind
from autotune.plan.candidates import with_emptied_cache
from autotune.plan.exchange import with_paging
from autotune.space.trl_config import settings
from tests.unit.builders import GIB, make_candidate, make_estimate, make_facts, make_job

LARGE = replace(
    make_facts("cuda", installed=True),
    device=facts_of(find_kind("rtx 3070"), 8),
)
MODEL = replace(LARGE.model, parameters=2 * 10**9, hidden_size=1000, vocab_size=100_000)
FACTS = replace(LARGE, model=MODEL)


def paged(peak_gib, optim="paged_adamw_8bit", facts=FACTS, **job):
    """An estimate of a step of a second, before and after."""
    estimate = replace(make_estimate(round(peak_gib * GIB), 800.0), step_time_s=1.0)
    candidate = make_candidate(optim=optim)
    return estimate, with_paging(estimate, settings(make_job(**job), facts, candidate))


def test_where_they_have_room_nothing_moves():
    estimate, after = paged(2.0, tuning="full")
    assert after is estimate


def test_where_they_have_not_the_time_of_paging_is_said_to_be_left_out():
    _, after = paged(6.0, tuning="full")
    assert after.left_out == ("paging",)
    assert paged(6.0, tuning="lora")[1].left_out == ()


@pytest.mark.parametrize("optim", ["adamw_8bit", "adamw_torch_fused"])
def test_other_optimizers_page_nothing(optim):
    estimate, after = paged(6.0, optim=optim, tuning="full")
    assert after is estimate


def test_the_time_to_empty_the_cache_is_said_to_be_left_out():
    estimate = replace(make_estimate(GIB, 800.0), step_time_s=1.0)
    often = settings(make_job(), FACTS, make_candidate(torch_empty_cache_steps=5))
    never = settings(make_job(), FACTS, make_candidate(torch_empty_cache_steps=None))
    assert with_emptied_cache(estimate, often).left_out == ("emptying the cache",)
    assert with_emptied_cache(estimate, never) is estimate
