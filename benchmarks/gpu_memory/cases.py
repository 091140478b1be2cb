"""The jobs whose estimates are held against a GPU, and which of their candidates are probed.

Each job has a memory limit of its own, below what the device has: so verdicts are asked for at many
sizes, near the limit too, and the limit of a plan is that of its probes, whatever the driver takes.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autotune.estimate.estimate import Estimate
from autotune.space.knobs import Candidate

One = TypeVar("One")

PATH_KNOBS = ("gradient_checkpointing", "loss_type", "attn_implementation", "padding_free")
PATHS, CHOSEN = 6, 7
"""Of each job: paths that are traced, candidates that are probed."""
SLOW_S = 20.0
"""Candidates whose probe is expected to take longer are left out: device time is short."""
UNSURE = 0.05
"""From this p(oom) on the verdict is open."""

PINNED = {
    "use_liger_kernel": False,
    "activation_offloading": False,
    "dataloader_num_workers": 0,
    "train_sampling_strategy": "random",
    "optim": "adamw_torch_fused",
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        **QWEN,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        **QWEN,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        **QWEN,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
    "tiny": {
        **QWEN,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job, and how many of its paths and candidates are wanted."""

    model: str
    tuning: str
    length: int
    batch: int
    memory: str
    ragged: bool = False
    kind: str = "cuda"
    paths: int = PATHS
    chosen: int = CHOSEN

    @property
    def name(self) -> str:
        """Short and different for each."""
        return f"{self.model}-{self.tuning}-{self.length}"

    def job(self) -> dict[str, Any]:
        """The fields of a job file, but for the model."""
        lengths = {"max": self.length, "rows": 1000}
        if self.ragged:
            lengths |= {"p50": self.length * 3 // 10, "p99": self.length * 8 // 10}
        return {
            "tuning": self.tuning,
            "dataset": {"lengths": lengths},
            "global_batch_size": self.batch,
            "max_length": self.length,
            "devices": {"kind": self.kind, "memory": self.memory},
            "budget": {"probe_minutes": 2.0},
            "fixed": PINNED,
        }


def _case(model: str, tuning: str, length: int, batch: int, memory: str, **more: Any) -> Case:
    return Case(model=model, tuning=tuning, length=length, batch=batch, memory=memory, **more)


CASES = (
    # All but the two of 138 GiB fit a GPU of 80 GB.
    _case("qwen2.5-0.5b", "full", 512, 96, "40GiB"),
    _case("qwen2.5-0.5b", "full", 2048, 48, "64GiB", ragged=True),
    _case("qwen2.5-0.5b", "full", 8192, 24, "76GiB"),
    _case("qwen2.5-0.5b", "lora", 2048, 48, "48GiB"),
    _case("qwen2.5-1.5b", "full", 512, 96, "72GiB", ragged=True),
    _case("qwen2.5-1.5b", "full", 2048, 48, "76GiB"),
    _case("qwen2.5-1.5b", "lora", 2048, 48, "56GiB", ragged=True),
    _case("qwen2.5-1.5b", "qlora", 2048, 48, "32GiB"),
    _case("qwen2.5-1.5b", "lora", 8192, 24, "76GiB"),
    _case("qwen2.5-7b", "full", 512, 48, "138GiB"),
    _case("qwen2.5-7b", "lora", 512, 96, "70GiB"),
    _case("qwen2.5-7b", "lora", 2048, 48, "76GiB", ragged=True),
    _case("llama-3.1-8b", "lora", 2048, 48, "74GiB"),
    _case("llama-3.1-8b", "full", 512, 48, "138GiB"),
)
TINY = (_case("tiny", "lora", 32, 8, "4GiB", ragged=True, kind="cpu", paths=2, chosen=3),)


def variant_of(candidate: Candidate) -> dict[str, Any]:
    """What decides which way a candidate takes through the program."""
    return {name: candidate[name] for name in PATH_KNOBS}


def some_paths(candidates: Sequence[Candidate], count: int, seed: str) -> list[Candidate]:
    """All candidates on a few paths, drawn so that every pair of values comes about as often."""
    first = {repr(variant_of(candidate)): candidate for candidate in candidates}
    drawn = balanced(list(first.values()), count, variant_of, seed)
    return [
        one for one in candidates if any(variant_of(one) == variant_of(other) for other in drawn)
    ]


def balanced(
    pool: Sequence[One],
    count: int,
    levels: Callable[[One], dict[str, Any]],
    seed: str,
    beside: Sequence[One] = (),
) -> list[One]:
    """Draw so that every pair of levels comes about as often, counting those of `beside`."""
    left = list(pool)
    found: list[One] = []
    random.Random(seed).shuffle(left)

    def pairs(one: One) -> list[tuple[Any, ...]]:
        return list(itertools.combinations(levels(one).items(), 2))

    seen = Counter(pair for one in beside for pair in pairs(one))
    while left and len(found) < count:
        best = min(left, key=lambda one: sum(seen[pair] for pair in pairs(one)))
        left.remove(best)
        found.append(best)
        seen.update(pairs(best))
    return found


def probe_seconds(candidate: Candidate, estimate: Estimate) -> float:
    """About how long the steps of a probe take: warm-up, and two rounds of 16 rows or more."""
    rows = 4 * candidate.micro_batch + 2 * max(16, 2 * candidate.micro_batch)
    return rows * (estimate.step_time_s or 0.0) / candidate.global_batch


def chosen(
    candidates: Sequence[Candidate],
    estimates: dict[str, Estimate],
    limit_bytes: int,
    count: int,
    seed: str,
) -> list[Candidate]:
    """The nearest to the limit on either side, then a spread over all that fit; none if none fits.

    The most telling come first.
    """

    def peak(one: Candidate) -> int:
        return estimates[one.key].peak_memory_bytes

    def levels(one: Candidate) -> dict[str, Any]:
        band = min(int(4 * peak(one) / limit_bytes), 3)
        return {**variant_of(one), "micro-batch": one.micro_batch, "memory": band}

    quick = [one for one in candidates if probe_seconds(one, estimates[one.key]) <= SLOW_S]
    fitting = [one for one in quick if estimates[one.key].fits]
    if not fitting:
        return []
    above = [one for one in quick if not estimates[one.key].fits]
    edge = [max(fitting, key=peak), *([min(above, key=peak)] if above else [])]
    others = [one for one in fitting if one not in edge]
    sure = [one for one in others if estimates[one.key].p_oom < UNSURE]
    unsure = [one for one in others if one not in sure]
    spread = balanced(sure, count - len(edge), levels, seed, beside=edge)
    more = balanced(unsure, count - len(edge) - len(spread), levels, seed, beside=edge + spread)
    return [*edge, *spread, *more][:count]
