"""`deepspeed.json`: what DeepSpeed is told of a training. Pure.

Every value is resolved from the flat configuration that the trainer reads, so that the two agree;
`train_batch_size` alone is left to DeepSpeed, which derives it: where ZeRO-3 builds the model
sharded it may still see one process, and then a batch of all of them fails its own assertion.

Which optimizer runs. There is no `optimizer` section. transformers' Trainer then makes the one that
`optim` names, with its two parameter groups (no weight decay for biases and norms), and where the
optimizer states are offloaded accelerate puts DeepSpeedCPUAdam in its place, with the same groups
(`accelerate/utils/deepspeed.py`, `map_pytorch_optim_to_deepspeed`): AdamW where `optim` is torch's
AdamW, else plain Adam, whatever it was (see `CPU_ADAMW`). A section would have DeepSpeed make
one group of all parameters, so that norms decay too, and would step the schedule before it is
logged: both were seen in real runs of two processes. The schedule is transformers' either way.

Sizes of buckets and thresholds are knobs; where nobody chooses they are transformers' own, from the
hidden size (`default_size`); the bucket in which stages 1 and 2 gather updated weights gets the
size of the one they reduce gradients in. Loss scaling is DeepSpeed's default
(`deepspeed/runtime/precision_config.py`), made explicit.
"""

from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.space.sharding.sharding import (
    BUCKET_SIZE,
    DEEPSPEED,
    PERSISTENCE,
    PREFETCHED,
    Sharding,
)

FILE = "deepspeed.json"
CPU_ADAMW = ("adamw_torch", "adamw_torch_fused")
"""Values of `optim` that an offloaded optimizer really stands for: torch's AdamW."""
MAX_REUSE_DISTANCE = 1_000_000_000
"""Elements that may be used in between, and weights stay gathered for their next use: DeepSpeed's
default, as the next two."""
MAX_LIVE_PARAMETERS = 1_000_000_000
"""Elements of weights from which on stage 3 gathers none ahead."""
SUB_GROUP = 1_000_000_000
"""Elements of what stage 3 keeps, and updates, in one piece."""


def deepspeed_config(
    sharding: Sharding,
    config: Mapping[str, Any],
    hidden_size: int | None,
    *,
    device_kind: str,
) -> dict[str, Any]:
    """Return the file as data, every value resolved.

    Args:
        sharding: a `DEEPSPEED` one.
        config: the flat configuration of the training (`space/trl_config.py`).
        hidden_size: of the model; None: it has none, and sizes are DeepSpeed's defaults.
        device_kind: `cuda` or `cpu`; only for GPUs is memory pinned, unless it is said.
    """
    return {
        "train_micro_batch_size_per_gpu": config["per_device_train_batch_size"],
        "gradient_accumulation_steps": config["gradient_accumulation_steps"],
        **_clipping(config),
        "bf16": {"enabled": bool(config.get("bf16"))},
        "fp16": _fp16(bool(config.get("fp16"))),
        "zero_optimization": {
            **_zero(sharding, hidden_size),
            **_offload(sharding, device_kind),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": True,
        "wall_clock_breakdown": False,
    }


def deepspeed_of(
    sharding: Sharding, config: Mapping[str, Any], facts: Facts
) -> dict[str, Any] | None:
    """Return the file of a candidate on a device; None where it is not DeepSpeed's."""
    if sharding.distributed_type != DEEPSPEED:
        return None
    hidden_size, kind = facts.model.hidden_size, facts.device.kind
    return deepspeed_config(sharding, config, hidden_size, device_kind=kind)


def _clipping(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the clipping, if any: PPOTrainer does not clip, and its configuration has no field for
    it."""
    value = config.get("max_grad_norm")
    return {} if value is None else {"gradient_clipping": float(value)}


def _fp16(enabled: bool) -> dict[str, Any]:
    """Return half precision with a loss scale that adapts itself (`loss_scale` 0)."""
    if not enabled:
        return {"enabled": False}
    return {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }


def _zero(sharding: Sharding, hidden_size: int | None) -> dict[str, Any]:
    """Return what is sharded, and in which pieces it is exchanged (elements, not bytes)."""
    requested_sizes = (sharding.reduce_bucket_size, sharding.stage3_prefetch_bucket_size)
    sizes = {BUCKET_SIZE: requested_sizes[0], PREFETCHED: requested_sizes[1]}
    sizes[PERSISTENCE] = sharding.stage3_param_persistence_threshold
    chosen_sizes = {n: default_size(n, hidden_size) if v is None else v for n, v in sizes.items()}
    zero: dict[str, Any] = {
        "stage": sharding.zero_stage,
        "overlap_comm": sharding.overlap_comm,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        BUCKET_SIZE: chosen_sizes[BUCKET_SIZE],
    }
    if sharding.zero_stage < 3:
        even_size = chosen_sizes[BUCKET_SIZE] + chosen_sizes[BUCKET_SIZE] % 2  # it refuses odd ones
        return {**zero, "allgather_partitions": True, "allgather_bucket_size": even_size}
    return {
        **zero,
        "sub_group_size": SUB_GROUP,
        PREFETCHED: chosen_sizes[PREFETCHED],
        PERSISTENCE: chosen_sizes[PERSISTENCE],
        "stage3_max_live_parameters": MAX_LIVE_PARAMETERS,
        "stage3_max_reuse_distance": MAX_REUSE_DISTANCE,
        "stage3_gather_16bit_weights_on_model_save": True,
        "zero_hpz_partition_size": 1,
    }


def _offload(sharding: Sharding, device_kind: str) -> dict[str, dict[str, Any]]:
    """Return where optimizer states and weights are kept while they are not used."""
    pinned = device_kind == "cuda" if sharding.pin_memory is None else sharding.pin_memory
    places = {
        "offload_optimizer": sharding.offload_optimizer_device,
        "offload_param": sharding.offload_param_device,
    }
    return {
        section: {"device": device, "pin_memory": pinned}
        for section, device in places.items()
        if device != "none"
    }


WITHOUT_HIDDEN_SIZE = {BUCKET_SIZE: 500_000_000, PREFETCHED: 50_000_000, PERSISTENCE: 100_000}
"""DeepSpeed's defaults (`deepspeed/runtime/zero/config.py`)."""


def default_size(knob: str, hidden_size: int | None) -> int:
    """Return the size that transformers fills in where a file says `auto`
    (`transformers/integrations/deepspeed.py`, `trainer_config_finalize`), in elements; where a
    model has no hidden size, DeepSpeed's default."""
    if not hidden_size:
        return WITHOUT_HIDDEN_SIZE[knob]
    square = hidden_size * hidden_size
    return {BUCKET_SIZE: square, PREFETCHED: int(0.9 * square), PERSISTENCE: 10 * hidden_size}[knob]
