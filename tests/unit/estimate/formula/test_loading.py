"""What models take while they are loaded, by hand; where that is the peak, the estimate says so."""

import dataclasses

from autotune.estimate.estimate import estimated, prior_residual
from autotune.estimate.formula.devices import with_loading
from autotune.estimate.formula.loading import Loaded, on_device, on_host
from autotune.estimate.protocol import PointReply
from autotune.plan.host_memory import loaded_models
from autotune.space.sharding.sharding import Sharding
from autotune.space.trl_config import settings
from tests.unit.builders import GIB, make_candidate, make_facts, make_job

MODEL = Loaded(
    parameters=1000,
    models=1,
    width=2,
    converted=False,
    held_bytes=2000,
    largest=100,
    embedding=200,
)
ALONE = Sharding()
DDP = Sharding(distributed_type="MULTI_GPU", num_processes=4)
STAGE_3 = Sharding(distributed_type="DEEPSPEED", num_processes=4, zero_stage=3)
FSDP = Sharding(distributed_type="FSDP", num_processes=4)


def changed(**fields):
    return dataclasses.replace(MODEL, **fields)


def test_what_a_device_holds():
    assert on_device(MODEL, ALONE, "cuda") == on_device(MODEL, DDP, "cuda") == 2000
    assert on_device(changed(models=2), ALONE, "cuda") == 4000
    assert on_device(MODEL, STAGE_3, "cuda") == 500 + 2 * 2 * 200
    assert on_device(MODEL, FSDP, "cuda") == 500 + 2 * 200
    packed = changed(held_bytes=600, bits=4)
    assert on_device(packed, STAGE_3, "cuda") == on_device(packed, ALONE, "cuda")
    assert on_device(packed, ALONE, "cuda") == 600 + round((2 + 1 / 8) * 100)
    assert on_device(packed, ALONE, "cpu") == 600 + 13 * 100
    assert on_device(changed(fused=True), ALONE, "cuda") == 2000 + 2 * 100
    assert on_device(changed(unpacked=True), ALONE, "cuda") == 2000 + 7 * 100


def test_what_the_host_holds_of_four_processes():
    assert on_host(MODEL, DDP, 4) == on_host(changed(converted=True), ALONE, 1) == 0
    assert on_host(changed(converted=True), DDP, 4) == 4 * 2000
    assert on_host(changed(converted=True), STAGE_3, 4) == 0
    assert on_host(changed(upcast=1000), FSDP, 4) == 4 * 4000
    assert on_host(changed(upcast=1000, converted=True), FSDP, 4) == 4 * 4000
    assert on_host(changed(fused=True), DDP, 4) == 4 * (2000 + 2 * 100)
    assert on_host(changed(bits=4), DDP, 4) == 0


def test_a_peak_while_loading_is_the_peak_and_says_so():
    point = PointReply(
        peak_allocated_bytes=5 * GIB,
        peak_reserved_bytes=5 * GIB,
        parts={"weights": 5 * GIB},
        operator="aten::mm",
        phase="micro-step",
        phases={},
        micro_peaks=[],
        oom=False,
        missing_bytes=None,
        retries=0,
        sample=[],
        masked=False,
        method="trace",
    )
    residual = prior_residual(make_facts("cuda").device, 0)
    lower, higher = (
        estimated(with_loading(point, size * GIB, 20 * GIB), (), residual, 20 * GIB, 2)
        for size in (4, 30)
    )
    assert lower.peak_phase == "micro-step" and lower.fits
    assert lower.peak_while_loading_bytes == lower.peak_memory_bytes - GIB
    assert higher.peak_phase == "loading" and not higher.fits
    assert higher.peak_while_loading_bytes == higher.peak_memory_bytes
    assert higher.missing_bytes > 10 * GIB


def test_a_candidates_models_are_loaded_in_its_type():
    facts = make_facts("cuda")
    stored = dataclasses.replace(facts.model, dtype="bfloat16", largest_weight=64)
    facts = dataclasses.replace(facts, model=stored)
    full = loaded_models(settings(make_job(), facts, make_candidate()))
    assert (full.width, full.converted, full.held_bytes) == (4, True, 4000)
    chosen = make_candidate(dtype="bfloat16")
    adapters = loaded_models(settings(make_job(tuning="lora"), facts, chosen))
    assert (adapters.width, adapters.converted, adapters.largest) == (2, False, 64)
    pairs = make_job(method="dpo")
    assert loaded_models(settings(pairs, facts, make_candidate())).models == 2
