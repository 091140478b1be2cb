"""What processes exchange, and how long they take for it."""

import dataclasses

import pytest

from autotune.estimate.formula.communication import (
    ADAM_BYTES,
    BACKWARD_SHARE,
    HOST_BYTES_PER_S,
    Exchange,
    exchange_s,
    gradients_out_s,
    hidden_s,
    moved_s,
    sent_bytes,
)
from autotune.plan.exchange import UNKNOWN_LINK, exchanged, with_exchange
from autotune.report.words import describe
from autotune.space.sharding.sharding import Sharding
from autotune.space.trl_config import settings
from tests.unit.builders import make_candidate, make_estimate, make_facts, make_job

GIB = 2**30
WHAT = Exchange(
    weights=8 * GIB,
    gradients=4 * GIB,
    trained=GIB,
    link_bytes_per_s=GIB,
    host_bytes_per_s=2 * GIB,
)


def ways(count=8):
    zero = {"distributed_type": "DEEPSPEED", "num_processes": count}
    return {
        "DDP": Sharding(distributed_type="MULTI_GPU", num_processes=count),
        "1": Sharding(zero_stage=1, **zero),
        "2": Sharding(zero_stage=2, **zero),
        "3": Sharding(zero_stage=3, **zero),
        "FSDP": Sharding(distributed_type="FSDP", num_processes=count),
        "kept": Sharding(
            distributed_type="FSDP", num_processes=count, fsdp_reshard_after_forward=False
        ),
    }


@pytest.mark.parametrize(
    ("way", "at_one", "four"),
    [
        # In GiB over 7/8: gradients 4, weights 8; once a step, or after each of four micro-steps.
        ("DDP", 2 * 4, 2 * 4),
        ("1", 4 + 4, 4 + 4),
        ("2", 4 + 4, 4 * 4 + 4),
        ("3", 2 * 8 + 4, 4 * (2 * 8 + 4)),
        ("FSDP", 2 * 8 + 4, 4 * 2 * 8 + 4),
        ("kept", 8 + 4, 4 * 8 + 4),
    ],
)
def test_bytes_are_those_of_rings(way, at_one, four):
    sharding = ways()[way]
    assert sent_bytes(sharding, WHAT, 1) == pytest.approx(7 / 8 * at_one * GIB)
    assert sent_bytes(sharding, WHAT, 4) == pytest.approx(7 / 8 * four * GIB)
    assert exchange_s(sharding, WHAT, 1) == pytest.approx(7 / 8 * at_one)
    assert sent_bytes(dataclasses.replace(sharding, num_processes=2), WHAT, 1) == pytest.approx(
        1 / 2 * at_one * GIB
    )


def test_weights_that_stay_gathered_are_not_sent_again():
    stay = dataclasses.replace(WHAT, still_gathered=8 * GIB)
    assert sent_bytes(ways()["3"], stay, 2) == pytest.approx(7 / 8 * 2 * (8 + 4) * GIB)


def test_what_is_on_the_host_is_copied_and_updated_there():
    away = dataclasses.replace(ways()["3"], offload_optimizer_device="cpu")
    gradients, copies = (4 + 2 * 4) / 2 / 8, 4 / 2 / 8
    update = ADAM_BYTES * GIB / HOST_BYTES_PER_S / 8
    assert moved_s(ways()["3"], WHAT, 1) == 0
    assert moved_s(away, WHAT, 1) == pytest.approx(gradients + copies + update)
    both_offloaded = dataclasses.replace(away, offload_param_device="cpu")
    assert moved_s(both_offloaded, WHAT, 2) == pytest.approx(
        (4 + 4 * 4) / 2 / 8 + copies + update + 2 * 2 * 8 / 2 / 8
    )


@pytest.mark.parametrize(
    ("stage", "at_one", "four"),
    [(1, 4, 4 + 2 * 4), (2, 4, 4 + (4 + 3) * 4), (3, 4 + 2 * 4, 4 + 2 * 4 * 4)],
)
def test_gradients_go_out_in_float32_and_come_and_go_while_they_are_added_up(stage, at_one, four):
    """A GiB of parameters, whose gradients are 4 GiB as they are computed (of 8 processes)."""
    away = dataclasses.replace(ways()["3"], offload_optimizer_device="cpu", zero_stage=stage)
    assert gradients_out_s(away, WHAT, 1) == pytest.approx(at_one / 8 / 2)
    assert gradients_out_s(away, WHAT, 4) == pytest.approx(four / 8 / 2)
    assert gradients_out_s(ways()["3"], WHAT, 4) == 0


def test_gradients_on_their_way_out_hide_behind_backward_passes_where_they_overlap():
    away = dataclasses.replace(ways()["2"], offload_optimizer_device="cpu")
    out = gradients_out_s(away, WHAT, 1)
    assert hidden_s(away, WHAT, 1, 1000.0) == out
    assert hidden_s(away, WHAT, 1, out) == BACKWARD_SHARE * out
    assert hidden_s(dataclasses.replace(away, overlap_comm=False), WHAT, 1, 1000.0) == 0
    assert hidden_s(ways()["2"], WHAT, 1, 1000.0) == 0


def several(**knobs):
    job = make_job(precision="bf16")
    devices = job.devices.model_copy(update={"count": 8})
    return job.model_copy(update={"devices": devices}), make_candidate(**knobs)


def test_a_step_is_longer_by_what_is_exchanged_and_says_so():
    facts = make_facts("cuda")
    job, ddp = several(distributed_type="MULTI_GPU")
    _, three = several(distributed_type="DEEPSPEED", zero_stage=3)
    estimate = dataclasses.replace(make_estimate(GIB), step_time_s=1.0, tokens_per_s=800.0)
    for candidate in (ddp, three):
        longer = with_exchange(estimate, settings(job, facts, candidate))
        assert longer.step_time_s > 1.0
        assert longer.tokens_per_s == pytest.approx(800.0 / longer.step_time_s)
        assert "of a step are exchange" in longer.notes[-1]
    # Under bf16 ZeRO gathers and reduces 2 bytes; DDP reduces float32 gradients.
    assert exchanged(settings(job, facts, ddp)).gradients == 4 * facts.model.parameters
    assert exchanged(settings(job, facts, three)).gradients == 2 * facts.model.parameters
    assert (
        exchanged(settings(job, facts, three)).link_bytes_per_s == UNKNOWN_LINK
    )  # of `some device`


def test_ppo_exchanges_the_value_models_gradients_too_after_each_pass_over_the_responses():
    facts = make_facts("cuda")
    job, plain = several(distributed_type="MULTI_GPU", num_ppo_epochs=1)
    _, often = several(distributed_type="MULTI_GPU", num_ppo_epochs=4)
    ppo = job.model_copy(update={"method": "ppo"})
    assert (
        exchanged(settings(ppo, facts, plain)).trained
        == 2 * exchanged(settings(job, facts, plain)).trained
    )
    estimate = dataclasses.replace(make_estimate(GIB), step_time_s=1.0, tokens_per_s=800.0)
    at_one, four = (
        with_exchange(estimate, settings(ppo, facts, job_of_passes)).step_time_s - 1.0
        for job_of_passes in (plain, often)
    )
    assert four == pytest.approx(4 * at_one)


def test_of_one_device_nothing_and_of_cpus_nothing_is_known():
    estimate = dataclasses.replace(make_estimate(GIB), step_time_s=1.0, tokens_per_s=800.0)
    assert (
        with_exchange(estimate, settings(make_job(), make_facts("cuda"), make_candidate()))
        is estimate
    )
    job, ddp = several(distributed_type="MULTI_CPU")
    exchanged = with_exchange(estimate, settings(job, make_facts("cpu"), ddp))
    assert exchanged.step_time_s == 1.0 and "is not counted" in exchanged.notes[-1]
    assert exchanged.left_out == ("exchange",)
    of_memory = with_exchange(make_estimate(GIB), settings(job, make_facts("cpu"), ddp))
    assert of_memory.left_out == () and "is not counted" in of_memory.notes[-1]


def test_a_way_to_spread_a_training_has_a_short_name():
    free = ["per_device_train_batch_size", "distributed_type", "zero_stage"]
    names = {
        "DDP": {"distributed_type": "MULTI_GPU", "zero_stage": 0},
        "ZeRO-2, optimizer on cpu": {
            "distributed_type": "DEEPSPEED",
            "zero_stage": 2,
            "offload_optimizer_device": "cpu",
        },
        "FSDP2": {"distributed_type": "FSDP", "zero_stage": 0},
    }
    for name, knobs in names.items():
        assert describe(make_candidate(**knobs), free).split(" ", 1)[1] == name
