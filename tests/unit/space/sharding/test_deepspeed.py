"""`deepspeed.json` from a sharding and a flat configuration."""

import json

import pytest

from autotune.space.sharding.deepspeed import deepspeed_config
from autotune.space.sharding.sharding import Sharding

FLAT = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
    "bf16": True,
    "fp16": False,
}


def sharding(stage=3, processes=8, **fields):
    return Sharding(
        distributed_type="DEEPSPEED", num_processes=processes, zero_stage=stage, **fields
    )


def deepspeed_file(stage=3, hidden=1000, device_kind="cuda", flat=None, **fields):
    return deepspeed_config(
        sharding(stage, **fields), FLAT | (flat or {}), hidden, device_kind=device_kind
    )


def leaves(data, path=""):
    """Every value and where it stands."""
    for name, value in data.items():
        name_in_file = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from leaves(value, name_in_file)
        else:
            yield name_in_file, value


ALL = [
    {"stage": stage, "offload_optimizer_device": optimizer, "offload_param_device": param}
    for stage in (1, 2, 3)
    for optimizer in ("none", "cpu")
    for param in (("none", "cpu") if stage == 3 else ("none",))
]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_nothing_is_left_open_but_the_whole_batch(case):
    file = deepspeed_file(**case)
    values = dict(leaves(file))
    assert not [name for name, value in values.items() if value in ("auto", None)]
    assert "train_batch_size" not in file
    assert json.loads(json.dumps(file)) == file


def test_the_trainers_own_numbers_arrive():
    file = deepspeed_file()
    assert file["train_micro_batch_size_per_gpu"] == 4
    assert file["gradient_accumulation_steps"] == 2
    assert file["gradient_clipping"] == 0.5
    assert (file["bf16"]["enabled"], file["fp16"]) == (True, {"enabled": False})


def test_a_trainer_that_does_not_clip_has_deepspeed_not_clip_either():
    assert "gradient_clipping" not in deepspeed_file(flat={"max_grad_norm": None})
    assert deepspeed_file(flat={"max_grad_norm": 0})["gradient_clipping"] == 0.0


def test_half_precision_scales_its_loss_by_itself():
    scaled = deepspeed_file(flat={"bf16": False, "fp16": True})["fp16"]
    assert (scaled["enabled"], scaled["loss_scale"]) == (True, 0)
    assert scaled["initial_scale_power"] == 16


def test_buckets_follow_the_hidden_size():
    zero = deepspeed_file(hidden=1000)["zero_optimization"]
    assert zero["reduce_bucket_size"] == 1_000_000
    assert zero["stage3_prefetch_bucket_size"] == 900_000
    assert zero["stage3_param_persistence_threshold"] == 10_000
    lower = deepspeed_file(stage=2, hidden=1000)["zero_optimization"]
    assert lower["allgather_bucket_size"] == 1_000_000
    assert not [name for name in lower if name.startswith("stage3")]


@pytest.mark.parametrize(("device_kind", "pinned"), [("cuda", True), ("cpu", False)])
def test_memory_is_pinned_for_gpus_alone(device_kind, pinned):
    offloads = {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"}
    zero = deepspeed_file(device_kind=device_kind, **offloads)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": pinned}
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": pinned}


def test_a_model_without_a_hidden_size_gets_deepspeeds_defaults():
    zero = deepspeed_file(hidden=None)["zero_optimization"]
    assert zero["reduce_bucket_size"] == 500_000_000
    assert zero["stage3_prefetch_bucket_size"] == 50_000_000
    assert zero["stage3_param_persistence_threshold"] == 100_000
