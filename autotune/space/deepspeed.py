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

Sizes of buckets and thresholds: transformers' own, from the hidden size
(`transformers/integrations/deepspeed.py`, `trainer_config_finalize`); the bucket in which stages 1
and 2 gather updated weights gets the size of the one they reduce gradients in. Loss scaling, `aio`
and buffer counts are DeepSpeed's defaults (`deepspeed/runtime/precision_config.py`,
`swap_tensor/constants.py`, `zero/offload_config.py`), made explicit.
"""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.facts import Facts
from autotune.space.sharding import DEEPSPEED, Sharding

FILE = "deepspeed.json"
NVME_PATH = "/local_nvme"
"""Where states are kept on disk, unless told otherwise: the folder of DeepSpeed's own examples."""
CPU_ADAMW = ("adamw_torch", "adamw_torch_fused")
"""Values of `optim` that an offloaded optimizer really stands for: torch's AdamW."""
FILLED_BY_TRAINER = (
    *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("bf16.enabled", "fp16.enabled", "zero_optimization.reduce_bucket_size"),
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
"""What transformers fills in where a file says `auto`."""
BUCKET, PREFETCHED, PERSISTENT = 500_000_000, 50_000_000, 100_000
"""Elements: DeepSpeed's defaults (`deepspeed/runtime/zero/config.py`)."""
PARAM_BUFFER = 100_000_000
"""Elements of a buffer for weights from disk, at least: DeepSpeed's default."""


def deepspeed_config(
    sharding: Sharding,
    config: Mapping[str, Any],
    hidden_size: int | None,
    *,
    device_kind: str,
    vocab_size: int | None = None,
    nvme_path: str = NVME_PATH,
) -> dict[str, Any]:
    """The file as data, every value resolved.

    Args:
        sharding: a `DEEPSPEED` one.
        config: the flat configuration of the training (`space/settings.py`).
        hidden_size: of the model; None: it has none, and sizes are DeepSpeed's defaults.
        device_kind: `cuda` or `cpu`; only for GPUs is memory pinned.
        vocab_size: of the model, where weights are kept on disk: the largest is the embedding.
        nvme_path: a folder on an NVMe disk, where states are kept on disk.
    """
    file: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config["per_device_train_batch_size"],
        "gradient_accumulation_steps": config["gradient_accumulation_steps"],
        **_clipping(config),
        "bf16": {"enabled": bool(config.get("bf16"))},
        "fp16": _fp16(bool(config.get("fp16"))),
        "zero_optimization": {
            **_zero(sharding.zero_stage, hidden_size),
            **_offload(sharding, device_kind, (hidden_size or 0) * (vocab_size or 0), nvme_path),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": True,
        "wall_clock_breakdown": False,
    }
    if "nvme" in (sharding.offload_optimizer_device, sharding.offload_param_device):
        file["aio"] = {
            "block_size": 1_048_576,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
        }
    return file


def auto_config(
    sharding: Sharding, config: Mapping[str, Any], hidden_size: int | None, **rest: Any
) -> dict[str, Any]:
    """The same file with `auto` wherever transformers' Trainer fills a value in, for those who keep
    their own TrainingArguments. Arguments are those of `deepspeed_config`."""
    file = deepspeed_config(sharding, config, hidden_size, **rest)
    for name in FILLED_BY_TRAINER:
        *parts, last = name.split(".")
        section = file
        for part in parts:
            section = section[part]
        if last in section or last == "gradient_clipping":
            section[last] = "auto"
    return file


def deepspeed_of(
    sharding: Sharding,
    config: Mapping[str, Any],
    facts: Facts,
    make: Callable[..., dict[str, Any]] = deepspeed_config,
) -> dict[str, Any] | None:
    """The file of a candidate on the device of the facts; None where it is not DeepSpeed's.

    Args:
        make: `deepspeed_config`, or `auto_config`.
    """
    if sharding.distributed_type != DEEPSPEED:
        return None
    return make(
        sharding,
        config,
        facts.model.hidden_size,
        device_kind=facts.device.kind,
        vocab_size=facts.model.vocab_size,
    )


def _clipping(config: Mapping[str, Any]) -> dict[str, float]:
    """PPOTrainer does not clip, and its configuration says nothing of it: nor does DeepSpeed."""
    value = config.get("max_grad_norm")
    return {} if value is None else {"gradient_clipping": float(value)}


def _fp16(enabled: bool) -> dict[str, Any]:
    """Half precision with a loss scale that adapts itself (`loss_scale` 0)."""
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


def _zero(stage: int, hidden_size: int | None) -> dict[str, Any]:
    """What is sharded, and in which pieces it is exchanged (elements, not bytes)."""
    bucket = hidden_size * hidden_size if hidden_size else BUCKET
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
    }
    if stage < 3:
        return {**zero, "allgather_partitions": True, "allgather_bucket_size": bucket}
    return {
        **zero,
        "sub_group_size": 1_000_000_000,
        "stage3_prefetch_bucket_size": int(0.9 * bucket) if hidden_size else PREFETCHED,
        "stage3_param_persistence_threshold": 10 * hidden_size if hidden_size else PERSISTENT,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _offload(
    sharding: Sharding, device_kind: str, largest: int, nvme_path: str
) -> dict[str, dict[str, Any]]:
    """Where optimizer states and weights are kept while they are not used.

    Args:
        largest: elements of the largest weight; each process reads its part of it at once.
    """
    pinned = device_kind == "cuda"
    sections: dict[str, dict[str, Any]] = {}
    if sharding.offload_optimizer_device != "none":
        device = sharding.offload_optimizer_device
        sections["offload_optimizer"] = {"device": device, "pin_memory": pinned}
        if device == "nvme":
            # Of each weight: itself, its gradient and two moments.
            sections["offload_optimizer"] |= {"nvme_path": nvme_path, "buffer_count": 4}
    if sharding.offload_param_device != "none":
        device = sharding.offload_param_device
        sections["offload_param"] = {"device": device, "pin_memory": pinned}
        if device == "nvme":
            part = -(-largest // sharding.num_processes)
            sections["offload_param"] |= {
                "nvme_path": nvme_path,
                "buffer_count": 5,
                "buffer_size": max(PARAM_BUFFER, part),
                "max_in_cpu": 1_000_000_000,
            }
    return sections
