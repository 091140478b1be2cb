"""What cannot fit whatever a trace would say: it is not traced, and says so."""

from dataclasses import replace

import pytest

from autotune.plan.choices import leanness
from autotune.plan.least_memory import LOWER_BOUND, least_bytes, ruled_out
from autotune.space.trl_config import settings
from tests.unit.builders import make_candidate, make_estimate, make_facts, make_job


def bound(**values):
    facts = make_facts("cuda")
    facts = replace(facts, model=replace(facts.model, parameters=10**9))
    return settings(make_job(), facts, make_candidate(**values))


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [
        ({"dtype": "float32", "optim": "adamw_torch_fused"}, 4 + 4 + 8),
        ({"dtype": "bfloat16", "optim": "adamw_torch_fused"}, 2 + 2 + 4),
        ({"dtype": "bfloat16", "optim": "adamw_8bit"}, 2 + 2 + 2),
        ({"dtype": "float32", "optim": "adafactor"}, 4 + 4),
    ],
)
def test_the_least_is_weights_gradients_and_states(values, bytes_each):
    assert least_bytes(bound(**values)) == bytes_each * 10**9


def test_a_candidate_is_ruled_out_where_the_least_is_more_than_the_limit():
    chosen = bound(dtype="float32", optim="adamw_torch_fused")
    assert ruled_out(chosen, 16 * 10**9) is None
    estimate = ruled_out(chosen, 16 * 10**9 - 1)
    assert estimate.method == LOWER_BOUND and estimate.at_least
    assert estimate.missing_bytes == 1 and not estimate.fits and estimate.p_oom == 1.0
    assert sum(estimate.parts.values()) == estimate.peak_memory_bytes == 16 * 10**9


def test_of_adapters_only_the_base_is_sure():
    facts = make_facts("cuda")
    facts = replace(facts, model=replace(facts.model, parameters=10**9))
    candidate = make_candidate(dtype="float32", optim="adamw_torch_fused", lora_r=256)
    assert least_bytes(settings(make_job(tuning="lora"), facts, candidate)) == 4 * 10**9


def test_a_bound_is_never_called_leaner_than_what_was_traced():
    bound_one = ruled_out(bound(dtype="float32", optim="adamw_torch_fused"), 1)
    traced = replace(make_estimate(10 * bound_one.peak_memory_bytes), at_least=False)
    assert leanness((make_candidate(), traced)) < leanness((make_candidate(), bound_one))
