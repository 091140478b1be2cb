"""What vLLM takes where it generates on the devices that train. Bytes. Pure.

Colocated, vLLM keeps `vllm_gpu_memory_utilization` of the device's whole memory for itself: its
copy of the weights, the activations of a profiling pass, CUDA graphs, and a cache of keys and
values in all that is left. What the cache cannot hold waits its turn, so a share that is too small
costs time, and one that is too large memory. Asleep it gives weights and cache back.

Sources: TRL's `generation/vllm_generation.py` (4096 tokens in a profiling pass; as many sequences
as a device generates together; sleep level 2), vLLM's `gpu_memory_utilization`. Known error: what
is assumed of activations and CUDA graphs has not been held against vLLM; where they take more than
that, fewer completions are generated at once. vLLM before 0.20 may capture CUDA graphs beyond its
share. Of a GPU that is here the share is taken of NVML's total, vLLM takes it of CUDA's, which is
up to 1% less.
"""

import math
from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.facts.model import ModelFacts
from autotune.job.job import Job
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    TENSOR_PARALLEL,
    USE_VLLM,
    VLLM_MODE,
    VLLM_SERVER,
    VLLM_SHARE,
)
from autotune.space.vllm.memory import VllmShare

USE, MODE, SLEEP = USE_VLLM, VLLM_MODE, "vllm_enable_sleep_mode"
MAX_LENGTH = "vllm_max_model_length"
COLOCATE, SERVER = "colocate", VLLM_SERVER
TRL_SHARE = 0.3
"""What TRL gives vLLM unless told otherwise."""
PROFILED_TOKENS = 4096
VALUES_A_TOKEN = 16
"""Of the hidden size, which a pass holds at once for each token; assumed."""
RUNTIME_BYTES = 1280 * 2**20
"""CUDA graphs, and what libraries take; assumed."""
NCCL_BYTES = 400 * 2**20
"""What NCCL takes where devices exchange what the parts of a layer compute; assumed."""
ASLEEP_BYTES = 1024 * 2**20
"""What stays while it sleeps; assumed (774 MiB of a 1B model are reported by
github.com/NVIDIA-NeMo/RL/issues/223)."""
STEP = 0.01
"""Shares are rounded up to whole hundredths."""


def vllm_share(config: Mapping[str, Any], device_bytes: int) -> VllmShare | None:
    """Return what vLLM has of a device of so many bytes; None: nothing.

    Args:
        config: the flat configuration of a candidate.
    """
    if not config.get(USE) or config.get(MODE, COLOCATE) != COLOCATE:
        return None
    awake = round(config.get(VLLM_SHARE, TRL_SHARE) * device_bytes)
    asleep = min(ASLEEP_BYTES, awake) if config.get(SLEEP) else None
    return VllmShare(awake_bytes=awake, asleep_bytes=asleep)


def needed_share(
    job: Job, facts: Facts, sequences: int, completion: int, size: int = 1
) -> float | None:
    """Return the least share of a device's memory in which all its completions are generated at
    once.

    Args:
        sequences: completions of a generation on the device.
        completion: tokens of a full one.
        size: devices that generate together, each with a part of the model.

    Returns:
        In hundredths, above 1 where the device is too small; None where it is not known how much
        a token takes in the cache.
    """
    tokens = size * sequences * (facts.data.longest + completion)
    return _share(facts, max(tokens, longest_sequence(job, facts, completion)), size)


def least_share(job: Job, facts: Facts, completion: int, size: int = 1) -> float | None:
    """Return the least share with which vLLM can start: the cache holds the longest sequence that
    it must be ready for."""
    return _share(facts, longest_sequence(job, facts, completion), size)


def _share(facts: Facts, tokens: int, size: int) -> float | None:
    cached = cache_bytes(facts.model, tokens, size)
    if cached is None:
        return None
    needed_bytes = weights_bytes(facts.model, size) + cached + other_bytes(facts.model, size)
    return round(math.ceil(needed_bytes / facts.device.total_bytes / STEP - 1e-9) * STEP, 2)


def weights_bytes(model: ModelFacts, size: int) -> int:
    """Return a device's part of the weights, which vLLM keeps in 16 bits.

    Args:
        size: devices among which they are divided.
    """
    return -(-2 * model.parameters // size)


def cache_bytes(model: ModelFacts, tokens: int, size: int) -> int | None:
    """Return a device's part of the keys and values of so many tokens: that of its heads, of which
    there may be fewer than devices. None: it is not known how much a token takes."""
    if model.cache_bytes_per_token is None:
        return None
    parts = min(size, model.key_value_heads or size)
    return -(-tokens * model.cache_bytes_per_token // parts)


def other_bytes(model: ModelFacts, size: int, tokens: int = PROFILED_TOKENS) -> int:
    """Return what is assumed of the rest: a pass over so many tokens, graphs, libraries."""
    pass_bytes = 2 * tokens * VALUES_A_TOKEN * (model.hidden_size or 4096)
    return pass_bytes + RUNTIME_BYTES + (NCCL_BYTES if size > 1 else 0)


def max_model_length(job: Job, facts: Facts, completion: int) -> int | None:
    """Return tokens of prompt and completion that vLLM must be ready for; None: those of the model,
    because not all prompts are known (of a sample, of an evaluation)."""
    evaluates = job.training.get("eval_strategy", "no") not in ("no", None, False)
    length = job.training.get(MAX_LENGTH)
    if isinstance(length, int):
        return length
    return None if facts.data.sampled or evaluates else facts.data.longest + completion


def longest_sequence(job: Job, facts: Facts, completion: int) -> int:
    """Return tokens of the longest sequence that the cache has to hold for vLLM to start."""
    length = max_model_length(job, facts, completion)
    return length or facts.model.max_positions or facts.data.longest + completion


def vllm_fields(job: Job, config: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return what a configuration that generates with vLLM has to say besides its knobs."""
    if not config.get(USE):
        return {}
    length = max_model_length(job, facts, config[COMPLETION])
    return {} if length is None else {MAX_LENGTH: length}


def share_problem(shape: JobShape, facts: Facts, values: Mapping[str, Any]) -> str | None:
    """Return why a candidate's share cannot be; None: it can, or there is none."""
    if VLLM_SHARE not in values or values.get(MODE) == SERVER:
        return None
    job, share, completion = shape.job, values[VLLM_SHARE], values[COMPLETION]
    size = values.get(TENSOR_PARALLEL) or 1
    if VLLM_SHARE not in job.fixed:
        sequences = values[GENERATION_BATCH] // shape.processes(values)
        smallest_share = needed_share(job, facts, max(sequences, 1), completion, size)
        if share != (TRL_SHARE if smallest_share is None else smallest_share):
            return "vLLM gets as much memory as the completions of a generation need"
    if share > 1:
        return "the weights and all completions of a generation do not fit in vLLM's memory"
    smallest = least_share(job, facts, completion, size)
    if smallest is not None and share < smallest:
        return f"vLLM cannot start with less than `{VLLM_SHARE}: {smallest}`"
    return None
