"""The combinations, drawn by a seed: none is chosen, none is left out for what it came to."""

import random
from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.virtual_gpu.models import CONFIGS

KINDS = ("a100-80gb", "l40s", "h200")
"""Capability 8.0, 8.9 and 9.0."""
LARGE = ("qwen2-7b", "llama-8b", "mistral-7b")
"""Too large to train all weights of with float32 states on one of these devices."""
FACTORS: dict[str, tuple[Any, ...]] = {
    "method": ("sft", "sft", "sft", "dpo", "reward", "kto"),
    "model": tuple(CONFIGS),
    "tuning": ("full", "lora"),
    "kind": KINDS,
    "expandable": (False, True),
    "checkpointing": (False, True),
    "loss": ("nll", "chunked_nll"),
    "dropout": (0.0, 0.0, 0.05),
    "optimizer": ("adamw_torch_fused", "adamw_torch"),
    "attention": ("sdpa", "sdpa", "eager"),
    "accumulation": (1, 2, 4),
    "rows": (1, 2, 4, 8),
    "length": (256, 512, 1024),
    "ragged": (False, False, True),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination: a level of each factor."""

    method: str
    model: str
    tuning: str
    kind: str
    expandable: bool
    checkpointing: bool | str
    loss: str
    dropout: float
    optimizer: str
    attention: str
    accumulation: int
    rows: int
    length: int
    ragged: bool

    @property
    def name(self) -> str:
        """All levels, as one line."""
        return " ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))

    def plain(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)

    def job(self, model: str) -> dict[str, Any]:
        """The fields of a job file whose space holds this combination."""
        lengths: dict[str, Any] = {"max": self.length, "rows": 1000}
        if self.ragged:
            lengths |= {"p50": self.length * 3 // 10, "p99": self.length * 8 // 10}
        return {
            "model": model,
            "method": self.method,
            "tuning": self.tuning,
            "dataset": {"lengths": lengths},
            "global_batch_size": self.rows * self.accumulation,
            "max_length": self.length,
            "precision": "bf16",
            "devices": {"kind": "cuda"},
            "fixed": {"expandable_segments": self.expandable},
            "training": {"lora_dropout": self.dropout} if self.tuning == "lora" else {},
        }

    def knobs(self) -> dict[str, Any]:
        """The values of the candidate that are this combination; those not named are the first."""
        return {
            "per_device_train_batch_size": self.rows,
            "gradient_checkpointing": self.checkpointing,
            "attn_implementation": self.attention,
            "optim": self.optimizer,
            "expandable_segments": self.expandable,
            **({"loss_type": self.loss} if self.method == "sft" else {}),
        }


def drawn(seed: int, number: int) -> Case:
    """Combination `number` of a seed; it does not depend on how many are drawn."""
    draw = random.Random(f"{seed} {number}")
    levels = {name: draw.choice(choices) for name, choices in FACTORS.items()}
    if levels["model"] in LARGE:
        levels["tuning"] = "lora"
    if levels["tuning"] == "full":
        levels["dropout"] = 0.0
    if levels["method"] != "sft":
        levels["loss"] = "nll"
    if levels["model"] == "gemma2-2b":  # caps its attention scores, which sdpa cannot
        levels["attention"] = "eager"
    if levels["method"] == "kto":  # TRL refuses a micro-batch of one row
        levels["rows"] = max(levels["rows"], 2)
    return Case(**levels)
