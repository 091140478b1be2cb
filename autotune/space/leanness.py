"""Which candidate should take least memory, before any was measured. Pure."""

import math
from typing import Any

from autotune.space.knobs import Candidate


def expected_leanness(candidate: Candidate) -> tuple[Any, ...]:
    """Orders candidates by how little memory they should take, before any was measured."""
    values = candidate.values
    return (
        candidate.micro_batch,
        values.get("generation_batch_size") or 0,
        values.get("max_completion_length") or values.get("response_length") or 0,
        values.get("local_rollout_forward_batch_size") or 0,
        bool(values.get("copy_reference")),
        bool(values.get("beta")) and not values.get("lora_r"),
        values.get("max_length") or math.inf,
        values.get("dtype") == "float32",
        bool(values.get("load_in_8bit")),
        values.get("lora_r") or 0,
        not values.get("precompute_ref_log_probs", False),
        not values.get("gradient_checkpointing", False),
        values.get("loss_type") == "nll" and not values.get("use_liger_kernel"),
        values.get("attn_implementation") == "eager",
        not values.get("activation_offloading", False),
        candidate.key,
    )
