"""What processes take of the host together, and who does not fit for it."""

from dataclasses import replace

from autotune.estimate.estimate import Estimate
from autotune.estimate.formula.offload import (
    OffloadedTraining,
    offloaded_bytes,
    pinned_excess_bytes,
)
from autotune.estimate.residual import Residual
from autotune.facts.host import HostFacts
from autotune.plain_data import from_plain
from autotune.plan.host_memory import with_host
from autotune.run.expectations import Expectations
from autotune.run.loop import BEYOND_HOST, reasons_against
from autotune.space.sharding.sharding import Sharding
from autotune.space.trl_config import settings
from tests.unit.builders import GIB, make_candidate, make_estimate, make_facts, make_job

COUNT, PARAMETERS = 8, 7 * 10**9
OFFLOADED = {"distributed_type": "DEEPSPEED", "zero_stage": 2, "offload_optimizer_device": "cpu"}
ON_DEVICE = {"distributed_type": "DEEPSPEED", "zero_stage": 2, "offload_optimizer_device": "none"}


def facts_of(free_gib, kind="cuda", stored="float32"):
    facts = make_facts(kind)
    sizes = {"parameters": PARAMETERS, "hidden_size": 4096, "vocab_size": 32000}
    model = replace(facts.model, **sizes, dtype=stored)
    host = None if free_gib is None else HostFacts(total_bytes=2**42, free_bytes=free_gib * GIB)
    return replace(facts, model=model, host=host)


def hosted(
    values, free_gib=None, wanted=None, traced=None, kind="cuda", reserved=20 * GIB, **facts
):
    devices = {"kind": kind, "count": COUNT, **({"host_memory": wanted} if wanted else {})}
    job = make_job(devices=devices, precision="fp32" if kind == "cpu" else "bf16")
    return with_host(
        make_estimate(reserved),
        settings(job, facts_of(free_gib, kind, **facts), make_candidate(**values)),
        process_bytes=GIB,
        traced_bytes=traced,
    )


def kept(**changes):
    fields = {"parameters": 1e9, "trained": 1e9, "width": 2, "largest": 1e8, "accumulates": False}
    return OffloadedTraining(**{**fields, **changes})


def sharding(stage, count=4, optimizer="cpu", weights="none"):
    return Sharding(
        distributed_type="DEEPSPEED",
        num_processes=count,
        zero_stage=stage,
        offload_optimizer_device=optimizer,
        offload_param_device=weights,
    )


def test_what_offloading_keeps_by_hand():
    own = 1e9 / 4
    # The copy, its gradient and two moments in float32, a buffer in the type computed in.
    assert offloaded_bytes(sharding(3), kept()) == (4 + 4 + 8 + 2) * own
    assert offloaded_bytes(sharding(3), kept(width=4)) == (4 + 4 + 8 + 4) * own
    assert offloaded_bytes(sharding(1), kept()) == 18 * own + 2e8
    assert offloaded_bytes(sharding(2), kept()) == 18 * own + 2e8
    assert offloaded_bytes(sharding(2), kept(accumulates=True)) == 20 * own + 2e8
    assert offloaded_bytes(sharding(3, weights="cpu"), kept()) == 20 * own
    assert offloaded_bytes(sharding(3, weights="cpu"), kept(trained=1e6)) == 18 * 1e6 / 4 + 2 * own


def test_what_is_not_offloaded_is_not_on_the_host():
    assert offloaded_bytes(sharding(3, optimizer="none"), kept()) == 0
    assert pinned_excess_bytes(sharding(3, optimizer="none"), kept()) == 0


def test_pinned_buffers_are_rounded_up_to_powers_of_two():
    whole = kept(trained=4 * 2**30)  # of each process 2**30: exact already
    assert pinned_excess_bytes(sharding(2), whole) == 0
    more = kept(trained=4 * (2**30 + 1))
    assert pinned_excess_bytes(sharding(2), more) == (4 + 4 + 2) * (2**30 - 1)
    # Stage 3 keeps a billion elements in a piece, and gradients in one.
    pieces = pinned_excess_bytes(sharding(3), kept(trained=4 * 2e9))
    assert pieces == 4 * (2**32 - 4 * 10**9) + (2**32 - 4 * 10**9)


def test_processes_take_their_part_each():
    here, there = hosted(ON_DEVICE, 1000), hosted(OFFLOADED, 1000)
    assert here.host_bytes == COUNT * GIB
    least = COUNT * GIB + 18 * PARAMETERS
    assert least < there.host_bytes < least + (10 * PARAMETERS + 2 * COUNT * 4096 * 32000)
    assert there.p_host_oom < 0.01 and there.fits and there.host_missing_bytes is None
    assert hosted(OFFLOADED, 1000, traced=GIB).host_bytes < there.host_bytes


def test_each_process_converts_a_whole_model_of_another_type_while_loading():
    """Of the same type it only maps the file; ZeRO-3 gives each weight to its parts."""
    whole = COUNT * (GIB + 4 * PARAMETERS)
    for values in (ON_DEVICE, {"distributed_type": "FSDP"}):
        assert hosted(values, 1000).host_bytes == COUNT * GIB
        assert hosted(values, 1000, stored="bfloat16").host_bytes == whole
    stage_3 = {**ON_DEVICE, "zero_stage": 3}
    assert hosted(stage_3, 1000, stored="bfloat16").host_bytes == COUNT * GIB
    refused = hosted(ON_DEVICE, 64, stored="bfloat16")
    assert not refused.fits and "of the host's memory while loading" in refused.notes[-1]


def test_what_the_host_has_not_does_not_fit_and_says_so():
    estimate = hosted(OFFLOADED, 64)
    assert not estimate.fits and estimate.p_host_oom > 0.99
    assert estimate.missing_bytes is None  # the device has enough
    assert estimate.host_missing_bytes == estimate.host_bytes - int(64 * GIB * 0.95)
    assert "8 processes take about" in estimate.notes[-1]
    assert from_plain(Estimate, {**estimate.plain(), "fits": False}).host_missing_bytes > 0
    assert hosted(ON_DEVICE, 64).fits


def test_of_a_host_that_is_not_known_only_what_the_job_says_counts():
    assert hosted(OFFLOADED).p_host_oom is None
    assert hosted(OFFLOADED).host_bytes > 18 * PARAMETERS
    assert not hosted(OFFLOADED, wanted="64GiB").fits
    assert hosted(OFFLOADED, wanted="512GiB").fits


def test_on_a_cpu_the_host_is_the_device_unless_the_job_limits_all_processes():
    assert hosted(OFFLOADED, 64, kind="cpu") == make_estimate(20 * GIB)
    limited = hosted(OFFLOADED, 500, wanted="100GiB", kind="cpu")
    assert limited.host_bytes == COUNT * 20 * GIB and not limited.fits


def test_a_run_leaves_out_what_the_host_cannot_have():
    values = (OFFLOADED, ON_DEVICE)
    candidates = [make_candidate(**one) for one in values]
    estimates = {
        candidate.key: hosted(one, 64) for candidate, one in zip(candidates, values, strict=True)
    }
    prior = Residual(relative_sigma=0.02)
    expectations = Expectations(estimates=estimates, prior=prior, limit_bytes=70 * GIB)
    found = reasons_against(candidates, [], expectations, 70 * GIB)
    assert found == {candidates[0].key: BEYOND_HOST}
    little = replace(expectations, limit_bytes=GIB)
    assert little.hopeless(candidates, []) == {candidates[0].key}  # the leaner is left
