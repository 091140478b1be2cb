"""What a vLLM server that generates for a training takes of GPUs of its own. Bytes. Pure.

A server of tensor-parallel size t keeps a t-th of the weights on each of t GPUs, and of the cache
that of its part of the key-value heads; where there are fewer such heads than GPUs they are
replicated. It takes sizes that divide the attention heads, and that divide the key-value heads or
are divided by them. Others than powers of two are not searched: what else is divided (the
vocabulary, made a multiple of 64; the layers' widths) is seldom divided by them.

Sources: vLLM 0.24, `config/model.py` (`verify_with_parallel_config`, `get_num_kv_heads`),
`model_executor/layers/linear.py` (`QKVParallelLinear`), `engine/arg_utils.py` (8192 tokens in a
pass); TRL's `scripts/vllm_serve.py` (0.9 of a GPU; dense models have no data parallelism). Known
error: nothing of it was held against vLLM; what the training sends it of the weights is received
in the tenth that the server leaves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.facts import Facts
from autotune.facts.model import ModelFacts
from autotune.job.job import Job
from autotune.space.job_shape import JobShape, server_devices
from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    VLLM_SHARE,
)
from autotune.space.vllm.colocated import (
    MODE,
    SERVER,
    STEP,
    USE,
    cache_bytes,
    longest_sequence,
    other_bytes,
    weights_bytes,
)
from autotune.space.vllm.memory import ServerNeeds

SERVER_SHARE = 0.9
"""Of a GPU's memory, unless told otherwise: TRL's default for a server."""
PROFILED_TOKENS = 8192


def searched_sizes(shape: JobShape, facts: Facts) -> list[int]:
    """Return the tensor-parallel sizes that a job's vLLM may have: colocated 1, others by
    request."""
    if shape.job.fixed.get(MODE) != SERVER:
        return [1]
    return sizes(facts.model, shape.devices - min(shape.process_counts))


def sizes(model: ModelFacts, limit: int) -> list[int]:
    """Return the tensor-parallel sizes up to `limit` that are worth a try, the largest first."""
    powers = [2**n for n in range(limit.bit_length()) if 2**n <= limit]
    return [size for size in reversed(powers) if size_problem(model, size) is None]


def size_problem(model: ModelFacts, size: int) -> str | None:
    """Return why vLLM cannot divide a model among so many GPUs; None: it can."""
    heads, groups = model.attention_heads, model.key_value_heads
    if size == 1:
        return None
    if not heads or not groups:
        return "vLLM divides the attention heads, and this model does not say how many it has"
    if heads % size:
        return f"vLLM cannot divide {heads} attention heads among {size} GPUs"
    if groups % size and size % groups:
        return f"vLLM cannot divide {groups} key-value heads among {size} GPUs"
    return None


def division_problem(shape: JobShape, facts: Facts, values: Mapping[str, Any]) -> str | None:
    """Return why a candidate's devices and model cannot be divided as it says; None: they can."""
    size = values.get(TENSOR_PARALLEL)
    if not size:
        return None
    processes, total = shape.processes(values), shape.devices
    if values.get(MODE) != SERVER and processes % size:
        return f"{processes} processes cannot be split into vLLM's groups of {size}"
    if server_devices(values) and processes + size > total:
        return f"more than {total} devices would be needed to train and to generate"
    return size_problem(facts.model, size)


def division_note(shape: JobShape, facts: Facts) -> str | None:
    """Return why some ways to divide the devices between training and a server are no
    candidates."""
    total, counts = shape.devices, shape.process_counts
    if not shape.shares_with_server:
        return None
    reasons = [f"{total} processes would leave the server none"]
    counts_left = [n for n in range(total - 1, 0, -1) if n not in counts]
    if counts_left and not shape.pinned_or_listed(NUM_PROCESSES):
        reasons.append(f"{', '.join(map(str, counts_left))} cannot share the global batch equally")
    powers = [2**n for n in range(1, total.bit_length()) if 2**n <= total - min(counts)]
    if TENSOR_PARALLEL not in shape.job.fixed:
        reasons += [
            reason for size in powers if (reason := size_problem(facts.model, size)) is not None
        ]
    return f"{total} devices are split between training and a vLLM server: {'; '.join(reasons)}"


def left_to_the_server(values: Mapping[str, Any]) -> frozenset[str]:
    """Return knobs that the server is told, not the trainer."""
    uses_server = values.get(USE) and values.get(MODE) == SERVER
    return frozenset((TENSOR_PARALLEL, VLLM_SHARE) if uses_server else ())


def server_share(job: Job, facts: Facts) -> float:
    """Return the part of a GPU's memory that a server takes: of what the job may have of it, where
    it says so."""
    memory = job.devices.memory or facts.device.total_bytes
    part = min(memory / facts.device.total_bytes, 1.0)
    return round(max(math.floor(SERVER_SHARE * part / STEP + 1e-9) * STEP, STEP), 2)


def server_needs(job: Job, facts: Facts, values: Mapping[str, Any]) -> ServerNeeds | None:
    """Return what a candidate's server needs of each of its GPUs; None: the job has no GPUs for
    one."""
    size = server_devices(values)
    if not size:
        return None
    completion = values[COMPLETION]
    length = longest_sequence(job, facts, completion)
    tokens = max(values[GENERATION_BATCH] * (facts.data.longest + completion), length)
    share = values.get(VLLM_SHARE) or server_share(job, facts)
    return ServerNeeds(
        devices=size,
        weights_bytes=weights_bytes(facts.model, size),
        cache_bytes=cache_bytes(facts.model, tokens, size),
        # Also alone it exchanges: the training sends it weights.
        other_bytes=other_bytes(facts.model, size + 1, PROFILED_TOKENS),
        given_bytes=round(share * facts.device.total_bytes),
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    """The numbers of the GPUs that train and of those that generate, and the share of memory
    that each of the latter gives."""

    training: tuple[int, ...]
    generating: tuple[int, ...]
    share: float


def split_of(job: Job, facts: Facts, values: Mapping[str, Any], processes: int) -> Split | None:
    """Return how a candidate divides the job's GPUs; None: its server, if it has one, has others.

    Args:
        processes: that train, on the first GPUs; the server takes those after them.
    """
    size = server_devices(values)
    if not size or facts.device.kind != "cuda":
        return None
    gpus = (facts.device.index, *facts.device.peers)
    return Split(
        training=gpus[:processes],
        generating=gpus[processes : processes + size],
        share=values.get(VLLM_SHARE) or server_share(job, facts),
    )
