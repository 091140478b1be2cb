"""The time in which the moments of paged optimizers come and go."""

from dataclasses import replace

import pytest

from autotune.estimate.speed.step_time import TimeParts
from autotune.facts.device_kinds import facts_of, find_kind
from autotune.plan.candidates import with_emptied_cache
from autotune.plan.exchange import moments_bytes, with_paging
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
    estimate = replace(
        make_estimate(round(peak_gib * GIB), 800.0),
        step_time_s=1.0,
        time_parts=TimeParts(matmul_s=1.0),
    )
    candidate = make_candidate(optim=optim)
    return estimate, with_paging(estimate, settings(make_job(**job), facts, candidate))


@pytest.mark.parametrize(
    ("optim", "size"),
    [
        ("paged_adamw_32bit", 2 * 4 * 2 * 10**9),
        ("paged_adamw_8bit", 2 * (4 * 10**8 + 19 * 10**8)),
        ("paged_lion_8bit", 4 * 10**8 + 19 * 10**8),
    ],
)
def test_moments_are_of_a_byte_but_for_embeddings(optim, size):
    assert moments_bytes(make_job(tuning="full"), FACTS, None, optim) == size


def test_where_they_have_room_nothing_moves():
    estimate, after = paged(2.0, tuning="full")
    assert after is estimate


def test_where_they_have_not_all_go_out_and_come_back_in_each_step():
    _, after = paged(6.0, tuning="full")
    size = moments_bytes(make_job(tuning="full"), FACTS, None, "paged_adamw_8bit")
    seconds = 2 * size / (0.8 * 32e9)  # an RTX 3070 is on PCIe 4.0 x16
    assert after.step_time_s == pytest.approx(1 + seconds)
    assert after.tokens_per_s == pytest.approx(800 / (1 + seconds))
    assert after.moved_share == pytest.approx(seconds / (1 + seconds))
    assert "of moments have no room on the GPU" in after.notes[-1]


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
