"""Which candidate should take least memory, before any was measured. Pure."""

import math
from typing import Any

from autotune.space.checkpointing import CHECKPOINTING, memory_rank
from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    RESPONSE,
    ROLLOUT_CHUNK,
    Candidate,
)
from autotune.space.sharding.sharding import FSDP, Sharding, sharding_of


def expected_leanness(candidate: Candidate) -> tuple[Any, ...]:
    """Return a key that sorts candidates by expected memory, the leanest first."""
    values = candidate.values
    return (
        candidate.micro_batch,
        values.get(GENERATION_BATCH) or 0,
        values.get(COMPLETION) or values.get(RESPONSE) or 0,
        values.get(ROLLOUT_CHUNK) or 0,
        bool(values.get("copy_reference")),
        bool(values.get("beta")) and not values.get("lora_r"),
        values.get("max_length") or math.inf,
        values.get("dtype") == "float32",
        bool(values.get("load_in_8bit")),
        values.get("lora_r") or 0,
        not values.get("precompute_ref_log_probs", False),
        memory_rank(values.get(CHECKPOINTING, False)),
        values.get("loss_type") == "nll" and not values.get("use_liger_kernel"),
        values.get("attn_implementation") == "eager",
        not values.get("activation_offloading", False),
        not values.get("vllm_enable_sleep_mode", False),
        *_on_the_device(sharding_of(values, 2)),
        candidate.key,
    )


def _on_the_device(sharding: Sharding) -> tuple[int, ...]:
    """Return how much of weights, gradients and states a process keeps on its device: the less that
    is divided and kept elsewhere, the more."""
    stage = sharding.zero_stage
    if sharding.distributed_type == FSDP:
        stage = 3 if sharding.fsdp_reshard_after_forward else 2
    return (
        -stage,
        sharding.offload_param_device == "none",
        sharding.offload_optimizer_device == "none",
    )
