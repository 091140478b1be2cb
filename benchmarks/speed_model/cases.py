"""The job of the benchmark, and which of its candidates are probed."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.space.bind import bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate

MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
JOB = (
    "dataset={lengths: {max: 384, p50: 60, p99: 320, rows: 2000}}",
    "global_batch_size=16",
    "max_length=384",
    "devices={kind: cpu}",
    "recipe={dtype: [float32, bfloat16]}",
    "fixed={attn_implementation: sdpa}",
)


def levels(precision: str, candidate: Candidate) -> dict[str, Any]:
    """What varies."""
    batching = "padding_free" if candidate["padding_free"] else "random"
    if candidate["train_sampling_strategy"] == "group_by_length":
        batching = "grouped"
    mixed = "amp" if candidate["dtype"] == "float32" else "bf16"
    return {
        "micro-batch": candidate.micro_batch,
        "checkpointing": candidate["gradient_checkpointing"],
        "loss": candidate["loss_type"],
        "batching": batching,
        "optimizer": candidate["optim"],
        "dtype": mixed if precision == "bf16" else "fp32",
    }


def chosen(
    jobs: Mapping[str, Job], definition: SpaceDefinition, facts: Facts, count: int, seed: int
) -> list[tuple[str, Candidate]]:
    """(precision, candidate): drawn so that every level of every knob comes about as often."""
    pool = [
        (precision, candidate)
        for precision, job in jobs.items()
        for candidate in bind(definition, job, facts).candidates
        if precision == "bf16" or candidate["dtype"] == "float32"
    ]
    random.Random(seed).shuffle(pool)
    found: list[tuple[str, Candidate]] = []
    seen: Counter[tuple[str, Any]] = Counter()
    while pool and len(found) < count:
        best = min(pool, key=lambda one: sum(seen[level] for level in levels(*one).items()))
        pool.remove(best)
        found.append(best)
        seen.update(levels(*best).items())
    return found
