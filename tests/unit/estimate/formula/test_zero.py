"""What ZeRO leaves to each device of a record of one."""

from dataclasses import replace

import pytest

from autotune.estimate.formula.devices import GATHERED, Zero, sharded_record, zero_of
from autotune.estimate.records.events import ALLOCATE, FREE, MOVE, PHASE, live_bytes
from autotune.space.sharding.deepspeed import MAX_LIVE_PARAMETERS
from autotune.space.sharding.sharding import Sharding

MIB = 2**20
WEIGHTS, MOMENTS = 800 * MIB, 1600 * MIB
"""Of a model in float32, all of it trained."""
ACTIVATIONS = 2000 * MIB


def zero_stage(stage):
    return Sharding(distributed_type="DEEPSPEED", num_processes=8, zero_stage=stage)


def record():
    """A model, a micro-step with activations, its gradients and moments, and a generation."""
    return [
        (ALLOCATE, 1, WEIGHTS, "weights", "init", 0),
        (PHASE, "data", 0),
        (PHASE, "generation", 0),
        (ALLOCATE, 9, 64 * MIB, "activations", "cache", 0),
        (PHASE, "decode", 0),
        (FREE, 9, 0),
        (PHASE, "micro-step", 0),
        (ALLOCATE, 2, 300 * MIB, "activations", "mm", 0),
        (ALLOCATE, 3, WEIGHTS, "temporaries", "mm", 0),
        (FREE, 2, 0),
        (MOVE, 3, "gradients", 0),
        (PHASE, "step", 0),
        (ALLOCATE, 4, MOMENTS, "optimizer", "zeros", 0),
        (PHASE, "micro-step", 0),
        (ALLOCATE, 5, ACTIVATIONS, "activations", "mm", 0),
    ]


def use_of(stage, devices=8, config=None, hidden=1024, **fields):
    config = {"dtype": "float32"} if config is None else config
    sharding = replace(zero_stage(stage), **fields)
    return live_bytes(sharded_record(record(), zero_of(config, sharding, devices, hidden)))


def test_each_stage_divides_more():
    bucket = 2 * 4 * 1024**2
    first, two, three = (use_of(stage).parts for stage in (1, 2, 3))
    assert first == {
        "activations": ACTIVATIONS,
        "weights": WEIGHTS,
        "gradients": WEIGHTS,
        "optimizer": (MOMENTS + WEIGHTS) // 8,  # moments, and a copy
        "communication": bucket,
    }
    assert two == {**first, "gradients": WEIGHTS // 8}
    # A small model stays gathered.
    gathered = {"communication": bucket + GATHERED * WEIGHTS}
    assert three == {**two, "weights": WEIGHTS // 8, **gathered}


def test_buckets_are_as_large_and_as_many_as_they_are_told_to_be():
    def exchanged(stage, **fields):
        parts = use_of(stage, **fields).parts
        return parts["communication"] - (GATHERED * WEIGHTS if stage == 3 else 0)

    small, width = 1000, 4
    assert exchanged(2, reduce_bucket_size=small) == 2 * small * width
    assert exchanged(1, reduce_bucket_size=small, overlap_comm=False) == small * width
    assert exchanged(2, overlap_comm=False) == 1024**2 * width
    # Larger than the model: the buckets are there, what stage 3 flattens is no more than it has.
    large = WEIGHTS
    assert exchanged(2, reduce_bucket_size=large) == 2 * large * width
    assert exchanged(3, reduce_bucket_size=large) == large * width + WEIGHTS


def test_the_step_is_that_of_a_device_s_part():
    """A flat gradient, and what Adam makes of that size, in place of what it makes of the whole."""
    events = [*record(), (PHASE, "step", 0), (ALLOCATE, 6, WEIGHTS, "temporaries", "sqrt", 0)]
    zero = zero_of({"dtype": "float32"}, zero_stage(2), 8, 1024)
    lasting = use_of(2).parts
    del lasting["activations"]
    step = live_bytes([e for e in sharded_record(events, zero) if e[1] != 5]).phases["step"]
    assert step == sum(lasting.values()) + 3 * WEIGHTS // 8


@pytest.mark.parametrize(
    ("config", "weights", "optimizer"),
    [
        # bfloat16 for computing; float32 copy and moments divided.
        ({"dtype": "float32", "bf16": True}, WEIGHTS // 2, (MOMENTS + WEIGHTS) // 8),
        # Moments that were traced in bfloat16 are float32 there.
        ({"dtype": "bfloat16", "bf16": True}, WEIGHTS, (2 * MOMENTS + 2 * WEIGHTS) // 8),
        ({"dtype": "float32"}, WEIGHTS, (MOMENTS + WEIGHTS) // 8),
        # Adapters are traced in float32 beside any base: their moments stay as they are.
        ({"dtype": "bfloat16", "bf16": True, "use_peft": True}, WEIGHTS, (MOMENTS + WEIGHTS) // 8),
    ],
)
def test_a_float32_copy_of_what_is_trained_is_kept(config, weights, optimizer):
    parts = use_of(1, config=config).parts
    assert (parts["weights"], parts["optimizer"]) == (weights, optimizer)


def test_generation_needs_all_weights_at_once():
    two, three = use_of(2), use_of(3)
    assert two.phases["generation"] < WEIGHTS + WEIGHTS // 8 + 84 * MIB
    assert three.phases["generation"] >= two.phases["generation"] - WEIGHTS + 2 * WEIGHTS
    # Given back afterwards.
    lasting = three.phases["step"] - 3 * WEIGHTS // 8
    assert lasting < 2 * WEIGHTS // 8 + (MOMENTS + WEIGHTS) // 8 + 20 * MIB
    assert three.phases["micro-step"] == three.peak_bytes


def test_of_a_large_model_only_so_many_weights_stay_gathered():
    events = [(ALLOCATE, 1, 40 * 2**30, "weights", "init", 0), (PHASE, "data", 0)]
    zero = Zero(stage=3, devices=8, bucket=1000, half=True, wide=False, trained_wide=False)
    parts = live_bytes(sharded_record(events, zero)).parts
    gathered = 2 * GATHERED * MAX_LIVE_PARAMETERS
    assert parts == {"weights": 5 * 2**30, "communication": gathered + 2 * 1000}
